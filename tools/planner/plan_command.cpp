// SPDX-License-Identifier: Apache-2.0
// `deft plan`: one plan, as a table and a timeline or as JSON.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "planner/model/plan_json.h"
#include "planner/policies/policy.h"
#include "planner/simulator/check.h"
#include "tools/planner/commands.h"
#include "tools/planner/fields.h"
#include "tools/planner/profile_reader.h"
#include "tools/planner/validity.h"
#include "tools/text_output.h"

namespace deft::tools {
namespace {

// A named policy returns its plan, whatever it is worth: what the job as it is does to the same
// loss.
std::string better_as_it_is(const planner::Prediction& p) {
    const bool loses = p.progress > 0 && p.baseline < p.iteration / p.progress * (1 - 1e-9);
    return loses ? fmt::format(
                       " (the job as it is is better by progress: {:.3f} ms for a synchronous "
                       "update's worth, this plan {:.3f})",
                       p.baseline * 1e3, p.iteration / p.progress * 1e3)
                 : "";
}

std::string describe(const planner::Plan& plan, const planner::Profile& profile,
                     const planner::Fabric& fabric) {
    const planner::Prediction& p = plan.predicted;
    std::string text = fmt::format(
        "policy {} for {}: {} buckets, {:.1f} MiB, forward {:.3f} ms, backward {:.3f} ms\n",
        policy_text(plan), printable(profile.name), profile.size(),
        static_cast<double>(profile.bytes()) / 0x1p20, profile.forward * 1e3,
        profile.backward * 1e3);
    text += fmt::format(
        "iteration {:.3f} ms (job as it is {:.3f}, no plan of this kind below {:.3f}, gap {:.2f} "
        "%)\n",
        p.iteration * 1e3, p.baseline * 1e3, p.bound * 1e3, p.gap * 100);
    text += fmt::format(
        "updates per iteration {:.3f}, latest {} and oldest {} iterations late, {} merged, "
        "{:.0f} % of the bytes late; an iteration is worth {:.3f} synchronous ones\n",
        p.updates, p.max_delay, p.max_age, p.max_merge, 100 * p.late, p.progress);
    text += beyond_text(fabric, messages_of({&plan}, fabric));
    text += coverage_text(profile, fabric);
    text += fmt::format("verdict: {}{}\n\n", verdict_text(p), better_as_it_is(p));
    text += fmt::format("{:>5} {:>4} {:<8} {:>6} {:>12} {:>12} {:<14} {:<14} {:>10} {:>10}\n",
                        "order", "iter", "stage", "bucket", "from byte", "bytes", "operation",
                        "link", "start ms", "end ms");
    for (const planner::Transfer& t : plan.transfers) {
        text += fmt::format(
            "{:>5} {:>4} {:<8} {:>6} {:>12} {:>12} {:<14} {:<14} {:>10.3f} {:>10.3f}\n", t.order,
            t.iteration, to_string(t.stage), t.bucket, t.begin, t.bytes(), to_string(t.operation),
            printable(fabric.links[t.link].name), t.start * 1e3, t.finish * 1e3);
    }
    return text;
}

// The plan's own format, and which of its links are used where nobody measured them.
std::string with_validity(const planner::Plan& plan, const planner::Fabric& fabric) {
    nlohmann::json links = nlohmann::json::object();
    const std::vector<MessageSizes> messages = messages_of({&plan}, fabric);
    for (std::size_t i = 0; i < fabric.links.size(); ++i) {
        const std::string beyond = beyond_of(fabric.links[i], messages[i]);
        if (!beyond.empty()) {
            links[fabric.links[i].name] = beyond;
        }
    }
    std::string text = planner::plan_to_json(plan);
    text.pop_back();
    return text +
           ",\"beyond\":" + links.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
           "}\n";
}

// A saved plan, against the profile and the links it is to run on and within the caps.
int check_saved(const PlannerOptions& options, const planner::Profile& profile,
                const planner::Fabric& fabric) {
    planner::Plan plan;
    try {
        plan = planner::plan_from_json(read_file(options.check, kMostFileBytes));
    } catch (const JsonError& error) {
        throw InputError(options.check + ": " + error.what());
    }
    const auto problems = check_plan(plan, profile, fabric, options.options());
    if (!problems.empty()) {
        throw InputError(fmt::format(
            "{}: {}{}", options.check, problems.front(),
            problems.size() > 1 ? fmt::format(" (and {} more)", problems.size() - 1) : ""));
    }
    return print(fmt::format("{}: sound: policy {}, period {}, {} transfers, {:.3f} ms; "
                             "fingerprint {:016x}\n",
                             printable(options.check), printable(plan.policy), plan.period,
                             plan.transfers.size(), plan.predicted.iteration * 1e3,
                             plan.fingerprint()) +
                 beyond_text(fabric, messages_of({&plan}, fabric)));
}

}  // namespace

int plan_command(const PlannerOptions& options) {
    const planner::Profile profile = options.read(options.profile);
    const planner::Fabric read = options.fabric(options.ranks_for(profile));
    const planner::Fabric fabric = read.striped && read.links.size() > 1 ? read.merged() : read;
    if (!options.check.empty()) {
        return check_saved(options, profile, fabric);
    }
    const planner::Plan plan = make_plan(options.policy.empty() ? "best" : options.policy, profile,
                                         fabric, options.options());
    planner::Options any = options.options();
    any.max_delay = std::max(any.max_delay, plan.predicted.max_delay);
    any.max_merge = std::max(any.max_merge, plan.predicted.max_merge);
    any.max_period = std::max(any.max_period, plan.period);
    for (const std::string& problem : check_plan(plan, profile, fabric, any)) {
        complain("the plan does not pass its check: " + problem);
        return kProblem;
    }
    if (!options.save_profile.empty()) {
        write_file(options.save_profile, profile_to_json(profile).dump(1) + "\n");
    }
    if (!options.out.empty()) {
        write_file(options.out, with_validity(plan, fabric));
    }
    const Timeline timeline = timeline_of(plan, profile, fabric, {});
    write_pictures(options, {timeline});
    if (options.json) {
        return print(with_validity(plan, fabric));
    }
    return print(describe(plan, profile, fabric) + "\n" + text_timeline(timeline));
}

}  // namespace deft::tools
