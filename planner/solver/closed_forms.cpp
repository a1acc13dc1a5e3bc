// SPDX-License-Identifier: Apache-2.0
#include "planner/solver/closed_forms.h"

#include <algorithm>
#include <numeric>

namespace deft::planner {
namespace {

double sum(const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

double time_no_overlap(const Profile& profile, const std::vector<double>& costs) {
    return profile.compute() + sum(costs);
}

double time_ddp(const Profile& profile, const std::vector<double>& costs) {
    double last = profile.backward;
    double rest = 0;
    for (std::size_t i = costs.size(); i-- > 0;) {
        rest += costs[i];
        last = std::max(last, profile.buckets[i].ready + rest);
    }
    return profile.forward + last;
}

double time_wfbp(const Profile& profile, const std::vector<double>& costs) {
    const std::vector<double> tails = profile.tails();
    double total = profile.compute();
    double finish = 0;
    for (std::size_t i = 0; i < costs.size(); ++i) {
        finish = std::max(finish, profile.buckets[i].ready) + costs[i];
        total = std::max(total, finish + tails[i]);
    }
    return total;
}

double time_optimal(const Profile& profile, const std::vector<double>& costs) {
    const std::vector<double> tails = profile.tails();
    double total = profile.compute();
    double rest = 0;
    for (std::size_t i = costs.size(); i-- > 0;) {
        rest += costs[i];
        total = std::max(total, profile.buckets[i].ready + rest + tails[i]);
    }
    return total;
}

double time_dear(const Profile& profile, const std::vector<double>& costs) {
    double scattered = 0;
    for (std::size_t i = 0; i < costs.size(); ++i) {
        scattered = std::max(scattered, profile.buckets[i].ready) + costs[i] / 2;
    }
    double compute = profile.backward;
    double gathered = std::max(scattered, profile.backward);
    double owned = 0;
    for (std::size_t i = costs.size(); i-- > 0;) {
        gathered += costs[i] / 2;
        compute = std::max(compute, gathered) + profile.buckets[i].forward;
        owned += profile.buckets[i].forward;
    }
    return compute + (profile.forward - owned);
}

double time_delayed(const Profile& profile, const std::vector<double>& costs, double speeds,
                    double phi) {
    return std::max(profile.compute(), phi * sum(costs) / speeds);
}

}  // namespace deft::planner
