// SPDX-License-Identifier: Apache-2.0
// Which networks lanes use, and what plans make of several.
#include "shim/control/networks.h"

#include <gtest/gtest.h>

#include <set>

#include "shim/control/split_plan.h"
#include "shim/settings/networks.h"
#include "tests/unit/shim/control/measured_job.h"

namespace deft::director {
namespace {

using namespace test;

TEST(Networks, ExactCutsEveryBucketOverAll) {
    Settings settings;
    settings.mode = ShimMode::Exact;
    const planner::Plan plan = plan_for(1.5, settings, {network(1.5, 1)});
    EXPECT_EQ(plan.predicted.verdict, planner::Verdict::Use);
    EXPECT_EQ(plan.predicted.max_delay, 0U);
    EXPECT_EQ(plan.predicted.max_merge, 1U);
    for (std::uint32_t bucket = 0; bucket < 8; ++bucket) {
        EXPECT_EQ(links_of_bucket(plan, bucket), (std::set<std::uint32_t>{0, 1})) << bucket;
    }
    // Half the time of the transfers, and compute that nothing can hide.
    EXPECT_NEAR(plan.predicted.iteration, kCompute * (1 - 0.6 * 7 / 8 + 1.5 / 2), 0.003);
    EXPECT_NEAR(plan.predicted.baseline, kCompute * (1 - 0.6 * 7 / 8 + 1.5), 0.003);
}

// 0.8 MB of every 4 MB belong on it.
TEST(Networks, ASlowOneGetsItsPartOfEveryBucketToo) {
    Settings settings;
    settings.mode = ShimMode::Exact;
    const planner::Plan plan = plan_for(1.5, settings, {network(1.5, 0.25)});
    for (std::uint32_t bucket = 0; bucket < 8; ++bucket) {
        EXPECT_EQ(links_of_bucket(plan, bucket), (std::set<std::uint32_t>{0, 1})) << bucket;
    }
    EXPECT_NEAR(plan.predicted.iteration, kCompute * (1 - 0.6 * 7 / 8 + 1.5 / 1.25), 0.003);
}

TEST(Networks, OneThatHelpsNothingIsLeftAlone) {
    Settings settings;
    settings.mode = ShimMode::Exact;
    EXPECT_EQ(plan_for(1.5, settings, {network(1.5, 0.01)}).predicted.verdict,
              planner::Verdict::Keep);
}

// Whole buckets on different networks wait for each other in the stream of the calls.
TEST(Networks, WhatIsNotLateIsNeverSpreadByWholeBuckets) {
    Settings settings;
    settings.mode = ShimMode::Deft;
    settings.max_merge = 2;
    for (const double coverage : {0.8, 1.2, 1.6, 2.4, 4.0}) {
        const planner::Plan plan = plan_for(coverage, settings, {network(coverage, 0.6)});
        for (std::uint32_t bucket = 0; bucket < 8; ++bucket) {
            EXPECT_EQ(links_of_bucket(plan, bucket).size(), 2U) << coverage;
        }
    }
}

TEST(Networks, CovapUsesThemToo) {
    Settings settings;
    settings.mode = ShimMode::Covap;
    settings.max_merge = 2;
    const planner::Plan plan = plan_for(3.0, settings, {network(3.0, 1)});
    EXPECT_EQ(plan.links.size(), 2U);
    EXPECT_EQ(plan.predicted.verdict, planner::Verdict::Use);
    EXPECT_EQ(links_of_bucket(plan, 0), (std::set<std::uint32_t>{0, 1}));
}

// A lane that is warmed up on one rank and a transfer of the job on another must not wait for each
// other.
TEST(Networks, NoLanesWhereNcclRunsOneCommunicatorAfterTheOther) {
    const auto good = [](int nccl, int driver, const char* order, const char* race) {
        return why_no_lanes({nccl, driver, order, race}).empty();
    };
    EXPECT_TRUE(good(22809, 13000, nullptr, nullptr));
    EXPECT_TRUE(good(22809, 13000, "0", nullptr));
    EXPECT_TRUE(good(22508, 12000, "1", nullptr)) << "it does not know the variable";
    EXPECT_TRUE(good(22800, 12030, "1", "0"));
    EXPECT_FALSE(good(22800, 12030, "1", nullptr));
    EXPECT_FALSE(good(22800, 12030, "1", "1"));
    EXPECT_FALSE(good(22800, 12030, "2", "1"));
    EXPECT_FALSE(good(22800, 12020, "1", "0"));
    EXPECT_FALSE(good(22800, 0, "1", "0")) << "no driver was found";
    EXPECT_FALSE(good(22707, 13000, "1", "0"));
    EXPECT_FALSE(good(22600, 13000, "1", "0"));
}

TEST(Networks, NoLanesWhereAllStreamsShareOneQueue) {
    const auto why = [](const char* connections) {
        Surroundings around{22809, 13000};
        around.max_connections = connections;
        return why_no_lanes(around);
    };
    EXPECT_EQ(why(nullptr), "");
    for (const char* good : {"", "0", "2", "8", "32", "10"}) {
        EXPECT_EQ(why(good), "") << good;
    }
    EXPECT_NE(why("1").find("CUDA_DEVICE_MAX_CONNECTIONS=1"), std::string::npos);
    EXPECT_NE(why("01"), "");
}

TEST(Networks, NoLanesThatAreNonblocking) {
    const auto why = [](int nccl, const char* blocking) {
        Surroundings around{nccl, 13000};
        around.comm_blocking = blocking;
        return why_no_lanes(around);
    };
    EXPECT_EQ(why(22809, nullptr), "");
    EXPECT_EQ(why(22809, "1"), "");
    EXPECT_EQ(why(21304, "0"), "") << "it does not know the variable";
    EXPECT_NE(why(21403, "0").find("NCCL_COMM_BLOCKING=0"), std::string::npos);
}

TEST(Networks, AreNamedAsNcclNamesThem) {
    using Names = std::vector<std::string>;
    const auto parsed = [](const char* text) {
        Names names{"unchanged"};
        std::string problem;
        const bool good = executor::parse_networks(text, names, problem);
        EXPECT_EQ(good, problem.empty()) << text;
        EXPECT_TRUE(good || names.empty()) << text;
        return good ? names : Names{"wrong"};
    };
    EXPECT_EQ(parsed(""), Names());
    EXPECT_EQ(parsed("IB"), Names{"IB"});
    EXPECT_EQ(parsed("IB,Socket,deft"), (Names{"IB", "Socket", "deft"}));
    EXPECT_EQ(parsed(" IB ,\tSocket"), (Names{"IB", "Socket"})) << "as people write lists";
    for (const char* text :
         {",", "IB,", ",IB", "IB,,Socket", "IB,ib", "IB Socket", "a,b,c,d,e", "\t",
          "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgggg"}) {
        EXPECT_EQ(parsed(text), Names{"wrong"}) << text;
    }
}

TEST(Networks, DeftsLinksStandBesideNcclsIb) {
    using List = std::vector<std::string>;
    EXPECT_EQ(networks_beside({}, nullptr, true), List{});
    EXPECT_EQ(networks_beside({"IB"}, nullptr, true), List{"IB"});
    EXPECT_EQ(networks_beside({}, "IB", true), List{"deft"});
    EXPECT_EQ(networks_beside({}, "IB", false), List{});
    EXPECT_EQ(networks_beside({"ib"}, "IB", true), List{"deft"});
    EXPECT_EQ(networks_beside({"IB", "deft"}, "IB", true), List{"deft"});
    EXPECT_EQ(networks_beside({"IB", "Socket"}, "IB", true), (List{"deft", "Socket"}));
    EXPECT_EQ(networks_beside({"Socket"}, "IB", true), List{"Socket"});
    EXPECT_EQ(networks_beside({"Socket", "IB"}, "Socket", true), List{"IB"});
    EXPECT_EQ(networks_beside({}, "Socket", true), List{});
}

std::vector<std::uint64_t> bytes_by_link(const planner::Plan& plan, std::size_t links) {
    std::vector<std::uint64_t> bytes(links);
    for (const planner::Transfer& transfer : plan.transfers) {
        bytes.at(transfer.link) += transfer.bytes();
    }
    return bytes;
}

// An all-reduce on two ranks moves as many bytes as the parts of a gathered layer have.
planner::Plan split(Series series, planner::Profile job, double times, std::string& note,
                    bool named = false) {
    planner::Link own = network(1, 1);
    own.name = "own";
    return choose_split_plan(series, job, {own, network(1, times)}, named, note);
}

TEST(Split, CutsEveryCallInProportion) {
    std::string note;
    for (const Series series : {Series::Shards, Series::Sums}) {
        const planner::Plan plan = split(series, job_of(1), 0.5, note);
        EXPECT_EQ(plan.predicted.verdict, planner::Verdict::Use) << note;
        EXPECT_FALSE(plan.predicted.late_or_merged());
        const std::vector<std::uint64_t> bytes = bytes_by_link(plan, 2);
        EXPECT_EQ(bytes[0] + bytes[1], 8 * kBytes);
        EXPECT_NEAR(static_cast<double>(bytes[0]) / static_cast<double>(bytes[1]), 2, 0.01);
        EXPECT_NEAR(plan.predicted.iteration, plan.predicted.baseline - kCompute / 3, 1e-3);
    }
}

// Of four ranks each sends three parts of a shard, where lanes were measured with sums.
TEST(Split, KnowsWhatAShardMoves) {
    planner::Profile job = job_of(1);
    job.ranks = 4;
    std::string note;
    const std::vector<std::uint64_t> bytes = bytes_by_link(split(Series::Shards, job, 1, note), 2);
    EXPECT_NEAR(static_cast<double>(bytes[0]) / static_cast<double>(bytes[1]), 2, 0.01);
}

TEST(Split, NeedsAnotherNetworkThatHelps) {
    std::string note;
    EXPECT_EQ(choose_split_plan(Series::Shards, job_of(1), {}, false, note).predicted.verdict,
              planner::Verdict::Keep);
    EXPECT_EQ(choose_split_plan(Series::Shards, job_of(1), {}, true, note).predicted.verdict,
              planner::Verdict::Keep);
    EXPECT_EQ(split(Series::Shards, job_of(1), 0.01, note).predicted.verdict,
              planner::Verdict::Keep);
    EXPECT_EQ(split(Series::Shards, job_of(1), 0.01, note, true).predicted.verdict,
              planner::Verdict::Use)
        << "the operator insists";
}

// The calls of a nonblocking communicator are never timed.
TEST(Split, GoesByLanesWhereNothingWasTimed) {
    planner::Profile job = job_of(1);
    for (planner::Bucket& bucket : job.buckets) {
        bucket.transfer = {};
    }
    std::string note;
    const std::vector<std::uint64_t> bytes = bytes_by_link(split(Series::Sums, job, 0.5, note), 2);
    EXPECT_NEAR(static_cast<double>(bytes[0]) / static_cast<double>(bytes[1]), 2, 0.01);
}

// What the job sends meanwhile goes over its own network.
TEST(Networks, TheJobsOwnStartsAsSoonAsAnyOther) {
    const std::vector<executor::LaneSpeed> speeds{{3e-3, 4e-9}, {1e-4, 8e-9}, {9.0, 9.0}};
    const std::vector<planner::Link> links = measured_links(speeds, {"Socket"});
    ASSERT_EQ(links.size(), 2U);
    EXPECT_EQ(links[0].name, "own");
    EXPECT_DOUBLE_EQ(links[0].cost.alpha, 1e-4);
    EXPECT_DOUBLE_EQ(links[0].cost.beta, 4e-9);
    EXPECT_EQ(links[1].name, "Socket");
    EXPECT_DOUBLE_EQ(links[1].cost.alpha, 1e-4);
    EXPECT_TRUE(measured_links({}, {"Socket"}).empty());
}

TEST(Networks, AreAsFastAsAnyCommunicatorHasSeenThem) {
    EXPECT_DOUBLE_EQ(fastest_per_byte("one", 2, 16e-9), 16e-9);
    EXPECT_DOUBLE_EQ(fastest_per_byte("one", 2, 8e-9), 8e-9);
    EXPECT_DOUBLE_EQ(fastest_per_byte("one", 2, 16e-9), 8e-9);
    EXPECT_DOUBLE_EQ(fastest_per_byte("one", 4, 16e-9), 16e-9) << "its rings send more";
    EXPECT_DOUBLE_EQ(fastest_per_byte("other", 2, 9e-9), 9e-9);
}

}  // namespace
}  // namespace deft::director
