// SPDX-License-Identifier: Apache-2.0
// What plans ask of the job's steps.
#include "shim/control/plan_price.h"

#include <gtest/gtest.h>

#include <cmath>

#include "planner/model/progress.h"

namespace deft::director {
namespace {

executor::Optimizer momentum(double beta) {
    executor::Optimizer optimizer;
    optimizer.family = executor::Optimizer::Family::Sgd;
    optimizer.momentum = beta;
    return optimizer;
}

// Every `merge` iterations the sum of as many, late by `delay`.
planner::Plan plan_of(std::uint32_t delay, std::uint32_t merge) {
    planner::Plan plan;
    plan.period = merge;
    planner::Delivery delivery;
    delivery.iteration = merge - 1;
    delivery.end = 1000;
    delivery.generation.count = merge;
    delivery.generation.first = -static_cast<std::int32_t>(delay);
    plan.deliveries = {delivery};
    plan.predicted.max_delay = delay;
    plan.predicted.max_merge = merge;
    return plan;
}

TEST(PlanPrice, ALateGradientIsPricedByMomentumAndPrediction) {
    PlanPrices prices;
    const planner::Plan late = plan_of(1, 1);
    const auto bound = [&](const char* prediction, double beta) {
        executor::Prediction parsed;
        std::string problem;
        EXPECT_TRUE(executor::parse_prediction(prediction, momentum(beta), 1, 1, parsed, problem));
        return prices.bound(late, momentum(beta), parsed) / PlanPrices::kMargin;
    };
    EXPECT_NEAR(bound("none", 0.9), 0.1, 0.002);
    EXPECT_NEAR(bound("lead:0.9", 0.9), 0.25, 0.005);
    EXPECT_NEAR(bound("quad", 0.9), 0.49, 0.01);
    EXPECT_NEAR(bound("none", 0), 1, 0.02);
    EXPECT_NEAR(bound("damp:0.5", 0), 2, 0.04);
}

TEST(PlanPrice, CapsAreLoweredUntilNothingIsLateOrMerged) {
    Settings settings;
    settings.combined = true;
    settings.max_delay = 2;
    settings.max_merge = 8;  // of which the plan takes three
    EXPECT_TRUE(lower_caps(plan_of(2, 3).predicted, settings));
    EXPECT_FALSE(settings.combined) << "either alone may be borne";
    EXPECT_EQ(settings.max_delay, 2U);
    EXPECT_TRUE(lower_caps(plan_of(2, 1).predicted, settings));
    EXPECT_TRUE(lower_caps(plan_of(1, 1).predicted, settings));
    EXPECT_EQ(settings.max_delay, 0U);
    EXPECT_EQ(settings.max_merge, 8U);
    EXPECT_TRUE(lower_caps(plan_of(0, 3).predicted, settings));
    EXPECT_TRUE(lower_caps(plan_of(0, 2).predicted, settings));
    EXPECT_EQ(settings.max_merge, 1U);
    EXPECT_FALSE(lower_caps(plan_of(0, 1).predicted, settings));
}

TEST(PlanPrice, TheOldestOfMixedAgesCounts) {
    PlanPrices prices;
    planner::Plan mixed = plan_of(0, 1);
    EXPECT_TRUE(std::isinf(prices.bound(mixed, momentum(0.9), {}))) << "nothing of it is late";
    planner::Plan late = plan_of(1, 1);
    mixed.deliveries.push_back(late.deliveries.front());
    mixed.deliveries.back().bucket = 1;
    mixed.predicted.max_delay = 1;
    EXPECT_EQ(prices.bound(mixed, momentum(0.9), {}), prices.bound(late, momentum(0.9), {}));
}

TEST(PlanPrice, MergingIsPriced) {
    PlanPrices prices;
    const double merged = prices.bound(plan_of(0, 2), momentum(0.9), {});
    EXPECT_LT(merged, PlanPrices::kMargin * 3.8) << "less than fresh gradients";
    EXPECT_GT(merged, 0);
    EXPECT_LT(prices.bound(plan_of(0, 4), momentum(0.9), {}), merged);
    EXPECT_LT(prices.bound(plan_of(1, 2), momentum(0.9), {}), merged);
}

// Of fractional frequencies too each generation counts: the one that sums most and comes latest.
TEST(PlanPrice, OfFractionalFrequenciesTheDearestGenerationCounts) {
    PlanPrices prices;
    planner::Plan plan = plan_of(1, 1);  // three updates in four iterations
    planner::Plan second = plan_of(1, 2);
    plan.deliveries.push_back(second.deliveries.front());
    plan.predicted.max_merge = 2;
    const double both = prices.bound(plan, momentum(0.9), {});
    EXPECT_EQ(both, prices.bound(second, momentum(0.9), {}));
    EXPECT_LT(both, prices.bound(plan_of(1, 1), momentum(0.9), {}));
}

TEST(PlanPrice, LatenessCostsMoreTheNearerTheStepsAreToTheirLimit) {
    PlanPrices prices;
    EXPECT_NEAR(prices.age_price(0.05, momentum(0.9), {}), 1, 0.02);
    EXPECT_EQ(prices.age_price(0.001, momentum(0.9), {}), planner::kLeastAgePrice);
    EXPECT_TRUE(std::isinf(prices.age_price(0.2, momentum(0.9), {})));
    executor::Prediction quad;
    quad.kind = executor::PredictionKind::Quad;
    EXPECT_NEAR(prices.age_price(0.1, momentum(0.9), quad), 0.26, 0.01)
        << "predicted, it bears more";
    executor::Optimizer adam;
    adam.family = executor::Optimizer::Family::Adaptive;
    adam.momentum = 0.9;
    EXPECT_EQ(prices.age_price(0.001, adam, {}), planner::kAgePrice) << "trainings needed that";
    EXPECT_EQ(prices.age_price(0.001, {}, {}), planner::kAgePrice);
}

TEST(PlanPrice, WhatIsNotPricedIsSaid) {
    EXPECT_EQ(not_priced(plan_of(1, 1), true, false), "");
    EXPECT_EQ(not_priced(plan_of(0, 1), false, true), "") << "nothing of it is late";
    EXPECT_NE(not_priced(plan_of(1, 1), true, true).find("DEFT_PLAN"), std::string::npos);
    EXPECT_NE(not_priced(plan_of(0, 2), false, false).find("was not measured"), std::string::npos);
}

TEST(PlanPrice, AnOptimizerThatIsNotKnownHasNone) {
    PlanPrices prices;
    EXPECT_TRUE(std::isinf(prices.bound(plan_of(1, 1), {}, {})));
}

TEST(PlanPrice, WhatIsNotTakenIsSaidInFigures) {
    planner::Prediction predicted = plan_of(1, 1).predicted;
    predicted.baseline = 0.0131;
    predicted.iteration = 0.01;
    EXPECT_EQ(too_dear(predicted, 0.387, 0.12),
              "gradients late by 1 would be 31 % faster; rate x curvature 0.39, bound 0.12");
    predicted.max_merge = 2;
    EXPECT_EQ(too_dear(predicted, 0.387, 0.12),
              "gradients late by 1 and merged by 2 would be 31 % faster; rate x curvature 0.39, "
              "bound 0.12");
}

}  // namespace
}  // namespace deft::director
