// SPDX-License-Identifier: Apache-2.0
// Policy `dear`: Zhang et al., DeAR (ICDCS 2023, arXiv 2302.12445). An all-reduce is a
// reduce-scatter, sent first come first served under backward, and an all-gather, sent in forward
// order under the next forward, each needed by its own layer only; in between everything
// synchronises. Neighbours are fused up to a buffer size (their default: 25 MB).
// Deviations: the threshold is a setting, not tuned by Bayesian optimisation.
#include <algorithm>

#include "planner/policies/builder.h"
#include "planner/policies/policy.h"

namespace deft::planner {

Plan plan_dear(const Profile& profile, const Fabric& fabric, const Options& options) {
    const std::uint32_t n = static_cast<std::uint32_t>(profile.size());
    std::vector<bool> joins(n, false);  // bucket i travels with bucket i - 1
    std::uint64_t held = n > 0 ? profile.buckets[0].bytes : 0;
    for (std::uint32_t i = 1; i < n; ++i) {
        joins[i] = held + profile.buckets[i].bytes <= options.fusion_bytes;
        held = (joins[i] ? held : 0) + profile.buckets[i].bytes;
    }
    PlanBuilder builder("dear", Barrier::Layer);
    for (std::uint32_t i = 0; i < n; ++i) {
        if (joins[i]) {
            builder.fuse();
        }
        builder.add(i, 0, profile.buckets[i].bytes, 0).operation = Operation::ReduceScatter;
    }
    for (std::uint32_t i = n; i-- > 0;) {
        if (i + 1 < n && joins[i + 1]) {
            builder.fuse();
        }
        Transfer& t = builder.add(i, 0, profile.buckets[i].bytes, 0);
        t.operation = Operation::AllGather;
        t.stage = Stage::Forward;
    }
    return builder.finish(profile, fabric, options);
}

}  // namespace deft::planner
