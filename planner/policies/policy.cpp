// SPDX-License-Identifier: Apache-2.0
#include "planner/policies/policy.h"

#include <stdexcept>

#include "planner/model/progress.h"

namespace deft::planner {

const std::vector<Policy>& policies() {
    static const std::vector<Policy> kAll = {
        {"none", plan_none, true, "the job as it is: first ready, first sent; the update waits"},
        {"wfbp", plan_wfbp, true, "wait-free backpropagation (Poseidon, DDP)"},
        {"mg-wfbp", plan_mg_wfbp, true, "merged-gradient WFBP: fuse where a start-up is saved"},
        {"bytescheduler", plan_bytescheduler, true, "partition, priority by layer, credit"},
        {"us-byte", plan_us_byte, true, "unequal-sized blocks in two phases"},
        {"dear", plan_dear, true, "reduce-scatter under backward, all-gather under forward"},
        {"deft", plan_deft, false, "knapsacks over links and stages, delayed and merged updates"},
        {"covap", plan_covap, false, "every I-th piece per iteration, the rest as residuals"},
        {"edf", plan_edf, true, "deadline first, opening links by marginal benefit"},
        {"fewest-links", plan_fewest_links, true, "as fast with as few links as possible"},
        {"best", plan_best, false, "the soonest at the same loss, within the caps"},
    };
    return kAll;
}

const Policy* find_policy(std::string_view name) {
    for (const Policy& policy : policies()) {
        if (name == policy.name) {
            return &policy;
        }
    }
    return nullptr;
}

Plan make_plan(std::string_view name, const Profile& profile, const Fabric& fabric,
               const Options& options) {
    const Policy* policy = find_policy(name);
    if (policy == nullptr) {
        throw std::invalid_argument("no policy is called \"" + std::string(name) + "\"");
    }
    if (const std::string why = profile.problem(); !why.empty()) {
        throw std::invalid_argument("profile: " + why);
    }
    if (const std::string why = fabric.problem(); !why.empty()) {
        throw std::invalid_argument("fabric: " + why);
    }
    // The plugin stripes: there is one link to plan for. The job as it is runs over it as well.
    const Fabric seen = fabric.striped && fabric.links.size() > 1 ? fabric.merged() : fabric;
    Plan plan = policy->make(profile, seen, options);
    Prediction& p = plan.predicted;
    p.baseline = plan_none(profile, seen, options).predicted.iteration;
    p.progress = progress_per_iteration(plan, options);
    const bool gains = seconds_that_count(plan, options) < p.baseline * (1 - options.noise);
    const bool allowed = p.max_delay <= options.max_delay && p.max_merge <= options.max_merge;
    p.verdict = !gains ? Verdict::Keep : allowed ? Verdict::Use : Verdict::Unsafe;
    return plan;
}

}  // namespace deft::planner
