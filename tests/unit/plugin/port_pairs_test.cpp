// SPDX-License-Identifier: Apache-2.0
// Which RDMA ports are paired.
#include "plugin/port_pairs.h"

#include <gtest/gtest.h>

#include "plugin/ucx/ports.h"
#include "plugin/verbs/ports.h"

namespace deft::net {
namespace {

using Pairs = PortPairs;

// RoCE, 10.0.NET.HOST of a /24, or without a known network.
std::shared_ptr<const VerbsPort> roce(int net, int host, bool known = true) {
    auto port = std::make_shared<VerbsPort>();
    port->layer = Port::Layer::Ethernet;
    port->gid.raw[10] = port->gid.raw[11] = 0xff;
    port->gid.raw[12] = 10;
    port->gid.raw[14] = static_cast<std::uint8_t>(net);
    port->gid.raw[15] = static_cast<std::uint8_t>(host);
    port->prefix = known ? 96 + 24 : 0;
    return port;
}

std::shared_ptr<const VerbsPort> infiniband(int subnet, int host) {
    auto port = std::make_shared<VerbsPort>();
    port->gid.raw[0] = 0xfe;
    port->gid.raw[1] = 0x80;
    port->gid.raw[7] = static_cast<std::uint8_t>(subnet);
    port->gid.raw[15] = static_cast<std::uint8_t>(host);
    port->prefix = 64;
    return port;
}

Pairs pairs(const Ports& own, const Ports& peer, std::size_t most = 15) {
    return pair_ports(own, to_wire(peer), most);
}

TEST(PortPairs, EachPortGoesWithThatOfItsNetwork) {
    EXPECT_EQ(pairs({roce(1, 1), roce(2, 1)}, {roce(1, 2), roce(2, 2)}), (Pairs{{0, 0}, {1, 1}}));
    EXPECT_EQ(pairs({roce(1, 1), roce(2, 1)}, {roce(2, 2), roce(1, 2)}), (Pairs{{0, 1}, {1, 0}}));
    // All in one network: as they are numbered.
    EXPECT_EQ(pairs({roce(1, 1), roce(1, 2)}, {roce(1, 3), roce(1, 4)}), (Pairs{{0, 0}, {1, 1}}));
}

TEST(PortPairs, OtherNetworksAreLeftToARouter) {
    EXPECT_EQ(pairs({roce(1, 1), roce(2, 1)}, {roce(3, 2), roce(1, 2)}), (Pairs{{0, 1}, {1, 0}}));
    EXPECT_EQ(pairs({roce(1, 1, false)}, {roce(1, 2)}), (Pairs{{0, 0}}));
}

// 10.0.16.0/20 ends within a byte.
TEST(PortPairs, ANetworkMayEndWithinAByte) {
    auto own = std::make_shared<VerbsPort>(*roce(17, 1));
    own->prefix = 96 + 20;
    EXPECT_EQ(pairs({own}, {roce(32, 2), roce(31, 2)}).front(), std::pair(0UL, 1UL));
    EXPECT_EQ(pairs({own}, {roce(15, 2), roce(16, 2)}).front(), std::pair(0UL, 1UL));
}

TEST(PortPairs, ASideWithMorePortsSharesTheOthers) {
    EXPECT_EQ(pairs({roce(1, 1)}, {roce(1, 2), roce(1, 3)}), (Pairs{{0, 0}, {0, 1}}));
    EXPECT_EQ(pairs({roce(1, 1), roce(1, 2), roce(1, 3)}, {roce(1, 4), roce(1, 5)}),
              (Pairs{{0, 0}, {1, 1}, {2, 0}}));
    EXPECT_EQ(pairs({roce(1, 1), roce(1, 2), roce(1, 3), roce(1, 4)}, {roce(1, 5), roce(1, 6)}),
              (Pairs{{0, 0}, {1, 1}, {2, 0}, {3, 1}}));
}

TEST(PortPairs, SubnetsOfInfiniBandAreNotJoined) {
    EXPECT_EQ(pairs({infiniband(0, 1)}, {infiniband(0, 2)}), (Pairs{{0, 0}}));
    EXPECT_EQ(pairs({infiniband(0, 1)}, {infiniband(1, 2)}), Pairs{});
    EXPECT_EQ(pairs({infiniband(1, 1), infiniband(0, 1)}, {infiniband(0, 2)}), (Pairs{{1, 0}}));
}

TEST(PortPairs, KindsAreNotMixed) {
    EXPECT_EQ(pairs({infiniband(0, 1)}, {roce(1, 2)}), Pairs{});
    EXPECT_EQ(pairs({roce(1, 2)}, {infiniband(0, 1)}), Pairs{});
    EXPECT_EQ(pairs({infiniband(0, 1), roce(1, 1)}, {roce(1, 2)}), (Pairs{{1, 0}}));
    EXPECT_EQ(pairs({}, {roce(1, 2)}), Pairs{});
    EXPECT_EQ(pairs({roce(1, 2)}, {}), Pairs{});
}

TEST(PortPairs, NoMoreThanAskedFor) {
    EXPECT_EQ(pairs({roce(1, 1), roce(1, 2)}, {roce(1, 3), roce(1, 4)}, 1), (Pairs{{0, 0}}));
    EXPECT_EQ(pairs({roce(1, 1)}, {roce(1, 3)}, 0), Pairs{});
}

// Nothing says which UCX device reaches which.
TEST(PortPairs, UcxDevicesArePairedInTheirOrderAndWithNothingElse) {
    const auto ucx = [](int number) {
        auto port = std::make_shared<UcxPort>();
        port->layer = Port::Layer::Ucx;
        port->gid.raw[15] = static_cast<std::uint8_t>(number);
        return port;
    };
    EXPECT_EQ(pairs({ucx(1), ucx(2)}, {ucx(3), ucx(4)}), (Pairs{{0, 0}, {1, 1}}));
    EXPECT_EQ(pairs({ucx(1)}, {ucx(3), ucx(4)}), (Pairs{{0, 0}, {0, 1}}));
    EXPECT_EQ(pairs({roce(1, 1), ucx(1)}, {ucx(3), roce(1, 2)}), (Pairs{{0, 1}, {1, 0}}));
    EXPECT_TRUE(pairs({ucx(1)}, {roce(1, 2), infiniband(1, 2)}).empty());
}

}  // namespace
}  // namespace deft::net
