// SPDX-License-Identifier: Apache-2.0
// Jobs whose gradients travel over two networks of NCCL: deft's plugin and NCCL's own Socket.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <fstream>

#include "tests/system/shim/control/plan_job.h"

namespace deft::test {
namespace {

Environment over_two(const std::string& plan, const std::string& networks) {
    return {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", plan}, {"DEFT_LANES", networks}};
}

// What rank 0 reports of its plan.
nlohmann::json plan_of(const Folder& folder) {
    std::ifstream file(folder / "report-0.json");
    const nlohmann::json report = nlohmann::json::parse(file, nullptr, false);
    if (!report.is_object() || !report.contains("plans") || report["plans"].empty()) {
        ADD_FAILURE() << "no plan in the report";
        return {};
    }
    return report["plans"][0];
}

Job run_reported(const Folder& folder, int ranks, Environment environment) {
    environment["DEFT_OUT"] = folder / "report-%r.json";
    return finish_ranks(start_ranks(folder, ranks, 20, environment, "large"), folder);
}

TEST(Lanes, GradientsAreCutOverTwoNetworks) {
    struct Case {
        const char* plan;
        int lag;
        int ranks;
    };
    for (const auto& [plan, lag, ranks] :
         {Case{"delay0", 0, 2}, Case{"delay1", 1, 3}, Case{"merge2", 1, 2}}) {
        SCOPED_TRACE(std::string(plan) + ", ranks: " + std::to_string(ranks));
        const Folder folder;
        const Job job = run_reported(folder, ranks, over_two(plan, "Socket"));
        expect_sound(job);
        for (const int bucket : {0, 1}) {
            EXPECT_EQ(lags(job.rows[0], bucket).rbegin()->first, lag);
        }
        EXPECT_EQ(count(job.ranks[0].err, "lane Socket: "), 1u) << job.ranks[0].err;
        std::map<int, int> used;  // by link
        const nlohmann::json reported = plan_of(folder);
        for (const auto& transfer : reported["transfers"]) {
            ++used[transfer.value("link", -1)];
        }
        EXPECT_GE(used[0], 1);
        EXPECT_GE(used[1], 1) << "the large bucket is cut";
        // And it was so: bytes given to each lane, as counted.
        const auto sent = reported["lane_bytes"].get<std::vector<std::uint64_t>>();
        ASSERT_EQ(sent.size(), 2U);
        EXPECT_GE(sent[0], 1U << 20);
        EXPECT_GE(sent[1], 1U << 20) << "a piece has a megabyte at least";
        EXPECT_EQ(sent[0] + sent[1], reported["launched_bytes"]);
    }
}

TEST(Lanes, ExactNeverChangesANumber) {
    const Folder folder;
    const Environment environment{
        {"DEFT_MODE", "exact"}, {"DEFT_LANES", "Socket"}, {"DEFT_OUT", folder / "report-%r.json"}};
    const Job job = finish_ranks(start_ranks(folder, 2, 250, environment, "plain large"), folder);
    expect_sound(job);
    EXPECT_EQ(count(job.ranks[0].err, "lane Socket: "), 1U) << job.ranks[0].err;
    for (const Row& row : job.rows[0]) {
        EXPECT_EQ(row.bucket[0], row.iteration + 1);
        EXPECT_EQ(row.bucket[1], row.iteration + 1);
    }
}

TEST(Lanes, ANetworkThatNcclDoesNotKnowIsDoneWithout) {
    const Folder folder;
    const Job job = run_reported(folder, 2, over_two("delay1", "Nowhere"));
    for (const Outcome& rank : job.ranks) {
        ASSERT_EQ(rank.status, 0) << rank.out << rank.err;
    }
    EXPECT_EQ(count(job.ranks[0].err, "the job's own network is used alone"), 1u)
        << job.ranks[0].err;
    EXPECT_EQ(count(job.ranks[1].err, "[deft] WARN"), 0u) << job.ranks[1].err;
    EXPECT_EQ(count(job.ranks[0].err, "plan in force"), 1u) << job.ranks[0].err;
    EXPECT_EQ(lags(job.rows[0], 0).rbegin()->first, 1);
    EXPECT_EQ(plan_of(folder)["switched"], 1);
}

TEST(Lanes, NcclNetLeavesNothingToChoose) {
    const Folder folder;
    Environment environment = over_two("delay1", "Socket");
    environment["NCCL_NET"] = "deft";
    const Job job = run_reported(folder, 2, environment);
    for (const Outcome& rank : job.ranks) {
        ASSERT_EQ(rank.status, 0) << rank.out << rank.err;
        EXPECT_EQ(count(rank.err, "[deft] WARN"), 1u) << rank.err;
        EXPECT_EQ(count(rank.err, "unset NCCL_NET"), 1u) << rank.err;
    }
    EXPECT_EQ(count(job.ranks[0].err, "lane Socket: "), 0u) << job.ranks[0].err;
    EXPECT_EQ(lags(job.rows[0], 0).rbegin()->first, 1);
}

// The other ranks measure nothing that this one would not join.
TEST(Lanes, ARankThatCannotLeavesAllToTheJobsOwnNetwork) {
    for (const int rank : {0, 1}) {
        SCOPED_TRACE("rank " + std::to_string(rank));
        const Folder folder;
        const Job job = finish_ranks(start_ranks(folder, 2, 20, over_two("delay1", "Socket"),
                                                 "large", {{rank, {{"NCCL_NET", "deft"}}}}),
                                     folder);
        for (const Outcome& outcome : job.ranks) {
            ASSERT_EQ(outcome.status, 0) << outcome.out << outcome.err;
            EXPECT_EQ(count(outcome.err, "plan in force"), 1U) << outcome.err;
        }
        EXPECT_EQ(count(job.ranks[0].err, "lane Socket: "), 0U) << job.ranks[0].err;
        EXPECT_EQ(count(job.ranks[0].err, "too long"), 0U) << job.ranks[0].err;
        EXPECT_EQ(count(job.ranks[rank].err, "unset NCCL_NET"), 1U) << job.ranks[rank].err;
        EXPECT_EQ(lags(job.rows[0], 0).rbegin()->first, 1);
    }
}

}  // namespace
}  // namespace deft::test
