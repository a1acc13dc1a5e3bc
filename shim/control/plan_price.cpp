// SPDX-License-Identifier: Apache-2.0
#include "shim/control/plan_price.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace deft::director {
namespace {

// Of momentum that a schedule moves all the time.
constexpr std::size_t kMostLimits = 256;

}  // namespace

double PlanPrices::bound(const planner::Plan& plan, const executor::Optimizer& optimizer,
                         const executor::Prediction& prediction) {
    double least = INFINITY;
    if (!optimizer.known() || !plan.predicted.late_or_merged()) {
        return least;
    }
    if (limits_.size() > kMostLimits) {
        limits_.clear();
    }
    planner::LateSteps before;
    for (const planner::Delivery& delivery : plan.deliveries) {
        planner::LateSteps steps;
        steps.momentum = optimizer.momentum;
        steps.nesterov = optimizer.nesterov;
        steps.delay = delivery.delay();
        steps.merge = std::max(delivery.generation.count, 1U);
        const executor::Factors factors =
            executor::factors(prediction, steps.delay, steps.merge, steps.merge, steps.merge);
        steps.weights = {factors.now, factors.previous, factors.before_previous};
        if (steps == before || (steps.delay == 0 && steps.merge == 1)) {
            continue;
        }
        before = steps;
        auto [known, added] = limits_.try_emplace(steps, 0.0);
        if (added) {
            known->second = planner::stability_limit(steps);
        }
        least = std::min(least, known->second);
    }
    return kMargin * least;
}

std::string too_dear(const planner::Prediction& predicted, double rate_curvature, double bound) {
    const std::string late =
        predicted.max_delay > 0 ? "late by " + std::to_string(predicted.max_delay) : "";
    const std::string merged =
        predicted.max_merge > 1 ? "merged by " + std::to_string(predicted.max_merge) : "";
    const std::string both = late.empty() || merged.empty() ? "" : " and ";
    const double faster =
        predicted.iteration > 0 ? 100 * (predicted.baseline / predicted.iteration - 1) : 0;
    char figures[120];
    std::snprintf(figures, sizeof(figures),
                  " would be %.0f %% faster; rate x curvature %.2g, bound %.2g", faster,
                  rate_curvature, bound);
    return "gradients " + late + both + merged + figures;
}

}  // namespace deft::director
