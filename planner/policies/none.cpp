// SPDX-License-Identifier: Apache-2.0
// Policy `none`: the job as it is. Every bucket goes out whole when the job hands it over, on the
// link the job uses, and optimizer.step() waits for all of them, as PyTorch DDP does.
#include "planner/policies/builder.h"
#include "planner/policies/policy.h"

namespace deft::planner {

Plan plan_none(const Profile& profile, const Fabric& fabric, const Options& options) {
    PlanBuilder builder("none", Barrier::Update);
    for (std::uint32_t i = 0; i < profile.size(); ++i) {
        builder.add(i, 0, profile.buckets[i].bytes, 0);
    }
    return builder.finish(profile, fabric, options);
}

}  // namespace deft::planner
