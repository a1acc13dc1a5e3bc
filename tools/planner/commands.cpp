// SPDX-License-Identifier: Apache-2.0
#include "tools/planner/commands.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "planner/policies/policy.h"
#include "tools/number_in.h"
#include "tools/planner/fields.h"
#include "tools/planner/links_reader.h"
#include "tools/planner/machine_links.h"
#include "tools/planner/profile_reader.h"
#include "tools/text_output.h"

namespace deft::tools {
planner::Options PlannerOptions::options() const {
    planner::Options result;
    result.max_delay = max_delay;
    result.max_merge = max_merge;
    result.complete_generations = merge == "whole";
    result.barrier = barrier == "layer" ? planner::Barrier::Layer : planner::Barrier::Update;
    result.objective = objective == "update"     ? planner::Objective::UpdateTime
                       : objective == "progress" ? planner::Objective::Progress
                                                 : planner::Objective::IterationTime;
    result.mixed_ages = mixed_ages;
    if (noise_scale >= 0) {
        result.noise_scale = noise_scale;
    }
    if (age_price >= 0) {
        result.age_price = age_price;
    }
    const auto bytes = [](double mb) { return static_cast<std::uint64_t>(mb * 0x1p20); };
    if (partition_mb >= 0) {
        result.partition_bytes = bytes(partition_mb);
    }
    if (credit_mb >= 0) {
        result.credit_bytes = bytes(credit_mb);
    }
    return result;
}

planner::Profile PlannerOptions::read(const std::string& what, std::int64_t* rank) const {
    std::vector<std::string> notes;
    planner::Profile profile = read_profile(what, {group, &notes, rank});
    for (const std::string& note : notes) {
        if (said.insert(note).second) {
            complain("note: " + note);
        }
    }
    return profile;
}

std::uint32_t PlannerOptions::ranks_for(const planner::Profile& read) const {
    if (nodes != 0) {
        if (ranks != 0) {
            throw InputError("--nodes and --ranks: name one of the two");
        }
        if (!names_machine(links)) {
            throw InputError("--nodes: " + links +
                             " does not say what a node has; --links takes topo or a file of "
                             "deft topo --input");
        }
        return nodes * read_node(links).gpus;
    }
    return ranks != 0 ? ranks : read.ranks != 0 ? read.ranks : 16;
}

planner::Fabric PlannerOptions::fabric(std::uint32_t ranks_of_job) const {
    return names_machine(links) ? fabric_of(read_node(links), ranks_of_job)
                                : read_links(links, ranks_of_job);
}

std::uint32_t PlannerOptions::nodes_of(std::uint32_t ranks_of_job) const {
    if (!names_machine(links)) {
        return 0;
    }
    const std::uint32_t gpus = read_node(links).gpus;
    return (ranks_of_job + gpus - 1) / gpus;
}

std::string verdict_text(const planner::Prediction& p) {
    std::string verdict = to_string(p.verdict);
    if (p.verdict == planner::Verdict::Keep || !(p.iteration > 0)) {
        return verdict;
    }
    const double gain = p.baseline / p.iteration;
    if (p.progress > 1 - 1e-9) {
        return fmt::format("{}: {:.2f}x per iteration", verdict, gain);
    }
    return fmt::format("{}: {:.2f}x per iteration, {:.2f}x to the same loss", verdict, gain,
                       gain * p.progress);
}

std::string policy_text(const planner::Plan& plan) {
    if (!plan.origin.empty()) {
        return fmt::format("{} ({})", plan.policy, plan.origin);
    }
    const bool mode_too = plan.policy == "deft" || plan.policy == "covap";
    return mode_too ? plan.policy + " (paper)" : plan.policy;
}

void write_file(const std::string& path, const std::string& text) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"),
                                                               &std::fclose);
    if (!file || std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() ||
        std::fflush(file.get()) != 0) {
        throw InputError(path + ": " + std::strerror(errno));
    }
}

void write_pictures(const PlannerOptions& options, const std::vector<Timeline>& timelines) {
    if (!options.svg.empty()) {
        write_file(options.svg, svg_timeline(timelines));
    }
    if (!options.trace.empty()) {
        write_file(options.trace, chrome_trace(timelines).dump());
    }
}

void PlannerCommands::add_common(CLI::App* command) {
    command->allow_extras();
    command->add_option(
        "--links", options.links,
        "Presets separated by , or + (\"nvlink-a100,2x10GbE\"), or a .toml or .json file "
        "(docs/planner.md), or hosts like this one (\"topo\") or one of deft topo --input");
    command->add_option("--group", options.group,
                        "Of a trace: the process group that sums gradients, by name or "
                        "description; default: the data-parallel one");
    command
        ->add_option("--ranks", options.ranks,
                     "Ranks of the job; default: as in the profile, else 16")
        ->check(number_in(2U, 1000000U));
    command
        ->add_option("--nodes", options.nodes,
                     "Nodes of the job, where the links are those of a topology: a rank for each "
                     "GPU")
        ->check(number_in(1U, 100000U));
    add_policy(command);
    command->add_flag("--json", options.json, "For programs");
}

void PlannerCommands::add_policy(CLI::App* command) {
    command->add_option("--max-delay", options.max_delay, "Iterations an update may be late")
        ->check(number_in(0U, 1000U))
        ->capture_default_str();
    command
        ->add_option("--max-merge", options.max_merge,
                     "Iterations that may be summed into one update")
        ->check(number_in(1U, 1000U))
        ->capture_default_str();
    command
        ->add_option("--merge", options.merge,
                     "`best`: turns, buckets may be updated in turns; whole, all or none at "
                     "once (DEFT_MERGE)")
        ->check(CLI::IsMember({"turns", "whole"}))
        ->capture_default_str();
    command
        ->add_option("--barrier", options.barrier,
                     "update: the job waits for all gradients; layer: each layer for its own")
        ->check(CLI::IsMember({"update", "layer"}))
        ->capture_default_str();
    command
        ->add_option("--objective", options.objective,
                     "What `best` shortens and verdicts count: iteration, update, or progress, the "
                     "time to the same loss")
        ->check(CLI::IsMember({"iteration", "update", "progress"}))
        ->capture_default_str();
    command->add_flag(
        "--mixed-ages,!--no-mixed-ages", options.mixed_ages,
        "`best`: only what backward ends with may be late, as in mode deft (default)");
    command
        ->add_option("--noise-scale", options.noise_scale,
                     "progress: gradient noise scale over an iteration's batch; default 1")
        ->check(number_in(0.0, 1e9));
    command
        ->add_option("--age-price", options.age_price,
                     "progress: what a missed update costs of a late byte; default 0.4")
        ->check(number_in(0.0, 1e3));
    command
        ->add_option("--partition-mb", options.partition_mb,
                     "ByteScheduler's partition, MiB; default 32; 0: its ideal, no overhead")
        ->check(number_in(0.0, 65536.0));
    command->add_option("--credit-mb", options.credit_mb, "ByteScheduler's credit, MiB; default 64")
        ->check(number_in(0.0, 65536.0));
}

void PlannerCommands::add_pictures(CLI::App* command) {
    command->add_option(
        "--profile", options.profile,
        "model:NAME[,batch=N,...], an observe report, a PyTorch trace, or a saved profile");
    command->add_option("--svg", options.svg, "Draw the timeline into this file");
    command->add_option("--trace", options.trace,
                        "Write the timeline as a Chrome trace into this file");
}

void PlannerCommands::add_to(CLI::App& app) {
    plan = app.add_subcommand("plan", "Plan the transfers of a job");
    add_common(plan);
    add_pictures(plan);
    plan->add_option("--policy", options.policy, "Default: best");
    plan->add_option("--out", options.out, "Write the plan (JSON) into this file");
    plan->add_option("--check", options.check,
                     "Make no plan: say whether this saved one may run on profile and links");
    plan->add_option("--save-profile", options.save_profile,
                     "Write the profile (JSON) into this file");
    sim = app.add_subcommand("sim", "Simulate what policies would gain");
    add_common(sim);
    add_pictures(sim);
    sim->add_option("--policy", options.policy, "One policy, or all (default)");
    sim->add_option("--jitter", options.jitter, "Each rank computes slower by up to this fraction")
        ->check(number_in(0.0, 10.0));
    sim->add_option("--seed", options.seed, "Of the jitter")
        ->check(number_in(std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max()));
    sim->add_option("--straggler", options.straggler,
                    "Compute of one rank takes this many times as long")
        ->check(number_in(1.0, 1000.0));
    sim->add_option("--rate-change", options.rate_changes,
                    "LINK:MS:FACTOR, from then on the link has this part of its rate; repeatable");
    advise = app.add_subcommand("advise", "Say what a job could gain at most, and from what");
    add_common(advise);
    advise->add_option(
        "input", options.inputs,
        "Observe reports, PyTorch profiler traces, or model:NAME[,...] with --links");
    advise->add_flag("--curve", options.curve,
                     "The benefit of each kind of help over the ratio of compute to communication, "
                     "and where the (first) job stands");
    advise->add_option("--svg", options.svg, "With --curve: draw it into this file");
}

int PlannerCommands::run(const CLI::App* command) const {
    try {
        const std::string& name = options.policy;
        if (!name.empty() && !(command == sim && name == "all") &&
            planner::find_policy(name) == nullptr) {
            std::string names;
            for (const planner::Policy& policy : planner::policies()) {
                names += std::string(names.empty() ? "" : ", ") + policy.name;
            }
            complain(fmt::format("--policy: '{}' is none of {}", name, names));
            return kUsage;
        }
        if (command == advise) {
            if (!options.svg.empty() && !options.curve) {
                complain("advise: --svg draws the curve; add --curve");
                return kUsage;
            }
            if (options.inputs.empty()) {
                complain("advise: name a trace or a report");
                return kUsage;
            }
            return advise_command(options);
        }
        if (options.profile.empty() || options.links.empty()) {
            complain(fmt::format("{}: --profile and --links are needed; see --help",
                                 command == plan ? "plan" : "sim"));
            return kUsage;
        }
        return command == plan ? plan_command(options) : sim_command(options);
    } catch (const InputError& error) {
        complain(error.what());
        return kProblem;
    }
}

}  // namespace deft::tools
