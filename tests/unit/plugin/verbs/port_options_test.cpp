// SPDX-License-Identifier: Apache-2.0
#include "plugin/verbs/port_options.h"

#include <gtest/gtest.h>

#include <map>

namespace deft::net {
namespace {

using Settings = std::map<std::string, std::string>;

std::optional<VerbsQueuePair::Options> of(const RdmaPort& port, const Settings& settings,
                                          std::string& problem) {
    return options_of(
        port,
        [&](const char* name) -> std::optional<std::string> {
            const auto found = settings.find(name);
            return found == settings.end() ? std::nullopt : std::optional(found->second);
        },
        problem);
}

RdmaPort roce() {
    RdmaPort port;
    port.device = "mlx5_1";
    port.number = 2;
    port.layer = "Ethernet";
    RdmaGid link_local;
    link_local.index = 1;
    link_local.gid = "fe80:0000:0000:0000:0202:c9ff:fe00:0001";
    link_local.type = "RoCE v2";
    RdmaGid ipv4;
    ipv4.index = 3;
    ipv4.gid = "0000:0000:0000:0000:0000:ffff:c000:0201";
    ipv4.type = "RoCE v2";
    port.gids = {link_local, ipv4};
    return port;
}

TEST(PortOptions, AreThePortsAndTheOperators) {
    std::string problem;
    const auto options =
        of(roce(), {{"NCCL_IB_TC", "106"}, {"NCCL_IB_SL", "0x3"}, {"NCCL_IB_PKEY", "7"}}, problem);
    ASSERT_TRUE(options) << problem;
    EXPECT_EQ(options->port, 2);
    EXPECT_EQ(options->gid_index, 3);
    EXPECT_EQ(options->traffic_class, 106);
    EXPECT_EQ(options->service_level, 3);
    EXPECT_EQ(options->pkey_index, 7);
}

TEST(PortOptions, NonsenseIsAsNothing) {
    std::string problem;
    const auto options = of(roce(), {{"NCCL_IB_TC", "256"}, {"NCCL_IB_SL", "x"}}, problem);
    ASSERT_TRUE(options) << problem;
    EXPECT_EQ(options->traffic_class, 0);
    EXPECT_EQ(options->service_level, 0);
}

TEST(PortOptions, AnIndexThatIsNotThereIsTold) {
    std::string problem;
    EXPECT_EQ(of(roce(), {{"NCCL_IB_GID_INDEX", "1"}}, problem)->gid_index, 1);
    EXPECT_FALSE(of(roce(), {{"NCCL_IB_GID_INDEX", "5"}}, problem));
    EXPECT_EQ(problem, "mlx5_1:2 has no GID of index 5 (NCCL_IB_GID_INDEX)");
    RdmaPort alone = roce();
    alone.gids.pop_back();
    EXPECT_FALSE(of(alone, {}, problem));
    EXPECT_NE(problem.find("leads to other hosts"), std::string::npos);
}

}  // namespace
}  // namespace deft::net
