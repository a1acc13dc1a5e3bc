// SPDX-License-Identifier: Apache-2.0
#include "plugin/verbs/gid.h"

#include <gtest/gtest.h>

namespace deft::net {
namespace {

constexpr char kLinkLocal[] = "fe80:0000:0000:0000:0202:c9ff:fe00:0001";
constexpr char kIpv4[] = "0000:0000:0000:0000:0000:ffff:c000:0201";
constexpr char kIpv6[] = "2001:0db8:0000:0000:0000:0000:0000:0001";

RdmaPort roce(std::vector<RdmaGid> gids) {
    RdmaPort port;
    port.layer = "Ethernet";
    for (std::size_t i = 0; i < gids.size(); ++i) {
        gids[i].index = static_cast<int>(i);
    }
    port.gids = std::move(gids);
    return port;
}

RdmaGid entry(const char* gid, const char* type, bool here = true) {
    RdmaGid made;
    made.gid = gid;
    made.type = type;
    made.here = here;
    return made;
}

int chosen(const RdmaPort& port, int wanted = -1) {
    const RdmaGid* const gid = choose_gid(port, wanted);
    return gid == nullptr ? -1 : gid->index;
}

TEST(Gid, AreReadAsSysfsWritesThem) {
    const auto gid = parse_gid(kIpv4);
    ASSERT_TRUE(gid);
    EXPECT_EQ(gid->raw[11], 0xff);
    EXPECT_EQ(gid->raw[12], 192);
    EXPECT_EQ(gid->raw[15], 1);
    EXPECT_FALSE(parse_gid(""));
    EXPECT_FALSE(parse_gid("::ffff:192.0.2.1"));
    EXPECT_FALSE(parse_gid("0000:0000:0000:0000:0000:ffff:c000:02-1"));
    EXPECT_FALSE(parse_gid("0000:0000:0000:0000:0000:ffff:c000-0201"));
}

TEST(Gid, SecondRoceBeforeFirstAndIpv4BeforeIpv6) {
    EXPECT_EQ(chosen(roce({entry(kLinkLocal, "IB/RoCE v1"), entry(kLinkLocal, "RoCE v2"),
                           entry(kIpv4, "IB/RoCE v1"), entry(kIpv6, "RoCE v2"),
                           entry(kIpv4, "RoCE v2")})),
              4);
    EXPECT_EQ(chosen(roce({entry(kIpv4, "IB/RoCE v1"), entry(kIpv6, "RoCE v2")})), 1);
    EXPECT_EQ(chosen(roce({entry(kIpv6, "IB/RoCE v1"), entry(kIpv4, "IB/RoCE v1")})), 1);
}

TEST(Gid, WhatLeadsNowhereIsNotChosen) {
    EXPECT_EQ(chosen(roce({entry(kLinkLocal, "RoCE v2")})), -1);
    EXPECT_EQ(chosen(roce({entry(kIpv4, "RoCE v2", false), entry(kIpv6, "RoCE v2")})), 1)
        << "another network namespace's";
    EXPECT_EQ(chosen(roce({entry("0000:0000:0000:0000:0000:0000:0000:0000", "RoCE v2")})), -1);
    EXPECT_EQ(chosen(roce({})), -1);
}

TEST(Gid, TheOperatorsIndexHolds) {
    const RdmaPort port = roce({entry(kLinkLocal, "RoCE v2"), entry(kIpv4, "RoCE v2")});
    EXPECT_EQ(chosen(port, 0), 0);
    EXPECT_EQ(chosen(port, 7), -1);
}

TEST(Gid, InfiniBandHasItsFirst) {
    RdmaPort port = roce({entry(kLinkLocal, "")});
    port.layer = "InfiniBand";
    EXPECT_EQ(chosen(port), 0);
}

}  // namespace
}  // namespace deft::net
