// SPDX-License-Identifier: Apache-2.0
// The simulator against the closed forms: equal to 1e-9 where there is no overhead.
#include <gtest/gtest.h>

#include <algorithm>

#include "planner/policies/builder.h"
#include "planner/policies/policy.h"
#include "planner/simulator/check.h"
#include "planner/solver/closed_forms.h"
#include "tests/unit/planner/random_cases.h"

namespace deft::planner {
namespace {

struct Case {
    Profile profile;
    Fabric fabric;
    std::vector<double> costs;
};

class ClosedForms : public ::testing::TestWithParam<int> {
protected:
    Case draw() const {
        std::mt19937_64 random(static_cast<std::uint64_t>(GetParam()) * 7919 + 1);
        Case one;
        const auto n = static_cast<std::uint32_t>(1 + random() % 40);
        one.profile = testing::random_profile(random, n);
        one.fabric = testing::one_link(testing::uniform(random, 2e9, 5e10));
        one.costs = bucket_costs(one.profile, one.fabric.links[0]);
        return one;
    }
    static void expect_equal(double simulated, double formula) {
        EXPECT_NEAR(simulated, formula, 1e-9 * formula);
    }
};

TEST_P(ClosedForms, NoOverlap) {
    const Case one = draw();
    const Plan plan = plan_none(one.profile.without_overlap(), one.fabric, {});
    expect_equal(plan.predicted.iteration, time_no_overlap(one.profile, one.costs));
}

TEST_P(ClosedForms, Ddp) {
    const Case one = draw();
    const Plan plan = plan_none(one.profile, one.fabric, {});
    expect_equal(plan.predicted.iteration, time_ddp(one.profile, one.costs));
    EXPECT_NEAR(plan.predicted.exposed, plan.predicted.iteration - one.profile.compute(),
                1e-9 * plan.predicted.iteration);
}

TEST_P(ClosedForms, Wfbp) {
    const Case one = draw();
    Options options;
    options.barrier = Barrier::Layer;
    const Plan plan = plan_wfbp(one.profile, one.fabric, options);
    expect_equal(plan.predicted.iteration, time_wfbp(one.profile, one.costs));
}

// Preemption at whole bytes: sizes a thousand times larger on a link as much faster make a byte
// too small to see.
TEST_P(ClosedForms, OptimalIsReachedByIdealPriority) {
    Case one = draw();
    for (Bucket& bucket : one.profile.buckets) {
        bucket.bytes *= 10000;
    }
    one.fabric.links[0].cost.beta /= 10000;
    Options options;
    options.partition_bytes = 0;
    options.grain = 1;
    const Plan plan = plan_bytescheduler(one.profile, one.fabric, options);
    expect_equal(plan.predicted.iteration, time_optimal(one.profile, one.costs));
}

TEST_P(ClosedForms, Dear) {
    const Case one = draw();
    Options options;
    options.fusion_bytes = 1;  // none are fused
    const Plan plan = plan_dear(one.profile, one.fabric, options);
    expect_equal(plan.predicted.iteration, time_dear(one.profile, one.costs));
}

TEST_P(ClosedForms, DelayedByOneIsBoundByVolumeOnly) {
    const Case one = draw();
    Options options;
    options.max_merge = 1;
    options.noise = 0;
    options.objective = Objective::IterationTime;
    const Plan plan = plan_best(one.profile, one.fabric, options);
    EXPECT_LE(plan.predicted.iteration, time_delayed(one.profile, one.costs, 1, 1) * (1 + 1e-4));
    EXPECT_GE(plan.predicted.iteration, time_delayed(one.profile, one.costs, 1, 1) * (1 - 1e-9));
}

// facts: T_wfbp <= F + T_opt, hence ordering alone gains at most 1 + F/(F+B).
TEST_P(ClosedForms, OrderingGainsAtMostForward) {
    const Case one = draw();
    EXPECT_LE(time_ddp(one.profile, one.costs),
              (one.profile.forward + time_optimal(one.profile, one.costs)) * (1 + 1e-12));
    EXPECT_LE(time_optimal(one.profile, one.costs),
              time_wfbp(one.profile, one.costs) * (1 + 1e-12));
    EXPECT_LE(time_wfbp(one.profile, one.costs), time_ddp(one.profile, one.costs) * (1 + 1e-12));
}

INSTANTIATE_TEST_SUITE_P(Random, ClosedForms, ::testing::Range(0, 200));

TEST(ClosedForms, TwoBucketsByHand) {
    Profile profile;
    profile.buckets = {{"out", 100, 1, 1}, {"in", 300, 2, 1}};
    profile.forward = 2;
    profile.backward = 2;
    const std::vector<double> costs = {2, 3};
    EXPECT_DOUBLE_EQ(time_no_overlap(profile, costs), 9);
    EXPECT_DOUBLE_EQ(time_ddp(profile, costs), 2 + 6);          // link busy 1..6
    EXPECT_DOUBLE_EQ(time_wfbp(profile, costs), 6 + 2);         // input side last
    EXPECT_DOUBLE_EQ(time_optimal(profile, costs), 2 + 3 + 2);  // preempted at 2, in 2..5, out 5..6
    EXPECT_DOUBLE_EQ(time_dear(profile, costs), 1 + 1 + 1.5 + 1.5 + 1 + 1);
}

}  // namespace
}  // namespace deft::planner
