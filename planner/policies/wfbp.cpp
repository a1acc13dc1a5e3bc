// SPDX-License-Identifier: Apache-2.0
// Policy `wfbp`: wait-free backpropagation (Zhang et al., Poseidon, USENIX ATC 2017). Each gradient
// is sent when ready, first come first served, on one link.
// Deviations: none where Options::barrier is Layer (each layer waits only for itself). With the
// default, Barrier::Update, it is what PyTorch DDP makes of WFBP: the update waits for all.
#include "planner/policies/builder.h"
#include "planner/policies/policy.h"

namespace deft::planner {

Plan plan_wfbp(const Profile& profile, const Fabric& fabric, const Options& options) {
    PlanBuilder builder("wfbp", options.barrier);
    for (std::uint32_t i = 0; i < profile.size(); ++i) {
        builder.add(i, 0, profile.buckets[i].bytes, 0);
    }
    return builder.finish(profile, fabric, options);
}

}  // namespace deft::planner
