// SPDX-License-Identifier: Apache-2.0
#include "planner/solver/bounds.h"

#include <algorithm>
#include <cmath>

#include "planner/solver/closed_forms.h"

namespace deft::planner {

namespace {

double synchronous(const Profile& profile, Barrier barrier, const std::vector<double>& costs) {
    return barrier == Barrier::Update ? time_ddp(profile, costs) : time_optimal(profile, costs);
}

double synchronous(const Profile& profile, Barrier barrier, double rate) {
    std::vector<double> costs;
    costs.reserve(profile.size());
    for (const Bucket& bucket : profile.buckets) {
        costs.push_back(static_cast<double>(bucket.bytes) / rate);
    }
    return synchronous(profile, barrier, costs);
}

// What is used by its own iteration's update, in a plan of one iteration: nothing else waits.
double fresh_bytes(const Plan& plan, const Profile& profile, double rate) {
    std::vector<double> costs(profile.size(), 0.0);
    for (const Delivery& d : plan.deliveries) {
        costs[d.bucket] += d.delay() == 0 ? static_cast<double>(d.end - d.begin) / rate : 0.0;
    }
    return synchronous(profile, plan.barrier, costs);
}

// The update that gets a whole generation waits for all of it, the iterations between for nothing.
double whole_generations(const Profile& profile, Barrier barrier, double rate,
                         std::uint32_t merge) {
    const double one = synchronous(profile, barrier, rate);
    return std::max(profile.compute(), (one + (merge - 1) * profile.compute()) / merge);
}

}  // namespace

double lower_bound(const Profile& profile, const Fabric& fabric, Barrier barrier,
                   std::uint32_t max_delay, std::uint32_t max_merge) {
    const double rate = fabric.best_rate() * std::max(1U, max_merge);
    // Merged and not late: an update waits for what it gets. Least is waited where every iteration
    // sends its share of the model (convexity: time is the largest of straight lines in the bytes).
    return max_delay == 0
               ? std::max(profile.compute(), synchronous(profile, barrier, rate))
               : std::max(profile.compute(), static_cast<double>(profile.bytes()) / rate);
}

double lower_bound(const Plan& plan, const Profile& profile, const Fabric& fabric) {
    std::uint32_t delay = 0;
    std::uint32_t merge = 1;
    bool staggered = false;  // updates in different iterations of the period, as COVAP's
    for (const Delivery& d : plan.deliveries) {
        delay = std::max(delay, d.delay());
        merge = std::max(merge, d.generation.count);
        if (d.iteration != plan.deliveries.front().iteration) {
            staggered = true;
        }
    }
    if (delay == 0 && merge > 1 && !staggered) {
        return whole_generations(profile, plan.barrier, fabric.best_rate(), merge);
    }
    const double least = lower_bound(profile, fabric, plan.barrier, delay, merge);
    const bool mixed = delay > 0 && merge == 1 && plan.period == 1;
    return mixed ? std::max(least, fresh_bytes(plan, profile, fabric.best_rate())) : least;
}

double lower_bound(const Profile& profile, const Fabric& fabric, const Options& options) {
    return options.complete_generations && options.max_delay == 0
               ? whole_generations(profile, options.barrier, fabric.best_rate(),
                                   std::max(1U, options.max_merge))
               : lower_bound(profile, fabric, options.barrier, options.max_delay,
                             options.max_merge);
}

}  // namespace deft::planner
