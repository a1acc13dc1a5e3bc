// SPDX-License-Identifier: Apache-2.0
#include "shim/control/plan_price.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "planner/model/progress.h"

namespace deft::director {
namespace {

// Of momentum that a schedule moves all the time.
constexpr std::size_t kMostLimits = 256;

bool heavy_ball(const executor::Optimizer& optimizer) {
    return optimizer.family == executor::Optimizer::Family::Sgd && optimizer.momentum > 0 &&
           !optimizer.nesterov;
}

planner::LateSteps steps_of(const executor::Optimizer& optimizer,
                            const executor::Prediction& prediction, std::uint32_t delay,
                            std::uint32_t merge) {
    planner::LateSteps steps;
    steps.momentum = optimizer.momentum;
    steps.nesterov = optimizer.nesterov;
    steps.delay = delay;
    steps.merge = merge;
    const executor::Factors factors = executor::factors(prediction, delay, merge, merge, merge);
    steps.weights = {factors.now, factors.previous, factors.before_previous};
    return steps;
}

}  // namespace

double PlanPrices::limit(const planner::LateSteps& steps) {
    if (limits_.size() > kMostLimits) {
        limits_.clear();
    }
    auto [known, added] = limits_.try_emplace(steps, 0.0);
    if (added) {
        known->second = planner::stability_limit(steps);
    }
    return known->second;
}

double PlanPrices::assumed_age_price(const executor::Optimizer& optimizer,
                                     const executor::Prediction& prediction) {
    const bool predicted = prediction.kind != executor::PredictionKind::None;
    return heavy_ball(optimizer) && predicted ? planner::kLeastAgePrice : planner::kAgePrice;
}

double PlanPrices::age_price(double rate_curvature, const executor::Optimizer& optimizer,
                             const executor::Prediction& prediction) {
    if (!optimizer.known()) {
        return planner::kAgePrice;
    }
    return planner::measured_age_price(rate_curvature, limit(steps_of(optimizer, prediction, 1, 1)),
                                       heavy_ball(optimizer));
}

double PlanPrices::bound(const planner::Plan& plan, const executor::Optimizer& optimizer,
                         const executor::Prediction& prediction) {
    double least = INFINITY;
    if (!optimizer.known() || !plan.predicted.late_or_merged()) {
        return least;
    }
    planner::LateSteps before;
    for (const planner::Delivery& delivery : plan.deliveries) {
        const planner::LateSteps steps = steps_of(optimizer, prediction, delivery.delay(),
                                                  std::max(delivery.generation.count, 1U));
        if (steps == before || (steps.delay == 0 && steps.merge == 1)) {
            continue;
        }
        before = steps;
        least = std::min(least, limit(steps));
    }
    return kMargin * least;
}

bool lower_caps(const planner::Prediction& plan, Settings& settings) {
    if (plan.max_delay > 0 && plan.max_merge > 1) {
        settings.combined = false;
    } else if (plan.max_delay > 0) {
        settings.max_delay = plan.max_delay - 1;
    } else if (settings.max_merge > 1) {
        settings.max_merge = std::min(settings.max_merge, plan.max_merge) - 1;
    } else {
        return false;
    }
    return true;
}

std::string not_priced(const planner::Plan& plan, bool measured, bool named) {
    if (!plan.predicted.late_or_merged()) {
        return "";
    }
    return named ? "DEFT_PLAN names the plan, so what it asks of the job's steps is not priced"
           : measured
               ? ""
               : "what the plan asks of the job's steps is not priced: rate x curvature was not "
                 "measured";
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
