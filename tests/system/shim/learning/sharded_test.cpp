// SPDX-License-Identifier: Apache-2.0
// Jobs whose gradients travel by reduce-scatter are recognised and left exactly alone: sharded_main
// checks each of its numbers.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/system/shim/process.h"

namespace deft::test {
namespace {

constexpr int kIterations = 150;

class Sharded : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(Sharded, IsLeftAloneAndToldWhy) {
    const auto [how, mode] = GetParam();
    const Folder folder;
    std::vector<Started> started;
    for (int rank = 0; rank < 2; ++rank) {
        Environment environment{{"NCCL_SOCKET_IFNAME", "lo"},
                                {"NCCL_HOSTID", "host" + std::to_string(rank)},
                                {"DEFT_INTERFACES", "lo"},
                                {"DEFT_LOG", "info"},
                                {"DEFT_MODE", mode},
                                {"DEFT_WARMUP", "10"},
                                {"DEFT_OUT", folder / "rank%r.json"},
                                {"LD_PRELOAD", PRELOAD},
                                {"NCCL_NET_PLUGIN", PRELOAD}};
        if (mode == std::string("deft")) {
            environment["DEFT_GRADIENTS"] = "trust";
            environment["DEFT_PLAN"] = "delay1";
        }
        started.push_back(start({SHARDED_MAIN, how, std::to_string(rank), "2", folder / "id",
                                 std::to_string(kIterations)},
                                environment, folder, "rank" + std::to_string(rank)));
    }
    std::vector<Outcome> ranks;
    for (const Started& rank : started) {
        ranks.push_back(finish(rank, folder));
    }
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
            if (rank == 0) {  // the leader tells
                EXPECT_EQ(plan["reason"],
                          "gradients travel by reduce-scatter (FSDP or a distributed optimizer)");
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Job, Sharded,
                         ::testing::Combine(::testing::Values("fsdp", "megatron"),
                                            ::testing::Values("deft", "exact")),
                         [](const auto& info) {
                             return std::string(std::get<0>(info.param)) + "_" +
                                    std::get<1>(info.param);
                         });

}  // namespace
}  // namespace deft::test
