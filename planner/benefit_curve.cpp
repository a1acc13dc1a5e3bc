// SPDX-License-Identifier: Apache-2.0
#include "planner/benefit_curve.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "planner/solver/closed_forms.h"

namespace deft::planner {

BenefitBounds benefit_bounds(const Profile& profile) {
    BenefitBounds bounds;
    bounds.over_overlap = profile.compute() > 0 ? 1 + profile.forward / profile.compute() : 1;
    return bounds;
}

BenefitPoint benefit_at(const Profile& profile, const std::vector<double>& costs, double speeds,
                        const Options& options) {
    const double merge = std::max(1U, options.max_merge);
    std::vector<double> shared = costs;
    std::vector<double> shares = costs;
    for (std::size_t i = 0; i < costs.size(); ++i) {
        shared[i] /= speeds;
        shares[i] /= speeds * merge;
    }
    BenefitPoint point;
    const double total = std::accumulate(costs.begin(), costs.end(), 0.0);
    point.ratio = total > 0 ? profile.compute() / total : INFINITY;
    point.no_overlap = time_no_overlap(profile, costs);
    point.as_is = time_ddp(profile, costs);
    point.striped = time_ddp(profile, shared);
    point.layered = time_optimal(profile, shared);
    const bool late = options.max_delay > 0;
    point.late = late ? time_delayed(profile, costs, speeds, 1) : point.layered;
    point.merged =
        late ? time_delayed(profile, costs, speeds, 1 / merge) : time_optimal(profile, shares);
    point.compute = profile.compute();
    return point;
}

std::vector<BenefitPoint> benefit_curve(const Profile& profile, const std::vector<double>& costs,
                                        double speeds, const Options& options, std::size_t count) {
    constexpr double kOctaves = 8;  // from 1/16 to 16
    const double total = std::accumulate(costs.begin(), costs.end(), 0.0);
    std::vector<BenefitPoint> curve;
    const bool drawn = total > 0 && profile.compute() > 0;  // else the ratio is always the same
    for (std::size_t k = 0; drawn && k < count; ++k) {
        const double part = static_cast<double>(k) / static_cast<double>(count - 1);
        const double ratio = std::pow(2, kOctaves * (part - 0.5));
        std::vector<double> scaled = costs;
        for (double& cost : scaled) {
            cost *= profile.compute() / ratio / total;
        }
        curve.push_back(benefit_at(profile, scaled, speeds, options));
    }
    return curve;
}

}  // namespace deft::planner
