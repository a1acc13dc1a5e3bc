// SPDX-License-Identifier: Apache-2.0
// Which RDMA ports NCCL's IB would carry a job over, and when a job is left to it.
#include "topology/rdma.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/topology/sysfs_tree.h"
#include "topology/nccl_settings.h"

namespace deft {
namespace {

using test::SysfsTree;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kZero[] = "0000:0000:0000:0000:0000:0000:0000:0000";

std::vector<RdmaPort> ports_of(const SysfsTree& tree) {
    return list_rdma_ports(tree.root(), "");
}

TEST(RdmaPorts, AHostWithoutAny) {
    EXPECT_THAT(list_rdma_ports("/nowhere", ""), IsEmpty());
    EXPECT_EQ(choose_rdma({}, {}).use, RdmaUse::None);
}

TEST(RdmaPorts, AnActiveInfiniBandPortIsUsable) {
    SysfsTree tree;
    tree.port("mlx5_0", 1).net("mlx5_0", "ib0", 0);
    const std::vector<RdmaPort> ports = ports_of(tree);
    ASSERT_EQ(ports.size(), 1u);
    EXPECT_EQ(ports[0].name(), "mlx5_0:1");
    EXPECT_EQ(ports[0].obstacle, "");
    EXPECT_FALSE(ports[0].ethernet());
    EXPECT_EQ(ports[0].speed_mbps, 400000);
    EXPECT_THAT(ports[0].interfaces, ElementsAre("ib0"));
}

TEST(RdmaPorts, ARoCEPortIsUsableThroughAnInterfaceOfThisNamespace) {
    SysfsTree tree;
    tree.roce("mlx5_1", "lo");
    tree.roce("mlx5_2", "elsewhere0");
    tree.roce("mlx5_3", "ens1f0np0");
    tree.interface("ens1f0np0");
    const std::vector<RdmaPort> ports = ports_of(tree);
    ASSERT_EQ(ports.size(), 3u);
    EXPECT_EQ(ports[2].obstacle, "");
    EXPECT_EQ(ports[0].obstacle, "");
    EXPECT_TRUE(ports[0].ethernet());
    EXPECT_THAT(ports[0].interfaces, ElementsAre("lo"));
    EXPECT_THAT(ports[1].obstacle, HasSubstr("another network namespace"));
}

TEST(RdmaPorts, ATreeWithoutInterfacesSaysNothingOfNamespaces) {
    SysfsTree tree;
    tree.roce("mlx5_1", "ens1f0np0");
    EXPECT_EQ(ports_of(tree).at(0).obstacle, "");
}

TEST(RdmaPorts, OneGidOfManyIsEnough) {
    SysfsTree tree;
    tree.interface("lo");
    SysfsTree::Port own;
    own.layer = "Ethernet";
    own.gid = kZero;
    tree.port("mlx5_0", 1, own);
    tree.gid("mlx5_0", 1, 1, "fe80:0000:0000:0000:506b:4bff:fe00:0001", "elsewhere0");
    tree.gid("mlx5_0", 1, 12, "0000:0000:0000:0000:0000:ffff:c000:0201", "lo");
    EXPECT_EQ(ports_of(tree)[0].obstacle, "");
}

TEST(RdmaPorts, WhatNcclHasNoUseFor) {
    SysfsTree tree;
    SysfsTree::Port down;
    down.state = "1: DOWN";
    tree.port("a_down", 1, down);
    SysfsTree::Port zero;
    zero.gid = kZero;
    tree.port("b_zero", 1, zero);
    SysfsTree::Port unmanaged;  // a prefix, and no GUID
    unmanaged.gid = "fe80:0000:0000:0000:0000:0000:0000:0000";
    tree.port("c_prefix", 1, unmanaged);
    SysfsTree::Port efa;
    efa.layer = "Unspecified";
    tree.port("d_efa", 1, efa);
    tree.port("e_switch", 1);
    tree.put("e_switch/device/vendor", "0x15b3").put("e_switch/device/device", "0x1021");
    tree.put("e_switch/device/vpd", "ConnectX-7 \x01 SMDL=SW_MNG \x02");
    tree.port("f_narrow", 1);
    tree.put("f_narrow/device/vendor", "0x15b3").put("f_narrow/device/device", "0x1021");
    tree.put("f_narrow/device/max_link_width", "2");
    const std::vector<RdmaPort> ports = ports_of(tree);
    ASSERT_EQ(ports.size(), 6u);
    for (const RdmaPort& port : ports) {
        EXPECT_FALSE(port.usable()) << port.name();
    }
    EXPECT_EQ(ports[0].obstacle, "not active");
    EXPECT_EQ(ports[1].obstacle, "has no GID");
    EXPECT_EQ(ports[2].obstacle, "has no GID");
    EXPECT_THAT(ports[4].obstacle, HasSubstr("NVLink"));
    EXPECT_THAT(ports[5].obstacle, HasSubstr("NVLink"));
    EXPECT_EQ(choose_rdma(ports, {}).use, RdmaUse::None);
}

TEST(RdmaPorts, AnOrdinaryConnectX7IsNoSwitchPort) {
    SysfsTree tree;
    tree.port("mlx5_0", 1);
    tree.put("mlx5_0/device/vendor", "0x15b3").put("mlx5_0/device/device", "0x1021");
    tree.put("mlx5_0/device/vpd", "ConnectX-7 SMDL=MCX75310AAS");
    tree.port("mlx5_1", 1);
    tree.put("mlx5_1/device/vendor", "0x15b3").put("mlx5_1/device/device", "0x1021");
    tree.put("mlx5_1/device/max_link_width", "16");
    for (const RdmaPort& port : ports_of(tree)) {
        EXPECT_EQ(port.obstacle, "") << port.name();
    }
}

// Two ports of one card, InfiniBand and RoCE: each has its own interface.
TEST(RdmaPorts, OfOneCardHaveTheirOwnInterfaces) {
    SysfsTree tree;
    tree.port("mlx4_0", 1);
    SysfsTree::Port second;
    second.layer = "Ethernet";
    second.gid = "0000:0000:0000:0000:0000:ffff:c000:0201";
    second.interface = "lo";
    tree.port("mlx4_0", 2, second).net("mlx4_0", "ib0", 0).net("mlx4_0", "eth7", 1);
    const std::vector<RdmaPort> ports = ports_of(tree);
    ASSERT_EQ(ports.size(), 2u);
    EXPECT_THAT(ports[0].interfaces, ElementsAre("ib0"));
    EXPECT_THAT(ports[1].interfaces, ElementsAre("lo", "eth7"));
}

// Two ports of one card are two links, each with its own state and rate.
TEST(RdmaPorts, TwoPortsOfACardAreTwoLinks) {
    SysfsTree tree;
    SysfsTree::Port slow;
    slow.rate = "56 Gb/sec (4X FDR)";
    slow.gid = "fe80:0000:0000:0000:506b:4b03:00aa:0002";
    tree.port("mlx5_0", 1)
        .port("mlx5_0", 2, slow)
        .put("mlx5_0/sys_image_guid", "506b:4b03:00aa:0000");
    const std::vector<RdmaPort> ports = ports_of(tree);
    ASSERT_EQ(ports.size(), 2u);
    EXPECT_EQ(ports[0].name(), "mlx5_0:1");
    EXPECT_EQ(ports[1].name(), "mlx5_0:2");
    EXPECT_EQ(ports[0].speed_mbps, 400000);
    EXPECT_EQ(ports[1].speed_mbps, 56000);
    EXPECT_EQ(ports[0].card, "506b:4b03:00aa:0000");
    EXPECT_EQ(ports[1].card, ports[0].card);
    EXPECT_STREQ(ports[1].kind(), "ib");
    EXPECT_EQ(ports[1].state, "ACTIVE");
}

// A container shares the host's GID table: what belongs to others has an interface that is not
// here, or a type that cannot be read.
TEST(RdmaPorts, AContainersGidTable) {
    SysfsTree tree;
    tree.interface("net1");
    SysfsTree::Port own;
    own.layer = "Ethernet";
    own.gid = "fe80:0000:0000:0000:506b:4bff:fe00:0001";
    own.interface = "host0";
    tree.port("mlx5_0", 1, own);
    const std::string types = "mlx5_0/ports/1/gid_attrs/types/";
    tree.gid("mlx5_0", 1, 2, "0000:0000:0000:0000:0000:ffff:0a00:0001", "");
    std::filesystem::create_directories(tree.root() + "/class/infiniband/" + types + "2");
    tree.gid("mlx5_0", 1, 10, "0000:0000:0000:0000:0000:ffff:0a00:0002", "net1");
    tree.put(types + "10", "RoCE v2").gid("mlx5_0", 1, 11, kZero, "net1");
    const std::vector<RdmaPort> ports = ports_of(tree);
    ASSERT_EQ(ports.at(0).gids.size(), 3u);
    EXPECT_EQ(ports[0].obstacle, "");
    EXPECT_FALSE(ports[0].gids[0].here);
    EXPECT_FALSE(ports[0].gids[1].here);
    EXPECT_EQ(ports[0].gids[2].index, 10);
    EXPECT_TRUE(ports[0].gids[2].here);
    EXPECT_EQ(ports[0].gids[2].type, "RoCE v2");
    EXPECT_THAT(ports[0].interfaces, ElementsAre("net1"));
    EXPECT_STREQ(ports[0].kind(), "roce");
    // The same table seen from a container that has no interface of the card.
    std::filesystem::remove(tree.root() + "/class/net/net1");
    EXPECT_THAT(ports_of(tree)[0].obstacle, HasSubstr("another network namespace"));
}

// Of a copy of another host's tree this host's interfaces say nothing.
TEST(RdmaPorts, ACopiedTreeHasItsOwnInterfaces) {
    SysfsTree tree;
    tree.roce("mlx5_0", "lo").interface("eth0");
    EXPECT_EQ(ports_of(tree).at(0).obstacle, "");
    EXPECT_NE(list_rdma_ports(tree.root(), "", SysfsOf::Another).at(0).obstacle, "");
}

TEST(RdmaPorts, VirtualFunctionsNameTheirCard) {
    SysfsTree tree;
    tree.port("mlx5_0", 1).port("mlx5_2", 1);
    std::filesystem::create_directories(tree.root() +
                                        "/class/infiniband/mlx5_2/device/physfn/infiniband/mlx5_0");
    const std::vector<RdmaPort> ports = ports_of(tree);
    EXPECT_FALSE(ports.at(0).virtual_function);
    EXPECT_TRUE(ports.at(1).virtual_function);
    EXPECT_EQ(ports[1].physical, "mlx5_0");
}

TEST(RdmaPorts, WhatCannotBeReadIsSaid) {
    SysfsTree tree;
    tree.port("mlx5_0", 1).put("mlx5_0/ports/x/state", "4: ACTIVE").put("mlx5_0/ports/0/state", "");
    std::filesystem::remove(tree.root() + "/class/infiniband/mlx5_0/ports/1/state");
    const std::vector<RdmaPort> ports = ports_of(tree);
    ASSERT_EQ(ports.size(), 1u);
    EXPECT_THAT(ports[0].obstacle, HasSubstr("ports/1/state cannot be read: No such file"));
}

TEST(RdmaPorts, RatesAsTheKernelWritesThem) {
    EXPECT_EQ(rdma_rate("400 Gb/sec (4X NDR)"), 400000);
    EXPECT_EQ(rdma_rate("2.5 Gb/sec (1X SDR)"), 2500);
    EXPECT_EQ(rdma_rate("100 Mb/sec"), 100);
    for (const char* odd :
         {"", "fast", "400", "-1 Gb/sec", "nan Gb/sec", "1e300 Gb/sec", "0 Gb/sec"}) {
        EXPECT_EQ(rdma_rate(odd), 0) << odd;
    }
}

// A container sees the host's ports in sysfs, but has no device nodes.
TEST(RdmaPorts, WithoutADeviceNodeIsNotUsable) {
    SysfsTree tree;
    tree.port("mlx5_0", 1).put("../infiniband_verbs/uverbs0/ibdev", "mlx5_0");
    tree.port("mlx5_1", 1);
    const SysfsTree nodes;
    std::vector<RdmaPort> ports = list_rdma_ports(tree.root(), nodes.root());
    ASSERT_EQ(ports.size(), 2u);
    EXPECT_THAT(ports[0].obstacle, HasSubstr("uverbs0 cannot be opened"));
    EXPECT_THAT(ports[1].obstacle, HasSubstr("no device"));
    std::ofstream(nodes.root() + "/uverbs0") << "";
    ports = list_rdma_ports(tree.root(), nodes.root());
    EXPECT_EQ(ports[0].obstacle, "");
    EXPECT_THAT(ports[1].obstacle, HasSubstr("no device"));
}

TEST(RdmaChoice, LinksOnAPortsWireAreItsOwn) {
    SysfsTree tree;
    tree.roce("mlx5_0", "lo").net("mlx5_0", "eth0", 0);
    const RdmaChoice choice = choose_rdma(ports_of(tree), {});
    const auto shares = [&](const char* name, const char* lower, const char* card) {
        Interface link;
        link.name = name;
        link.lower = lower;
        link.physical_function = card;
        return choice.shares_wire(link);
    };
    EXPECT_TRUE(shares("eth0", "", ""));
    EXPECT_TRUE(shares("lo", "", ""));
    EXPECT_TRUE(shares("eth0.7", "eth0", ""));  // a VLAN
    EXPECT_TRUE(shares("eth5", "", "eth0"));    // a virtual function
    EXPECT_FALSE(shares("eth1", "", ""));
}

TEST(RdmaChoice, TheFastestLinksOnPortsWiresAreReserves) {
    SysfsTree tree;
    tree.roce("mlx5_0", "a").roce("mlx5_1", "b").roce("mlx5_2", "c");
    const RdmaChoice choice = choose_rdma(ports_of(tree), {});
    const auto link = [](const char* name, std::int64_t mbps) {
        Interface made;
        made.name = name;
        made.speed_mbps = mbps;
        return made;
    };
    InterfaceSelection selection;
    selection.links = {link("a", 100), link("eth0", 10), link("b", 400), link("c", 200)};
    keep_apart(choice, selection);
    ASSERT_EQ(selection.links.size(), 1U);
    EXPECT_EQ(selection.links[0].name, "eth0");
    EXPECT_FALSE(selection.links[0].reserve);
    ASSERT_EQ(selection.reserves.size(), 2U);
    EXPECT_EQ(selection.reserves[0].name, "b");
    EXPECT_EQ(selection.reserves[1].name, "c");
    EXPECT_TRUE(selection.reserves[0].reserve);
    EXPECT_EQ(selection.skipped.size(), 3U) << "topo and doctor tell of each";
}

RdmaUse use(const RdmaSettings& settings) {
    SysfsTree tree;
    tree.port("mlx5_0", 1);
    return choose_rdma(ports_of(tree), settings).use;
}

TEST(RdmaChoice, TheOperatorDecides) {
    EXPECT_EQ(use({}), RdmaUse::Aside);
    EXPECT_EQ(use({.replace = true}), RdmaUse::Replace);
}

TEST(RdmaChoice, DeftDrivesPortsWhereDeftRdmaSaysSoAlone) {
    SysfsTree tree;
    tree.port("mlx5_0", 1);
    const auto drives = [&](const RdmaSettings& settings) {
        return choose_rdma(ports_of(tree), settings).drives_ports;
    };
    EXPECT_TRUE(drives({.replace = true}));
    EXPECT_TRUE(drives({.replace = true, .net = "deft"}));
    EXPECT_FALSE(drives({.net = "deft"}));  // TCP takes the job
    EXPECT_FALSE(drives({}));
    EXPECT_FALSE(drives({.replace = true, .net = "Socket"}));
    EXPECT_FALSE(drives({.replace = true, .ib_hca = "^mlx5_0"}));
}

TEST(RdmaChoice, WhereNcclsIbWouldNotCarryTheJobNothingIsLeftToIt) {
    EXPECT_EQ(use({.ib_disable = "1"}), RdmaUse::None);
    EXPECT_EQ(use({.ib_disable = "0"}), RdmaUse::Aside);
    EXPECT_EQ(use({.net = "Socket"}), RdmaUse::None);
    EXPECT_EQ(use({.net = ""}), RdmaUse::Aside);
    EXPECT_EQ(use({.net = "ib"}), RdmaUse::Aside);
    EXPECT_EQ(use({.net = "deft"}), RdmaUse::Replace);
    EXPECT_EQ(use({.verbs = false}), RdmaUse::None);
    EXPECT_EQ(use({.ib_hca = "^mlx5_0"}), RdmaUse::None);
    EXPECT_EQ(use({.ib_hca = "mlx5_0:1"}), RdmaUse::Aside);
}

TEST(RdmaChoice, HcasAsNcclTakesThem) {
    EXPECT_TRUE(hca_selected("", "mlx5_0", 1));
    EXPECT_TRUE(hca_selected("mlx5", "mlx5_0", 1));
    EXPECT_TRUE(hca_selected("mlx4,mlx5_0:2", "mlx5_0", 2));
    EXPECT_FALSE(hca_selected("mlx4,mlx5_0:2", "mlx5_0", 1));
    EXPECT_TRUE(hca_selected("mlx5_1", "mlx5_10", 1));
    EXPECT_FALSE(hca_selected("=mlx5_1", "mlx5_10", 1));
    EXPECT_FALSE(hca_selected("^mlx5_1", "mlx5_10", 1));
    EXPECT_TRUE(hca_selected("^=mlx5_1", "mlx5_10", 1));
    EXPECT_FALSE(hca_selected("^mlx5_0:1", "mlx5_0", 1));
    EXPECT_TRUE(hca_selected("^mlx5_0:1", "mlx5_0", 2));
    EXPECT_FALSE(hca_selected("^", "mlx5_0", 1));
    EXPECT_TRUE(hca_selected("mlx5_0:1:0:3", "mlx5_0", 1));  // with rail and plane
    EXPECT_TRUE(hca_selected("mlx5_0::2", "mlx5_0", 1));
}

TEST(NcclSettings, AreReadFromFilesAsNcclDoes) {
    const std::string_view text =
        "# NCCL_NET=no\nNCCL_IB_DISABLE=1\nNCCL_NET=IB\r\nNCCL_NET=Socket\n no equals\n";
    EXPECT_EQ(nccl_setting_in(text, "NCCL_IB_DISABLE"), "1");
    EXPECT_EQ(nccl_setting_in(text, "NCCL_NET"), "IB");  // the first counts
    EXPECT_EQ(nccl_setting_in(text, "NCCL_IB"), std::nullopt);
    EXPECT_EQ(nccl_setting_in("A=", "A"), "");
}

TEST(NcclSettings, KnowWhetherDeftIsTheNetworkPlugin) {
    EXPECT_TRUE(names_deft("deft", true));
    EXPECT_TRUE(names_deft("/opt/lib/libnccl-net-deft.so", true));
    EXPECT_TRUE(names_deft("STATIC_PLUGIN", true));
    EXPECT_TRUE(names_deft("other,deft", false));
    EXPECT_FALSE(names_deft("other,deft", true));
    EXPECT_FALSE(names_deft("none", false));
    EXPECT_FALSE(names_deft("", true));
}

}  // namespace
}  // namespace deft
