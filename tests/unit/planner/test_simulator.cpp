// SPDX-License-Identifier: Apache-2.0
#include "planner/simulator/simulator.h"

#include <gtest/gtest.h>

#include <cmath>

#include "planner/model/collective.h"
#include "planner/policies/builder.h"
#include "planner/policies/policy.h"
#include "planner/simulator/evaluate.h"
#include "planner/solver/closed_forms.h"
#include "tests/unit/planner/random_cases.h"

namespace deft::planner {
namespace {

// Two buckets of 1e9 bytes, ready at 1 and 2 s; forward 1 s; a link of 1e9 B/s.
Profile two() {
    Profile profile;
    profile.buckets = {{"out", 1000000000, 1, 0.5}, {"in", 1000000000, 2, 0.5}};
    profile.forward = 1;
    profile.backward = 2;
    return profile;
}

double run(const Profile& profile, const Fabric& fabric, const Simulation& simulation = {}) {
    return simulate(plan_none(profile, fabric, {}), profile, fabric, simulation).iteration;
}

TEST(Simulator, PlainByHand) {
    EXPECT_DOUBLE_EQ(run(two(), testing::one_link(1e9)), 4);
}

TEST(Simulator, PerMessageCostIsPaidPerMessage) {
    Fabric fabric = testing::one_link(1e9);
    fabric.links[0].per_message = 0.1;
    EXPECT_NEAR(run(two(), fabric), 4.1 + 0.1, 1e-12);  // 1..2.1..3.2, then forward
    fabric.links[0].in_flight = 2;  // the second start-up hides under the first transfer
    EXPECT_NEAR(run(two(), fabric), 4.1, 1e-12);
}

TEST(Simulator, FusedTransfersAreOneMessage) {
    Fabric fabric = testing::one_link(1e9);
    fabric.links[0].per_message = 0.25;
    Plan plan = plan_none(two(), fabric, {});
    plan.transfers[1].message = plan.transfers[0].message;
    evaluate(plan, two(), fabric);
    EXPECT_NEAR(plan.predicted.iteration, 2 + 0.25 + 2 + 1, 1e-12);  // both wait for the second
}

TEST(Simulator, ComputeSlowsDownUnderTransfers) {
    Fabric fabric = testing::one_link(1e9);
    fabric.links[0].compute_slowdown = 1;  // half speed
    // out: 1..2 while backward does 0.5 of its second; rest of backward 2..2.5; in: 2.5..3.5.
    EXPECT_NEAR(run(two(), fabric), 4.5, 1e-12);
}

TEST(Simulator, TransfersSlowDownUnderCompute) {
    Fabric fabric = testing::one_link(1e9);
    fabric.links[0].overlap_penalty = 1;
    // out: half of it by 2, the rest alone by 2.5; in: 2.5..3.5.
    EXPECT_NEAR(run(two(), fabric), 4.5, 1e-12);
}

TEST(Simulator, LinksShareAnUpstreamPipe) {
    Profile profile = two();
    profile.buckets[0].ready = 2;
    Fabric fabric;
    fabric.links = {testing::line("a", 1e9), testing::line("b", 1e9)};
    Plan plan = plan_none(profile, fabric, {});
    plan.transfers[1].link = 1;
    evaluate(plan, profile, fabric);
    EXPECT_NEAR(plan.predicted.iteration, 4, 1e-12);
    fabric.groups.push_back({"uplink", 1.25e9});
    fabric.links[0].group = fabric.links[1].group = "uplink";
    evaluate(plan, profile, fabric);
    EXPECT_NEAR(plan.predicted.iteration, 2 + 2 / 1.25 + 1, 1e-12);
}

TEST(Simulator, RateChangesAndDeadLinks) {
    const Fabric fabric = testing::one_link(1e9);
    Simulation simulation;
    simulation.iterations = 1;
    simulation.rate_changes = {{1.5, 0, 0.5}};
    // out: half by 1.5, the rest by 2.5; in: 2.5..4.5; forward.
    EXPECT_NEAR(run(two(), fabric, simulation), 5.5, 1e-12);
    simulation.rate_changes = {{1.5, 0, 0}, {3, 0, 1}};
    EXPECT_NEAR(run(two(), fabric, simulation), 3 + 0.5 + 1 + 1, 1e-12);
    simulation.rate_changes = {{1.5, 0, 0}};
    const Plan plan = plan_none(two(), fabric, {});
    const SimulationResult dead = simulate(plan, two(), fabric, simulation);
    EXPECT_TRUE(dead.stuck);
    EXPECT_TRUE(std::isinf(dead.iteration));
}

TEST(Simulator, TheSlowestRankDecides) {
    const Fabric fabric = testing::one_link(1e9);
    Simulation simulation;
    simulation.ranks = 8;
    simulation.compute_factor = {1, 1, 2};
    // ready at 2 and 4, backward ends at 4; in: 4..5; forward of the straggler takes 2.
    EXPECT_NEAR(run(two(), fabric, simulation), 7, 1e-12);
    simulation.compute_factor = {};
    EXPECT_NEAR(run(two(), fabric, simulation), 4, 1e-12);
}

TEST(Simulator, JitterIsRepeatableAndBounded) {
    std::mt19937_64 random(1);
    const Profile profile = testing::random_profile(random, 10);
    const Fabric fabric = testing::one_link(2e9);
    Simulation simulation;
    simulation.ranks = 64;
    simulation.jitter = 0.2;
    simulation.iterations = 10;
    const double once = run(profile, fabric, simulation);
    EXPECT_EQ(run(profile, fabric, simulation), once);
    const double plain = run(profile, fabric);
    EXPECT_GT(once, plain);
    EXPECT_LE(once, 1.2 * plain);
    simulation.seed = 2;
    EXPECT_NE(run(profile, fabric, simulation), once);
}

TEST(Simulator, HierarchicalMessagesOverlapInTheirHops) {
    Profile profile = two();
    profile.buckets[0].ready = 2;
    Fabric fabric;
    fabric.links = {hierarchical_link("h", 2, 2, 0, 1e9, 0, 1e9)};
    // Each bucket: 0.5 inside, 1 between, 0.5 inside. The second enters the node while the first
    // is between nodes: 2 + 0.5 + 1 + 1 + 0.5, then forward.
    EXPECT_NEAR(run(profile, fabric), 6, 1e-12);
}

TEST(Simulator, AllGatherWaitsForItsReduceScatterOnAnotherLink) {
    Profile profile = two();
    Fabric fabric;
    fabric.links = {testing::line("a", 1e9), testing::line("b", 1e9)};
    PlanBuilder builder("by hand", Barrier::Update);
    for (std::uint32_t i = 0; i < 2; ++i) {
        builder.add(i, 0, 1000000000, 0).operation = Operation::ReduceScatter;
        builder.add(i, 0, 1000000000, 1).operation = Operation::AllGather;
    }
    const Plan plan = builder.finish(profile, fabric, {});
    // RS 1..1.5 and 2..2.5 on a; AG 1.5..2 and 2.5..3 on b.
    EXPECT_NEAR(plan.predicted.iteration, 4, 1e-12);
    EXPECT_NEAR(plan.transfers[3].start, 2.5, 1e-12);
}

TEST(Simulator, PerfectlyOverlappedDelayCostsNothing) {
    Options options;
    options.max_merge = 1;
    options.objective = Objective::IterationTime;
    const Plan plan = make_plan("best", two(), testing::one_link(1e9), options);
    EXPECT_DOUBLE_EQ(plan.predicted.iteration, 3);
    EXPECT_EQ(plan.predicted.max_delay, 1U);
    EXPECT_EQ(plan.predicted.exposed, 0);
}

TEST(Simulator, TimelineBarsAreInOrderAndAddUp) {
    const Fabric fabric = testing::one_link(1e9);
    Simulation simulation;
    simulation.iterations = 3;
    simulation.timeline = true;
    const Plan plan = plan_none(two(), fabric, {});
    const SimulationResult result = simulate(plan, two(), fabric, simulation);
    double compute = 0;
    int transfers = 0;
    for (const Interval& bar : result.timeline) {
        EXPECT_TRUE(std::isfinite(bar.start) && std::isfinite(bar.finish));
        EXPECT_LE(bar.start, bar.finish);
        if (bar.kind == Interval::Kind::Transfer) {
            ++transfers;
        } else if (bar.kind != Interval::Kind::Wait) {
            compute += bar.finish - bar.start;
        }
    }
    EXPECT_EQ(transfers, 6);
    EXPECT_NEAR(compute, 9, 1e-9);
}

// Ten thousand ranks, each with its own pace, and 200 buckets. The time is shown, not asserted.
TEST(Simulator, TenThousandRanks) {
    std::mt19937_64 random(1);
    const Profile profile = testing::random_profile(random, 200);
    Fabric fabric;
    fabric.links = {ring_link("nic", 10000, 1e-6, 1.25e10)};
    Simulation simulation;
    simulation.ranks = 10000;
    simulation.jitter = 0.1;
    simulation.iterations = 5;
    const Plan plan = plan_none(profile, fabric, {});
    const SimulationResult result = simulate(plan, profile, fabric, simulation);
    EXPECT_GT(result.iteration, plan.predicted.iteration);
    EXPECT_LT(result.iteration, 1.2 * plan.predicted.iteration);
}

}  // namespace
}  // namespace deft::planner
