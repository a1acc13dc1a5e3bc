// SPDX-License-Identifier: Apache-2.0
// `deft sim`: policies side by side in the simulator.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "planner/policies/policy.h"
#include "planner/solver/bounds.h"
#include "tools/planner/commands.h"
#include "tools/planner/fields.h"
#include "tools/planner/profile_reader.h"
#include "tools/planner/validity.h"
#include "tools/text_output.h"

namespace deft::tools {
namespace {

struct Result {
    planner::Plan plan;
    planner::SimulationResult run;
};

// "LINK:MS:FACTOR"; a name may itself hold colons.
planner::RateChange rate_change_from(const std::string& text, const planner::Fabric& fabric) {
    const auto number = [&](const std::string& word, double low, double high) {
        double value = 0;
        const auto end = std::from_chars(word.data(), word.data() + word.size(), value);
        if (end.ec != std::errc() || end.ptr != word.data() + word.size() ||
            !(value >= low && value <= high)) {
            throw InputError(fmt::format("--rate-change {}: '{}' is no number in {}..{}", text,
                                         word, low, high));
        }
        return value;
    };
    const auto last = text.rfind(':');
    const auto middle = last == std::string::npos || last == 0 ? last : text.rfind(':', last - 1);
    if (last == std::string::npos || middle == std::string::npos || middle == last) {
        throw InputError(fmt::format("--rate-change {}: not LINK:MS:FACTOR", text));
    }
    planner::RateChange change;
    const std::string name = text.substr(0, middle);
    const auto found = std::find_if(fabric.links.begin(), fabric.links.end(),
                                    [&](const planner::Link& link) { return link.name == name; });
    if (found == fabric.links.end()) {
        throw InputError(fmt::format("--rate-change {}: no link is called '{}'", text, name));
    }
    change.link = static_cast<std::uint32_t>(found - fabric.links.begin());
    change.time = number(text.substr(middle + 1, last - middle - 1), 0, 1e9) * 1e-3;
    change.factor = number(text.substr(last + 1), 1e-6, 1e3);
    return change;
}

// What was simulated, and with what.
struct Simulated {
    planner::Profile profile;
    std::uint32_t ranks = 0;
    std::uint32_t nodes = 0;  // 0: not known
    planner::Fabric fabric;
    planner::Options options;
    planner::Simulation simulation;
    std::vector<Result> results;
    double baseline = 0;  // seconds of an iteration of the job as it is
};

Simulated simulate_policies(const PlannerOptions& options) {
    Simulated all;
    all.profile = options.read(options.profile);
    all.ranks = options.ranks_for(all.profile);
    const planner::Fabric read = options.fabric(all.ranks);
    all.fabric = read.striped && read.links.size() > 1 ? read.merged() : read;
    all.nodes = options.nodes_of(all.ranks);
    all.options = options.options();
    all.simulation.jitter = options.jitter;
    all.simulation.ranks = all.ranks;
    all.simulation.seed = options.seed;
    if (options.straggler > 1) {
        all.simulation.compute_factor = {options.straggler};
    }
    for (const std::string& text : options.rate_changes) {
        all.simulation.rate_changes.push_back(rate_change_from(text, all.fabric));
    }
    const auto run = [&](const planner::Plan& plan) {
        return simulate(plan, all.profile, all.fabric, all.simulation);
    };
    for (const planner::Policy& policy : planner::policies()) {
        if (!options.policy.empty() && options.policy != "all" && options.policy != policy.name) {
            continue;
        }
        Result result{make_plan(policy.name, all.profile, all.fabric, all.options), {}};
        result.run = run(result.plan);
        all.results.push_back(std::move(result));
    }
    // The job as it is meets the same stragglers and links: what a policy gains is its own.
    const auto unchanged =
        std::find_if(all.results.begin(), all.results.end(),
                     [](const Result& result) { return result.plan.policy == "none"; });
    all.baseline = (unchanged != all.results.end()
                        ? unchanged->run
                        : run(make_plan("none", all.profile, all.fabric, all.options)))
                       .iteration;
    return all;
}

// Of all policies that were simulated.
std::vector<MessageSizes> all_messages(const Simulated& all) {
    std::vector<const planner::Plan*> plans;
    for (const Result& result : all.results) {
        plans.push_back(&result.plan);
    }
    return messages_of(plans, all.fabric);
}

nlohmann::json to_json(const Simulated& all) {
    nlohmann::json json = {{"format", "deft-sim"},
                           {"version", 1},
                           {"profile", profile_to_json(all.profile)},
                           {"ranks", all.ranks},
                           {"coverage_rate", coverage_rate(all.profile, all.fabric)}};
    if (all.nodes > 0) {
        json["nodes"] = all.nodes;
    }
    const std::vector<MessageSizes> messages = all_messages(all);
    for (std::size_t i = 0; i < all.fabric.links.size(); ++i) {
        const planner::Link& link = all.fabric.links[i];
        json["links"].push_back({{"name", link.name},
                                 {"kind", link.kind},
                                 {"source", link.source},
                                 {"beyond", beyond_of(link, messages[i])}});
    }
    for (const Result& result : all.results) {
        const planner::Prediction& p = result.plan.predicted;
        nlohmann::json busy = nlohmann::json::array();
        for (const double fraction : result.run.link_busy) {
            busy.push_back(fraction);
        }
        json["policies"].push_back({{"policy", result.plan.policy},
                                    {"iteration_ms", result.run.iteration * 1e3},
                                    {"speedup", all.baseline / result.run.iteration},
                                    {"exposed_ms", result.run.exposed * 1e3},
                                    {"updates_per_iteration", p.updates},
                                    {"progress", p.progress},
                                    {"origin", result.plan.origin},
                                    {"late", p.late},
                                    {"max_delay", p.max_delay},
                                    {"max_age", p.max_age},
                                    {"max_merge", p.max_merge},
                                    {"barrier", to_string(result.plan.barrier)},
                                    {"bound_ms", p.bound * 1e3},
                                    {"gap", p.gap},
                                    {"verdict", to_string(p.verdict)},
                                    {"link_busy", busy}});
    }
    return json;
}

// One verdict for all of them: on the policy that is meant to be used, else on the quickest.
std::string verdict_line(const Simulated& all) {
    const auto chosen = std::min_element(
        all.results.begin(), all.results.end(), [](const Result& a, const Result& b) {
            const bool best_a = a.plan.policy == "best";
            const bool best_b = b.plan.policy == "best";
            return best_a != best_b ? best_a : a.run.iteration < b.run.iteration;
        });
    return chosen == all.results.end() ? ""
                                       : fmt::format("verdict: {}: {}\n", policy_text(chosen->plan),
                                                     verdict_text(chosen->plan.predicted));
}

std::string to_text(const Simulated& all, const PlannerOptions& options) {
    std::string text = fmt::format(
        "{}: {} buckets, {:.1f} MiB, {} ranks, compute {:.3f} ms, coverage rate {:.2f}\n",
        printable(all.profile.name), all.profile.size(),
        static_cast<double>(all.profile.bytes()) / 0x1p20, all.ranks, all.profile.compute() * 1e3,
        coverage_rate(all.profile, all.fabric));
    for (const planner::Link& link : all.fabric.links) {
        const bool shown = link.kind.empty() || link.kind == link.name;
        text += fmt::format("link {}{}: {:.2f} GB/s all-reduce{}{}\n", printable(link.name),
                            shown ? "" : printable(" (" + link.kind + ")"), link.best_rate() / 1e9,
                            link.source.empty() ? "" : "; ", printable(link.source));
    }
    text += beyond_text(all.fabric, all_messages(all));
    text += coverage_text(all.profile, all.fabric);
    text += fmt::format(
        "\n{:<18} {:>12} {:>8} {:>11} {:>10} {:>8} {:>6} {:>6} {:>4} {:>6} {:>9} {:>8}  {}\n",
        "policy", "iteration ms", "speed-up", "exposed ms", "updates/it", "progress", "late",
        "late %", "age", "merged", "bound ms", "gap %", "waits for");
    for (const Result& result : all.results) {
        const planner::Prediction& p = result.plan.predicted;
        text += fmt::format(
            "{:<18} {:>12.3f} {:>8.3f} {:>11.3f} {:>10.3f} {:>8.3f} {:>6} {:>6.0f} {:>4} {:>6} "
            "{:>9.3f} {:>8.2f}  {}\n",
            policy_text(result.plan), result.run.iteration * 1e3,
            all.baseline / result.run.iteration, result.run.exposed * 1e3, p.updates, p.progress,
            p.max_delay, p.late * 100, p.max_age, p.max_merge, p.bound * 1e3, p.gap * 100,
            to_string(result.plan.barrier));
    }
    text += "\n" + verdict_line(all);
    text +=
        "speed-up is per iteration against the job as it is; a merged update counts once.\n"
        "progress: synchronous updates that an iteration is worth (--noise-scale, --age-price).\n"
        "\"waits for: layer\" needs a framework that lets a layer wait for its own gradient "
        "only.\n";
    text += fmt::format(
        "updates at most {} iterations late, {} merged, {} (--max-delay, --max-merge, --merge);\n"
        "mode deft by default does one of the two, and merges whole (docs/planner.md)\n",
        all.options.max_delay, all.options.max_merge,
        options.merge == "whole" ? "whole" : "in turns");
    return text;
}

}  // namespace

int sim_command(const PlannerOptions& options) {
    const Simulated all = simulate_policies(options);
    std::vector<Timeline> timelines;
    if (all.results.size() == 1 || !options.svg.empty() || !options.trace.empty()) {
        for (const Result& result : all.results) {
            timelines.push_back(timeline_of(result.plan, all.profile, all.fabric, all.simulation));
        }
    }
    write_pictures(options, timelines);
    if (options.json) {
        return print(to_json(all).dump(1) + "\n");
    }
    std::string text = to_text(all, options);
    if (all.results.size() == 1) {
        text += "\n" + text_timeline(timelines[0]);
    }
    return print(text);
}

}  // namespace deft::tools
