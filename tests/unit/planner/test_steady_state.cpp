// SPDX-License-Identifier: Apache-2.0
// What a plan is predicted to take is what its execution takes in the long run, also where
// transfers and compute disturb each other and no period is soon like the one before.
#include <gtest/gtest.h>

#include <cmath>

#include "planner/policies/policy.h"
#include "planner/simulator/simulator.h"
#include "planner/simulator/steady_state.h"
#include "tests/unit/planner/random_cases.h"

namespace deft::planner {
namespace {

// Seconds per iteration over the second half of so many iterations.
double in_the_long_run(const Plan& plan, const Profile& profile, const Fabric& fabric,
                       std::uint32_t iterations) {
    const std::uint32_t half = iterations / 2 / plan.period * plan.period;
    Simulation simulation;
    simulation.iterations = 2 * half;
    const SimulationResult result = simulate(plan, profile, fabric, simulation);
    double sum = 0;
    for (std::uint32_t i = half; i < 2 * half; ++i) {
        sum += result.iterations[i];
    }
    return sum / half;
}

// Of mixed ages, of everything late and of DeFT's queues; links that share a pipe, slow compute
// down and are slowed down by it.
TEST(SteadyState, IsWhatPlansArePredictedToTake) {
    std::size_t disturbed = 0;
    for (std::uint64_t seed = 670; seed < 790; ++seed) {
        std::mt19937_64 random(seed);
        Profile profile =
            testing::random_profile(random, 1 + static_cast<std::uint32_t>(random() % 12));
        const Fabric fabric =
            testing::random_fabric(random, 1 + static_cast<std::uint32_t>(random() % 3), true);
        const double rate = testing::uniform(random, 0.4, 3) * profile.compute() *
                            fabric.best_rate() / static_cast<double>(profile.bytes());
        for (Bucket& bucket : profile.buckets) {
            bucket.bytes = std::max<std::uint64_t>(
                4096, static_cast<std::uint64_t>(static_cast<double>(bucket.bytes) * rate));
        }
        Options options;
        options.mixed_ages = true;
        options.max_delay = 1 + static_cast<std::uint32_t>(random() % 4);
        options.max_merge = 1 + static_cast<std::uint32_t>(random() % 4);
        for (const char* policy : {"best", "deft"}) {
            const Plan plan = make_plan(policy, profile, fabric, options);
            const double seconds = in_the_long_run(plan, profile, fabric, 400);
            EXPECT_NEAR(plan.predicted.iteration, seconds, 0.01 * seconds)
                << policy << ", seed " << seed << ", " << plan.name();
            disturbed += plan.predicted.max_delay > 0 && !fabric.groups.empty() ? 1 : 0;
        }
    }
    EXPECT_GT(disturbed, 20U);
}

// Two start-ups overlap, so of two periods one waits and the other hardly does. The last one alone
// would be off by a third.
TEST(SteadyState, OfUpdatesThatTakeTurnsIsTheirMean) {
    Profile profile;
    profile.buckets = {{"b", 26441281, 0.00264, 0.0032}};
    profile.forward = 0.0032;
    profile.backward = 0.003;
    Fabric fabric;
    fabric.links = {testing::line("near", 1.9e10, 0.484), testing::line("far", 2.8e9, 0.635)};
    fabric.links[0].in_flight = 2;
    Options options;
    options.max_delay = 3;
    options.max_merge = 2;
    for (const std::uint32_t merge : {1U, 2U}) {
        for (const std::uint32_t delay : {1U, 2U, 3U}) {
            const Plan plan = plan_generations(profile, fabric, options, merge, delay);
            const double seconds = in_the_long_run(plan, profile, fabric, 1200);
            EXPECT_NEAR(plan.predicted.iteration, seconds, 0.01 * seconds)
                << "merge " << merge << ", delay " << delay;
        }
    }
    const Plan plan = make_plan("best", profile, fabric, options);
    const double seconds = in_the_long_run(plan, profile, fabric, 1200);
    EXPECT_NEAR(plan.predicted.iteration, seconds, 0.01 * seconds) << plan.name();
}

TEST(SteadyState, WaitsForAsManyPeriodsAlikeAsAPeriodDependsOn) {
    SteadyState state(1, 2, 1, 1e-9);
    double at = 0;
    std::uint32_t iteration = 0;
    const auto period = [&](double first, double second, double finish) {
        state.ended(0, iteration / 2, finish);
        for (const double seconds : {first, second}) {
            state.began(iteration++, at);
            at += seconds;
        }
        return state.reached();
    };
    EXPECT_EQ(period(1, 2, 0.5), 0U);
    EXPECT_EQ(period(1, 2, 0.7), 0U);  // the transfer ended later
    EXPECT_EQ(period(1, 3, 0.7), 0U);  // took longer
    EXPECT_EQ(period(1, 3, 0.7), 0U);
    EXPECT_EQ(period(1, 3, 0.7), 0U);
    EXPECT_EQ(period(1, 3, 0.7), 10U);  // after two that were as the one before
}

}  // namespace
}  // namespace deft::planner
