// SPDX-License-Identifier: Apache-2.0
#include "planner/modes.h"

#include <algorithm>

#include "planner/model/progress.h"
#include "planner/policies/policy.h"
#include "planner/simulator/evaluate.h"

namespace deft::planner {
namespace {

// So many iterations in an update at the most, as in `best`.
constexpr std::uint32_t kMostMerged = 8;

// What the executor may do, by time.
Options executor(Options options) {
    options.allow_fusion = false;
    options.halves = false;
    options.least_piece = kLeastPart;
    options.complete_generations = true;
    options.objective = Objective::IterationTime;
    options.predict = true;
    return options;
}

ModeTime time_of(Plan plan, const Profile& profile, const Fabric& fabric, const Options& options) {
    evaluate(plan, profile, fabric);
    return {plan.predicted.iteration, progress_per_iteration(plan, options)};
}

}  // namespace

ModeTime layerwise_time(const Profile& profile, const Fabric& fabric, const Options& with) {
    Options options = executor(with);
    options.barrier = Barrier::Layer;
    options.max_delay = 0;
    options.max_merge = 1;
    return {plan_best(profile, fabric, options).predicted.iteration, 1};
}

ModeTime late_time(const Profile& profile, const Fabric& fabric, const Options& with) {
    const Options options = executor(with);
    return time_of(plan_generations(profile, fabric, options, 1, 1), profile, fabric, options);
}

ModeTime merged_time(const Profile& profile, const Fabric& fabric, const Options& with) {
    const Options options = executor(with);
    ModeTime least = time_of(plan_none(profile, fabric, options), profile, fabric, options);
    for (std::uint32_t merge = 2; merge <= std::min(options.max_merge, kMostMerged); ++merge) {
        const ModeTime one =
            time_of(plan_generations(profile, fabric, options, merge, 0), profile, fabric, options);
        least = one.seconds < least.seconds ? one : least;
    }
    return least;
}

}  // namespace deft::planner
