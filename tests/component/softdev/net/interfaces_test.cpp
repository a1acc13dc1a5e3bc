// SPDX-License-Identifier: Apache-2.0
#include "softdev/net/interfaces.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/component/softdev/net/captured_log.h"
#include "tests/component/softdev/net/environment.h"

namespace softdev::net {
namespace {

TEST(Interfaces, LoopbackOnlyWhenNamedOrAlone) {
    Environment environment;
    environment.unset("NCCL_SOCKET_FAMILY");
    for (const char* name : {"lo", "=lo", "^=nothing"}) {
        environment.set("NCCL_SOCKET_IFNAME", name);
        const auto found = find_interfaces();
        EXPECT_TRUE(std::any_of(found.begin(), found.end(), [](const Interface& one) {
            return one.name == "lo";
        })) << name;
    }
    environment.unset("NCCL_SOCKET_IFNAME");
    const auto found = find_interfaces();
    if (found.size() > 1) {
        for (const Interface& one : found) {
            EXPECT_NE(one.name, "lo");
        }
    }
}

TEST(Interfaces, NothingMatches) {
    Environment environment;
    environment.set("NCCL_SOCKET_IFNAME", "nosuch");
    EXPECT_TRUE(find_interfaces().empty());
}

TEST(Interfaces, LoopbackLooksAsNcclSeesIt) {
    Environment environment;
    environment.set("NCCL_SOCKET_IFNAME", "=lo");
    environment.set("NCCL_SOCKET_FAMILY", "AF_INET");
    const auto found = find_interfaces();
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].speed_mbps, 10000);  // the kernel knows none
    EXPECT_EQ(found[0].pci_path, "");
    EXPECT_EQ(to_text(found[0].address), "127.0.0.1<0>");
}

TEST(Interfaces, FamilyIsHonouredAndAWrongOneSaid) {
    Environment environment;
    environment.unset("NCCL_SOCKET_IFNAME");
    environment.set("NCCL_SOCKET_FAMILY", "AF_INET6");
    for (const Interface& one : find_interfaces()) {
        EXPECT_EQ(one.address.base.sa_family, AF_INET6);
    }
    environment.set("NCCL_SOCKET_FAMILY", "IPv4");
    const CapturedLog log;
    find_interfaces();
    ASSERT_EQ(log.warnings().size(), 1u);
    EXPECT_NE(log.warnings()[0].find("NCCL_SOCKET_FAMILY=IPv4"), std::string::npos);
}

}  // namespace
}  // namespace softdev::net
