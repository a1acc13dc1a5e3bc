// SPDX-License-Identifier: Apache-2.0
#include "planner/convergence.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "planner/policies/policy.h"
#include "planner/stability.h"

namespace deft::planner {

double expected_state(double state, double step, double deviation) {
    const double m = state - step;
    if (deviation <= 0) {
        return std::abs(m);
    }
    const double z = m / deviation;
    // The folded normal's mean.
    return deviation * std::sqrt(2 / std::numbers::pi) * std::exp(-0.5 * z * z) +
           m * std::erf(z / std::numbers::sqrt2);
}

ConvergenceEstimate estimate_convergence(const Plan& plan, const GradientStatistics& s,
                                         double epsilon) {
    ConvergenceEstimate estimate;
    // Iterations summed per update, by bytes: plans that stagger pieces give fractions.
    double total = 0;
    for (const std::uint64_t bytes : plan.bucket_bytes) {
        total += static_cast<double>(bytes);
    }
    std::map<std::uint32_t, double> merged;
    std::uint32_t delay = 0;
    for (const Delivery& d : plan.deliveries) {
        merged[d.iteration] +=
            d.generation.count * static_cast<double>(d.end - d.begin) / std::max(total, 1.0);
        delay = std::max(delay, d.delay());
        estimate.step_multiplier = std::max(estimate.step_multiplier, double(d.generation.count));
    }
    estimate.synchronous = s.state;
    for (std::uint32_t t = 0; t < plan.period; ++t) {
        estimate.synchronous = expected_state(estimate.synchronous, s.learning_rate * s.mean,
                                              s.learning_rate * s.noise);
    }
    estimate.planned = s.state;
    for (const auto& [iteration, count] : merged) {
        estimate.step_multiplier = std::max(estimate.step_multiplier, count);
        estimate.planned = expected_state(estimate.planned, s.learning_rate * s.mean * count,
                                          s.learning_rate * s.noise * std::sqrt(count));
    }
    estimate.loss = estimate.synchronous > 0 ? std::abs(estimate.planned / estimate.synchronous - 1)
                                             : std::abs(estimate.planned);
    if (s.sharpness > 0) {
        // A sum of k is a step k times as long; zeros in between let momentum decay over them.
        const double a = s.sharpness * estimate.step_multiplier;
        const auto steps = static_cast<std::uint32_t>(std::lround(estimate.step_multiplier));
        const std::uint32_t late = (delay + steps - 1) / std::max(1U, steps);
        const double momentum = std::pow(s.momentum, estimate.step_multiplier);
        estimate.stable = a < stability_limit(momentum, late);
        estimate.price = delay_price(a, momentum, late);
    }
    estimate.accepted =
        estimate.loss <= epsilon && estimate.stable && estimate.price - 1 <= epsilon;
    if (!estimate.stable) {
        estimate.reason = "delay and merging leave the stable range of the learning rate";
    } else if (estimate.loss > epsilon) {
        estimate.reason = "merged updates progress differently from synchronous ones";
    } else if (!estimate.accepted) {
        estimate.reason = "delay slows progress by more than epsilon";
    }
    return estimate;
}

TightenedPlan tighten(std::string_view policy, const Profile& profile, const Fabric& fabric,
                      const Options& options, const GradientStatistics& statistics,
                      double epsilon) {
    Options tighter = options;
    TightenedPlan result;
    for (;; ++result.steps) {
        result.plan = make_plan(policy, profile, fabric, tighter);
        result.estimate = estimate_convergence(result.plan, statistics, epsilon);
        const Prediction& p = result.plan.predicted;
        const bool synchronous = p.max_delay == 0 && p.max_merge == 1;
        if (result.estimate.accepted || synchronous || result.steps >= 400) {
            return result;
        }
        // Wider knapsacks reduce merging; where nothing is merged any more, or where a policy has
        // no knapsacks, only the caps are left.
        if (policy == "deft" && p.max_merge > 1 && tighter.capacity_factor < 16) {
            tighter.capacity_factor *= 1.05;
        } else if (p.max_merge > 1) {
            tighter.max_merge = p.max_merge - 1;
            tighter.covap_interval = p.max_merge - 1;
        } else {
            tighter.max_delay = p.max_delay - 1;
        }
    }
}

double covap_coefficient(std::uint32_t interval, std::uint64_t iteration) {
    const double first = interval <= 8 ? 0.5 : 0.2;
    const std::uint64_t every = interval <= 8 ? 50 : 100;
    const std::uint64_t steps = iteration / every;  // whole ones
    return first + 0.1 * std::min((1 - first) / 0.1, static_cast<double>(steps));
}

double predicted_delivery_lead(double momentum, std::uint32_t delay) {
    double lead = 0;
    double power = 1;
    for (std::uint32_t d = 0; d < delay; ++d) {
        power *= momentum;
        lead += power;
    }
    return lead;
}

}  // namespace deft::planner
