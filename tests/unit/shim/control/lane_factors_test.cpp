// SPDX-License-Identifier: Apache-2.0
// What is made of the times that lanes took under a plan.
#include "shim/control/lane_factors.h"

#include <gtest/gtest.h>

#include "shim/control/split_plan.h"
#include "tests/unit/shim/control/measured_job.h"

namespace deft::director {
namespace {

using namespace test;
using executor::LaneUse;

// Of each call of the plan what its lanes were given, and `times` as long as they are thought to
// take, `late` seconds later.
std::vector<LaneUse> uses_of(const planner::Plan& plan, const planner::Fabric& fabric,
                             const std::vector<double>& times, double late = 0) {
    std::vector<LaneUse> uses;
    for (const planner::Transfer& part : plan.transfers) {
        LaneUse use{part.link, {part.bytes()}, 0, 10, part.bucket};
        const double seconds = fabric.links[part.link].seconds(static_cast<double>(part.bytes()));
        use.seconds = 10 * (late + times[part.link] * seconds);
        use.each.assign(10, static_cast<float>(late + times[part.link] * seconds));
        uses.push_back(use);
    }
    return uses;
}

struct Split {
    planner::Profile job = job_of(1.2);
    std::vector<planner::Link> networks{network(1.2, 1), network(1.2, 0.5)};

    Split() { networks[0].name = "own"; }
    planner::Fabric fabric() const { return split_fabric(Series::Shards, job, networks); }
    planner::Plan plan() const {
        std::string note;
        return choose_split_plan(Series::Shards, job, networks, false, note);
    }
};

double share_of(const planner::Plan& plan, std::uint32_t link) {
    double bytes = 0;
    double all = 0;
    for (const planner::Transfer& part : plan.transfers) {
        bytes += part.link == link ? static_cast<double>(part.bytes()) : 0;
        all += static_cast<double>(part.bytes());
    }
    return bytes / all;
}

TEST(LaneFactors, AreHowManyTimesAsLongLanesTook) {
    const Split split;
    const planner::Plan plan = split.plan();
    const auto factors = lane_factors(uses_of(plan, split.fabric(), {1.3, 0.9}), split.fabric());
    ASSERT_EQ(factors.size(), 2U);
    EXPECT_NEAR(factors[0], 1.3, 1e-9);
    EXPECT_NEAR(factors[1], 0.9, 1e-9);
    EXPECT_NE(in_words(factors, plan).find("1.300"), std::string::npos);
}

// Start-ups are no part of what a byte takes.
TEST(LaneFactors, CountWhatAPieceTakesToStart) {
    planner::Fabric fabric;
    fabric.links.resize(1);
    fabric.links[0].cost.alpha = 1e-3;
    fabric.links[0].cost.beta = 1e-9;
    const std::vector<LaneUse> uses{{0, {1'000'000, 1000}, 10 * 3.001e-3, 10},
                                    {0, {1000}, 20 * 1.001e-3, 20}};
    EXPECT_NEAR(lane_factors(uses, fabric).at(0), 1, 1e-9);
}

TEST(LaneFactors, OfALaneThatCarriedNothingAreOne) {
    const Split split;
    std::vector<LaneUse> uses{{0, {4'000'000}, 8.0, 8}, {1, {4'000'000}, 0, 0}};
    EXPECT_EQ(lane_factors(uses, split.fabric()).at(1), 1);
    EXPECT_GT(lane_factors(uses, split.fabric()).at(0), 1);
    uses[0].measured = 7;
    EXPECT_TRUE(lane_factors(uses, split.fabric()).empty()) << "too little is known";
    EXPECT_TRUE(lane_factors({}, split.fabric()).empty());
}

TEST(CutFactors, CutCallsAnew) {
    Split split;
    const planner::Plan plan = split.plan();
    EXPECT_NEAR(share_of(plan, 1), 1.0 / 3, 0.005);
    // The job's own network is as slow as the other.
    apply(cut_factors(uses_of(plan, split.fabric(), {2, 1}), split.fabric()), split.job,
          split.networks);
    const planner::Plan cut = split.plan();
    EXPECT_NEAR(share_of(cut, 1), 1.5 / 3.5, 0.005) << "half-way from a third to a half";
    EXPECT_NEAR(seconds_of_calls(cut, split.fabric()) / seconds_of_calls(plan, split.fabric()),
                6.0 / 7, 0.01);
}

// Both lanes of a call wait for a rank that comes late.
TEST(CutFactors, OfRanksThatComeLateNeverCutTooFar) {
    for (const double late : {0.0, 2e-3, 20e-3}) {
        Split split;
        const planner::Plan plan = split.plan();
        apply(cut_factors(uses_of(plan, split.fabric(), {1, 0.5}, late), split.fabric()), split.job,
              split.networks);
        const double share = share_of(split.plan(), 1);
        EXPECT_GT(share, share_of(plan, 1)) << late;
        EXPECT_LT(share, 0.505) << late;
    }
}

// A network that is a little slower than thought shows however late ranks come.
TEST(CutFactors, TakeNoLateRankForASlowNetwork) {
    for (const double late : {0.0, 2e-3, 200e-3}) {
        Split split;
        const auto uses = uses_of(split.plan(), split.fabric(), {1, 1.1}, late);
        apply(cut_factors(uses, split.fabric()), split.job, split.networks);
        EXPECT_NEAR(share_of(split.plan(), 1), 1 / (1 + 2 * 1.05), 0.002) << late;
    }
}

// The other calls share the network with other traffic.
TEST(CutFactors, AreOfTheCallsThatTookLeast) {
    const Split split;
    auto uses = uses_of(split.plan(), split.fabric(), {1, 1.1});
    for (LaneUse& use : uses) {
        const float beside = use.each.front() * (use.lane == 1 ? 4.0F : 1.5F);
        use.each.insert(use.each.begin() + 3, 10, beside);
        use.each[1] *= 0.99F;
    }
    const auto factors = cut_factors(uses, split.fabric());
    ASSERT_EQ(factors.size(), 2U);
    EXPECT_NEAR(factors[0], 1, 0.005);
    EXPECT_NEAR(factors[1], 1.05, 0.003) << "half of what was measured";
}

// Some actions take longer than thought in all their calls, as scatters do that copy shards first.
TEST(CutFactors, AreOfAllActions) {
    const Split split;
    auto uses = uses_of(split.plan(), split.fabric(), {1, 1});
    const auto slower = uses_of(split.plan(), split.fabric(), {2, 2.4});
    const std::size_t actions = uses.back().action + 1;
    for (int copies = 0; copies < 2; ++copies) {  // two in three
        for (LaneUse use : slower) {
            use.action += actions * static_cast<std::size_t>(copies + 1);
            uses.push_back(use);
        }
    }
    const auto factors = cut_factors(uses, split.fabric());
    ASSERT_EQ(factors.size(), 2U);
    EXPECT_GT(factors[1], 1.15) << "0.4 of what was thought, and half of it is believed";
}

TEST(CutFactors, AreOfCallsThatWereCut) {
    const Split split;
    const std::vector<LaneUse> whole{{0, {4'000'000}, 8, 8, 0, std::vector<float>(8, 1.0F)},
                                     {1, {4'000'000}, 8, 8, 1, std::vector<float>(8, 1.0F)}};
    EXPECT_TRUE(cut_factors(whole, split.fabric()).empty());
    std::vector<LaneUse> uses = uses_of(split.plan(), split.fabric(), {1, 1});
    EXPECT_EQ(cut_factors(uses, split.fabric()).size(), 2U);
    for (LaneUse& use : uses) {
        use.each.clear();
    }
    EXPECT_TRUE(cut_factors(uses, split.fabric()).empty()) << "too little is known";
    EXPECT_TRUE(cut_factors({}, split.fabric()).empty());
}

TEST(LaneFactors, MakeTransfersLonger) {
    Split split;
    const planner::Profile before = split.job;
    apply({1.5, 2}, split.job, split.networks);
    EXPECT_DOUBLE_EQ(split.job.buckets[3].transfer.median, 1.5 * before.buckets[3].transfer.median);
    EXPECT_DOUBLE_EQ(split.job.buckets[3].transfer.p90, 1.5 * before.buckets[3].transfer.p90);
    EXPECT_DOUBLE_EQ(split.networks[1].cost.beta, 2 * network(1.2, 0.5).cost.beta);
    std::vector<planner::Link> none;
    apply({2}, split.job, none);
    EXPECT_DOUBLE_EQ(split.job.buckets[3].transfer.median, 3 * before.buckets[3].transfer.median);
}

}  // namespace
}  // namespace deft::director
