// SPDX-License-Identifier: Apache-2.0
#include "planner/convergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "planner/policies/policy.h"
#include "planner/stability.h"
#include "tests/unit/planner/random_cases.h"

namespace deft::planner {
namespace {

TEST(Stability, TableOfTheFacts) {
    const struct {
        double momentum, limit[4], slack;
    } rows[] = {{0, {2, 1.0, 0.618, 0.445}, 6e-4},
                {0.5, {3.0, 0.5, 0.281, 0.199}, 6e-4},
                {0.9, {3.8, 0.100, 0.051, 0.035}, 6e-4},
                {0.95, {3.9, 0.050, 0.025, 0.017}, 6e-4},
                {0.99, {3.98, 0.010, 0.005, 0.0033}, 6e-5}};
    for (const auto& row : rows) {
        for (std::uint32_t delay = 0; delay < 4; ++delay) {
            EXPECT_NEAR(stability_limit(row.momentum, delay), row.limit[delay],
                        delay == 0 ? 1e-9 : row.slack)
                << row.momentum << " " << delay;
        }
    }
}

// The limit is where a run of the recursion itself starts to grow.
TEST(Stability, AgreesWithTheRecursion) {
    for (const double momentum : {0.0, 0.5, 0.9}) {
        for (std::uint32_t delay = 0; delay < 4; ++delay) {
            const double limit = stability_limit(momentum, delay);
            for (const double factor : {0.95, 1.05}) {
                std::vector<double> x(4, 1.0);
                double last = 0;
                for (int t = 0; t < 6000; ++t) {
                    const std::size_t n = x.size();
                    x.push_back(x[n - 1] + momentum * (x[n - 1] - x[n - 2]) -
                                factor * limit * x[n - 1 - delay]);
                    last = std::max(std::abs(x.back()), t > 5900 ? last : 0.0);
                    if (last > 1e100) {
                        break;
                    }
                }
                EXPECT_EQ(last < 1, factor < 1) << momentum << " " << delay << " " << factor;
            }
        }
    }
}

TEST(Stability, DelayCostsSteps) {
    EXPECT_EQ(delay_price(0.01, 0.9, 0), 1);
    EXPECT_GT(delay_price(0.5, 0, 1), 1);
    EXPECT_TRUE(std::isinf(delay_price(0.2, 0.9, 1)));  // 0.1 is the limit
    EXPECT_LT(delay_price(0.001, 0, 1), 1.01);
}

TEST(Convergence, FoldedNormalAgreesWithMonteCarlo) {
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    for (const auto& [state, step, deviation] :
         {std::tuple{1.0, 0.1, 0.5}, {0.2, 0.3, 0.4}, {0.01, 0.0, 1.0}, {2.0, 1.0, 0.0}}) {
        double sum = 0;
        const int n = 400000;
        for (int i = 0; i < n; ++i) {
            sum += std::abs(state - step + deviation * normal(random));
        }
        EXPECT_NEAR(expected_state(state, step, deviation), sum / n, 3e-3);
    }
}

Profile heavy(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    return testing::random_profile(random, 12);
}

TEST(Convergence, SynchronousPlansLoseNothing) {
    const Plan plan = make_plan("none", heavy(1), testing::one_link(5e9));
    GradientStatistics statistics;
    statistics.sharpness = 1;
    const ConvergenceEstimate estimate = estimate_convergence(plan, statistics);
    EXPECT_TRUE(estimate.accepted) << estimate.reason;
    EXPECT_EQ(estimate.loss, 0);
    EXPECT_EQ(estimate.price, 1);
}

TEST(Convergence, MergingLosesMoreTheMoreIsMerged) {
    GradientStatistics statistics;
    statistics.state = 0.05;
    statistics.mean = 0.2;
    statistics.noise = 1;
    double before = -1;
    for (const std::uint32_t count : {1U, 2U, 4U, 8U}) {
        Plan plan;
        plan.period = count;
        plan.bucket_bytes = {1000};
        plan.deliveries = {{count - 1, 0, 0, 1000, {0, count}}};
        const ConvergenceEstimate estimate = estimate_convergence(plan, statistics);
        EXPECT_GT(estimate.loss, before) << count;
        EXPECT_EQ(estimate.accepted, count == 1);
        EXPECT_EQ(estimate.step_multiplier, count);
        before = estimate.loss;
    }
}

TEST(Convergence, TighteningEndsWithinEpsilon) {
    const Profile profile = heavy(3);
    const Fabric fabric = testing::one_link(1.5e9);
    Options options;
    options.max_delay = options.max_merge = 100;
    options.max_period = 200;
    const Plan loose = make_plan("deft", profile, fabric, options);
    ASSERT_GT(loose.predicted.max_merge, 1U);
    GradientStatistics statistics;
    statistics.state = 0.3;
    statistics.mean = 1;
    statistics.noise = 4;
    ASSERT_FALSE(estimate_convergence(loose, statistics).accepted);
    const TightenedPlan tight = tighten("deft", profile, fabric, options, statistics);
    EXPECT_TRUE(tight.estimate.accepted) << tight.estimate.reason;
    EXPECT_GT(tight.steps, 0U);
    EXPECT_LT(tight.plan.predicted.max_merge, loose.predicted.max_merge);
    EXPECT_GE(tight.plan.predicted.iteration, loose.predicted.iteration);
}

TEST(Convergence, DelayBeyondTheStableRangeEndsSynchronous) {
    const Profile profile = heavy(4);
    Options options;
    GradientStatistics statistics;
    statistics.momentum = 0.9;
    statistics.sharpness = 0.5;  // five times the limit at delay 1
    const TightenedPlan tight =
        tighten("best", profile, testing::one_link(3e9), options, statistics);
    EXPECT_EQ(tight.plan.predicted.max_delay, 0U);
    EXPECT_TRUE(tight.estimate.accepted) << tight.estimate.reason;
}

TEST(Convergence, CovapCoefficientAndLead) {
    EXPECT_DOUBLE_EQ(covap_coefficient(3, 0), 0.5);
    EXPECT_DOUBLE_EQ(covap_coefficient(3, 249), 0.9);
    EXPECT_DOUBLE_EQ(covap_coefficient(3, 250), 1.0);
    EXPECT_DOUBLE_EQ(covap_coefficient(9, 0), 0.2);
    EXPECT_DOUBLE_EQ(covap_coefficient(9, 800), 1.0);
    EXPECT_DOUBLE_EQ(covap_coefficient(9, 1000000), 1.0);
    EXPECT_DOUBLE_EQ(predicted_delivery_lead(0.9, 1), 0.9);
    EXPECT_DOUBLE_EQ(predicted_delivery_lead(0.9, 2), 1.71);
    EXPECT_DOUBLE_EQ(predicted_delivery_lead(0, 2), 0);
}

}  // namespace
}  // namespace deft::planner
