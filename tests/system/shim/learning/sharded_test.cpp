// SPDX-License-Identifier: Apache-2.0
// Jobs whose gradients travel by reduce-scatter: without another network they are left exactly
// alone, with one their calls are cut over both. sharded_main checks each of its numbers.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/system/shim/process.h"

namespace deft::test {
namespace {

constexpr int kIterations = 150;
constexpr int kMostIterations = 20'000;

constexpr const char* kScattered =
    "gradients travel by reduce-scatter (FSDP or a distributed optimizer)";

std::vector<Outcome> run(const Folder& folder, const std::string& how, int iterations, int plans,
                         const Environment& more) {
    std::vector<Started> started;
    for (int rank = 0; rank < 2; ++rank) {
        Environment environment{{"NCCL_SOCKET_IFNAME", "lo"},
                                {"NCCL_HOSTID", "host" + std::to_string(rank)},
                                {"DEFT_INTERFACES", "lo"},
                                {"DEFT_LOG", "info"},
                                {"DEFT_OUT", folder / "rank%r.json"},
                                {"LD_PRELOAD", PRELOAD},
                                {"NCCL_NET_PLUGIN", PRELOAD}};
        for (const auto& [name, value] : more) {
            environment[name] = value;
        }
        std::vector<std::string> command{SHARDED_MAIN, how,           std::to_string(rank),
                                         "2",          folder / "id", std::to_string(iterations)};
        if (plans > 0) {
            command.push_back(std::to_string(plans));
        }
        started.push_back(start(command, environment, folder, "rank" + std::to_string(rank)));
    }
    std::vector<Outcome> ranks;
    for (const Started& rank : started) {
        ranks.push_back(finish(rank, folder));
    }
    return ranks;
}

class Sharded : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(Sharded, IsLeftAloneAndToldWhy) {
    const auto [how, mode] = GetParam();
    const Folder folder;
    Environment environment{{"DEFT_MODE", mode}, {"DEFT_WARMUP", "10"}};
    if (mode == std::string("deft")) {
        environment["DEFT_GRADIENTS"] = "trust";
        environment["DEFT_PLAN"] = "delay1";
    }
    std::vector<Outcome> ranks = run(folder, how, kIterations, 0, environment);
    for (std::size_t rank = 0; rank < 2; ++rank) {
        SCOPED_TRACE("rank " + std::to_string(rank));
        const std::string& err = ranks[rank].err;
        EXPECT_EQ(ranks[rank].status, 0) << err;
        EXPECT_EQ(ranks[rank].out, "done\n") << err;
        EXPECT_EQ(count(err, "WARN"), 0u) << err;
        EXPECT_EQ(count(err, "softdev: error"), 0u) << err;
        EXPECT_EQ(count(err, "all 2 ranks of the communicator agree"), 2u) << err;
        EXPECT_EQ(count(err, "plan in force"), 0u) << err;
        const nlohmann::json& report = ranks[1].reports["rank" + std::to_string(rank) + ".json"];
        SCOPED_TRACE(report.dump(1));
        EXPECT_EQ(report["iterations"]["stable"], true);
        EXPECT_GE(report["iterations"]["seen"], kIterations - 10);
        ASSERT_EQ(report["plans"].size(), 2u) << "one for each communicator";
        for (const nlohmann::json& plan : report["plans"]) {
            EXPECT_EQ(plan["switched"], 0);
            EXPECT_EQ(plan["executed_calls"], 0);
            EXPECT_EQ(plan["launched_bytes"], 0);
        }
        if (rank == 0) {  // the leader tells
            EXPECT_EQ(report["plans"][0]["reason"],
                      std::string(kScattered) +
                          ", which nothing but other networks would help "
                          "(DEFT_LANES)");
            EXPECT_EQ(report["plans"][1]["reason"], mode == std::string("deft") ? kScattered : "");
        }
    }
}

// How, and the communicators that get a plan: of the shards, and beside them.
class OverTwoNetworks : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(OverTwoNetworks, EveryNumberIsRight) {
    const auto [how, beside] = GetParam();
    const Folder folder;
    std::vector<Outcome> ranks = run(folder, how, kMostIterations, beside ? 2 : 1,
                                     {{"DEFT_MODE", "deft"},
                                      {"DEFT_GRADIENTS", "trust"},
                                      {"DEFT_PLAN", "delay0"},
                                      {"DEFT_LANES", "Socket"},
                                      {"DEFT_WARMUP", "0"}});
    for (std::size_t rank = 0; rank < 2; ++rank) {
        SCOPED_TRACE("rank " + std::to_string(rank));
        const std::string& err = ranks[rank].err;
        EXPECT_EQ(ranks[rank].status, 0) << err;
        EXPECT_EQ(ranks[rank].out, "done\n") << err;
        EXPECT_EQ(count(err, "WARN"), 0u) << err;
        EXPECT_EQ(count(err, "softdev: error"), 0u) << err;
        const nlohmann::json& report = ranks[1].reports["rank" + std::to_string(rank) + ".json"];
        SCOPED_TRACE(report.dump(1) + err);
        ASSERT_GE(report["plans"].size(), beside ? 2u : 1u);
        for (std::size_t i = 0; i < (beside ? 2u : 1u); ++i) {
            const nlohmann::json& plan = report["plans"][i];
            EXPECT_GE(plan["switched"], 1) << i;
            if (i == 1) {
                continue;  // sums too small to be cut: each is given to one network
            }
            EXPECT_GT(plan["executed_calls"], 20) << i;
            ASSERT_EQ(plan["lane_bytes"].size(), 2u) << i;
            EXPECT_GT(plan["lane_bytes"][0], 0) << i;
            EXPECT_GT(plan["lane_bytes"][1], 0) << i;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Job, OverTwoNetworks,
                         ::testing::Values(std::tuple{"fsdp", true}, std::tuple{"grouped", false},
                                           std::tuple{"nonblocking", false}),
                         [](const auto& info) { return std::string(std::get<0>(info.param)); });

INSTANTIATE_TEST_SUITE_P(Job, Sharded,
                         ::testing::Combine(::testing::Values("fsdp", "megatron"),
                                            ::testing::Values("deft", "exact")),
                         [](const auto& info) {
                             return std::string(std::get<0>(info.param)) + "_" +
                                    std::get<1>(info.param);
                         });

}  // namespace
}  // namespace deft::test
