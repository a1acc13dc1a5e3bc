// SPDX-License-Identifier: Apache-2.0
#include "shim/planner/bounds.h"

#include <algorithm>
#include <cmath>

#include "shim/planner/closed_forms.h"

namespace deft::planner {

double lower_bound(const Profile& profile, const Fabric& fabric, Barrier barrier,
                   std::uint32_t max_delay, std::uint32_t max_merge) {
    const double rate = fabric.best_rate();
    std::vector<double> costs;
    costs.reserve(profile.size());
    for (const Bucket& bucket : profile.buckets) {
        costs.push_back(static_cast<double>(bucket.bytes) / rate);
    }
    // Merged and not late: the update that gets the sum still waits for it, the others for nothing.
    // Over `max_merge` iterations that is one synchronous iteration and the rest compute.
    const double synchronous =
        barrier == Barrier::Update ? time_ddp(profile, costs) : time_optimal(profile, costs);
    if (max_delay == 0) {
        const double merge = std::max(1U, max_merge);
        return std::max(profile.compute(), (synchronous + (merge - 1) * profile.compute()) / merge);
    }
    return time_delayed(profile, costs, 1.0, 1.0 / std::max(1U, max_merge));
}

double lower_bound(const Plan& plan, const Profile& profile, const Fabric& fabric) {
    std::uint32_t delay = 0;
    std::uint32_t merge = 1;
    bool cut = false;
    for (const Delivery& d : plan.deliveries) {
        delay = std::max(delay, d.delay());
        merge = std::max(merge, d.generation.count);
        cut = cut || d.generation.count > 1;
    }
    // Staggered merging (COVAP) sends a part of the model in every iteration: no iteration is the
    // synchronous one, so only the volume bounds it.
    bool staggered = false;
    for (const Delivery& d : plan.deliveries) {
        staggered = staggered || (cut && d.iteration != plan.deliveries.front().iteration);
    }
    if (delay == 0 && staggered) {
        delay = 1;
    }
    return lower_bound(profile, fabric, plan.barrier, delay, merge);
}

}  // namespace deft::planner
