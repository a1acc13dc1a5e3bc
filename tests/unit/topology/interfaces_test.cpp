// SPDX-License-Identifier: Apache-2.0
#include "topology/interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "topology/link_relations.h"

namespace deft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Interface make(const char* name, const char* address, bool up = true) {
    Interface link;
    link.name = name;
    link.index = 1;
    link.up = up;
    if (address != nullptr) {
        Address parsed;
        EXPECT_TRUE(parse_address(address, parsed));
        parsed.prefix = 24;
        link.addresses.push_back(parsed);
    }
    return link;
}

std::vector<Interface> host() {
    std::vector<Interface> all = {make("lo", "127.0.0.1"),       make("eth0", "10.0.0.1"),
                                  make("eth1", "10.0.1.1"),      make("eth10", "fd00::1"),
                                  make("docker0", "172.17.0.1"), make("br-x", "10.9.0.1"),
                                  make("wlan0", nullptr),        make("eth2", "10.0.2.1", false)};
    all[0].loopback = true;
    all[0].addresses[0].prefix = 8;
    all[5].bridge = true;
    return all;
}

std::vector<std::string> names(const InterfaceSelection& selection) {
    std::vector<std::string> result;
    for (const Interface& link : selection.links) {
        result.push_back(link.name);
    }
    return result;
}

std::vector<std::string> chosen(const char* list, bool strict = true) {
    const InterfaceSelection selection = select_interfaces(host(), list, "V", strict);
    EXPECT_EQ(selection.problem, "");
    return names(selection);
}

TEST(InterfaceRules, DefaultTakesEveryUsableOneButVirtualAndLoopback) {
    EXPECT_THAT(chosen(""), ElementsAre("eth0", "eth1", "eth10", "eth2"));
    const InterfaceSelection selection = select_interfaces(host(), "", "V", true);
    EXPECT_EQ(selection.skipped.size(), 4U);
}

TEST(InterfaceRules, PrefixesExactNamesAndExclusion) {
    EXPECT_THAT(chosen("eth1"), ElementsAre("eth1", "eth10"));
    EXPECT_THAT(chosen("=eth1"), ElementsAre("eth1"));
    EXPECT_THAT(chosen("=eth1,eth0"), ElementsAre("eth1", "eth0"));
    EXPECT_THAT(chosen("^eth1"), ElementsAre("eth0", "eth2"));
    EXPECT_THAT(chosen("^=eth1"), ElementsAre("eth0", "eth10", "eth2"));
    EXPECT_THAT(chosen("lo"), ElementsAre("lo"));
    EXPECT_THAT(chosen("eth0,docker"), ElementsAre("eth0", "docker0"));
    EXPECT_THAT(chosen(" =eth1 ,\teth0,, "), ElementsAre("eth1", "eth0"));
    EXPECT_THAT(chosen("127.0.0.2@1gbit, eth0"), ElementsAre("127.0.0.2", "eth0"));
}

TEST(InterfaceRules, FallsBackToWhatThereIs) {
    std::vector<Interface> all = host();
    EXPECT_THAT(names(select_interfaces({all[0], all[4]}, "", "V", true)), ElementsAre("docker0"));
    EXPECT_THAT(names(select_interfaces({all[0]}, "", "V", true)), ElementsAre("lo"));
    for (const char* list : {"", "lo", "^eth0", "10.0.0.1"}) {
        EXPECT_THAT(select_interfaces({}, list, "V", true).problem, HasSubstr("allow AF_NETLINK"))
            << list;
    }
}

std::string reason_of(const std::vector<Interface>& all, const char* name) {
    for (const auto& skipped : select_interfaces(all, "", "V", true).skipped) {
        if (skipped.name == name) {
            return skipped.reason;
        }
    }
    return "used";
}

TEST(InterfaceRules, ReasonsOfWhatIsNotTakenByDefault) {
    std::vector<Interface> all = {
        make("eth0", "10.0.0.1"), make("eth1", "10.0.1.1"), make("eth2", "10.0.2.1"),
        make("eth3", "10.0.3.1"), make("wg0", "10.0.4.1"),  make("usb0", "10.0.5.1"),
        make("eth4", "fe80::1"),  make("d0", "10.0.6.1"),   make("eth5", "10.0.7.1")};
    all[0].speed_mbps = 400000;
    all[1].speed_mbps = 1000;
    all[2].physical_function = "eth0";
    all[3].lower = "eth0";
    all[4].driver = "wireguard";
    all[5].usb = true;
    all[7].driver = "dummy";
    all[8].speed_mbps = 25000;  // slow, but no management network
    EXPECT_EQ(reason_of(all, "eth0"), "used");
    EXPECT_THAT(reason_of(all, "eth1"), HasSubstr("management: 1000 Mbit/s beside 400000"));
    EXPECT_THAT(reason_of(all, "eth2"), HasSubstr("virtual function of eth0"));
    EXPECT_THAT(reason_of(all, "eth3"), HasSubstr("goes over eth0"));
    EXPECT_THAT(reason_of(all, "wg0"), HasSubstr("tunnel"));
    EXPECT_THAT(reason_of(all, "usb0"), HasSubstr("service processor"));
    EXPECT_THAT(reason_of(all, "eth4"), HasSubstr("link-local"));
    EXPECT_THAT(reason_of(all, "d0"), HasSubstr("dummy"));
    EXPECT_EQ(reason_of(all, "eth5"), "used");
    // Whether a link is up at this moment changes nothing for the others.
    all[0].up = false;
    all[0].speed_mbps = 0;
    all[0].nominal_mbps = 400000;
    EXPECT_THAT(reason_of(all, "eth1"), HasSubstr("management: 1000 Mbit/s beside 400000"));
    EXPECT_THAT(reason_of(all, "eth2"), HasSubstr("virtual function of eth0"));
    // A virtual function whose card is not seen here, and slow links among themselves, are used.
    all[0].addresses.clear();
    EXPECT_EQ(reason_of(all, "eth2"), "used");
    EXPECT_EQ(reason_of(all, "eth3"), "used");
    all[8].speed_mbps = 0;
    EXPECT_EQ(reason_of(all, "eth1"), "used");
    // Naming one overrides all of this.
    EXPECT_THAT(names(select_interfaces(all, "eth1,wg0,eth4", "V", true)),
                ElementsAre("eth1", "wg0", "eth4"));
    // Nothing but a tunnel: better than nothing.
    EXPECT_THAT(names(select_interfaces({all[4]}, "", "V", true)), ElementsAre("wg0"));
    EXPECT_TRUE(select_interfaces({all[4]}, "", "V", true).skipped.empty());
    EXPECT_THAT(names(select_interfaces({all[6]}, "", "V", true)), ElementsAre("eth4"));
}

TEST(InterfaceRules, MissingNameIsOneLineWithNameChoicesAndRemedy) {
    const InterfaceSelection selection =
        select_interfaces(host(), "eth0,ib3", "DEFT_INTERFACES", true);
    EXPECT_TRUE(selection.links.empty());
    EXPECT_THAT(selection.problem, HasSubstr("DEFT_INTERFACES=eth0,ib3"));
    EXPECT_THAT(selection.problem, HasSubstr("no interface is named \"ib3\""));
    EXPECT_THAT(selection.problem, HasSubstr("eth1"));
    EXPECT_THAT(selection.problem, HasSubstr("eth2 (down)"));
    EXPECT_EQ(selection.problem.find('\n'), std::string::npos);
    // NCCL's own variable is used on many kinds of hosts at once: one match is enough.
    EXPECT_THAT(chosen("eth0,ib3", false), ElementsAre("eth0"));
    EXPECT_NE(select_interfaces(host(), "ib3", "NCCL_SOCKET_IFNAME", false).problem, "");
    EXPECT_THAT(chosen("eth2"), ElementsAre("eth2"));                     // down: it may come up
    EXPECT_NE(select_interfaces(host(), "wlan", "V", true).problem, "");  // no address
    EXPECT_NE(select_interfaces(host(), "^eth,lo,docker,br", "V", true).problem, "");
}

TEST(InterfaceRules, LiteralAddressesAreLinksOfTheirOwn) {
    const InterfaceSelection selection =
        select_interfaces(host(), "127.0.0.2@1gbit,127.0.0.3,10.0.1.1", "V", true);
    EXPECT_EQ(selection.problem, "");
    ASSERT_EQ(selection.links.size(), 3U);
    EXPECT_EQ(selection.links[0].name, "127.0.0.2");
    EXPECT_EQ(selection.links[0].pacing_bytes_per_second, 125000000U);
    EXPECT_EQ(selection.links[0].speed_mbps, 1000);
    EXPECT_EQ(selection.links[1].pacing_bytes_per_second, 0U);
    EXPECT_EQ(selection.links[2].addresses[0].text(), "10.0.1.1");
    EXPECT_NE(select_interfaces(host(), "192.0.2.1", "V", true).problem, "");
    EXPECT_NE(select_interfaces(host(), "127.0.0.2@fast", "V", true).problem, "");
}

// What NCCL does with the value (parseStringList(), ncclOsFindInterfaces()), as it looks for the
// interface of its own connections by the same.
TEST(InterfaceRules, NcclsListMeansWhatNcclMeans) {
    EXPECT_THAT(chosen("eth1:0", false), ElementsAre("eth1", "eth10"));
    EXPECT_THAT(chosen("=eth1:0:1:2,eth0", false), ElementsAre("eth1", "eth0"));
    EXPECT_THAT(chosen("^eth1:7", false), ElementsAre("eth0", "eth2"));
    EXPECT_THAT(chosen("eth0,:1", false), ElementsAre("eth0"));
    EXPECT_THAT(select_interfaces(host(), "eth1:0", "V", true).problem, HasSubstr("\"eth1:0\""));
    // One '^', then one '=', belong to the list and the rest to the name.
    std::vector<Interface> all = host();
    all.push_back(make("=odd", "10.4.0.1"));
    EXPECT_THAT(names(select_interfaces(all, "==odd", "V", false)), ElementsAre("=odd"));
    EXPECT_NE(select_interfaces(host(), "==eth0", "V", false).problem, "");
    EXPECT_NE(select_interfaces(host(), "=^eth0", "V", false).problem, "");
    // Blanks belong to names: NCCL finds no interface, and neither does it for "eth*".
    EXPECT_THAT(select_interfaces(host(), "eth0 , eth1", "V", false).problem,
                HasSubstr("NCCL takes a blank for a part of a name"));
    EXPECT_THAT(chosen("eth0, eth1", false), ElementsAre("eth0"));
    EXPECT_NE(select_interfaces(host(), "eth*", "V", false).problem, "");
}

TEST(InterfaceRules, ARateBehindANameIsItsSpeed) {
    const InterfaceSelection selection = select_interfaces(host(), "=eth0@25gbit,eth1", "V", true);
    EXPECT_EQ(selection.problem, "");
    ASSERT_EQ(selection.links.size(), 2U);
    EXPECT_EQ(selection.links[0].nominal_speed(), 25000);
    EXPECT_EQ(selection.links[0].pacing_bytes_per_second, 0U);
    EXPECT_THAT(select_interfaces(host(), "lo@fast", "V", true).problem,
                HasSubstr("the rate of \"lo@fast\" is not a number with kbit, mbit or gbit"));
    EXPECT_THAT(select_interfaces(host(), "nosuch0@1gbit", "V", true).problem,
                HasSubstr("no interface is named \"nosuch0\""));
}

TEST(InterfaceRules, LinksThatAreDownAreKeptAndLoopbackIsNoRefuge) {
    std::vector<Interface> all = {make("lo", "127.0.0.1"), make("eth0", "10.0.0.1", false),
                                  make("eth1", "10.0.1.1", false), make("eth2", nullptr, false)};
    all[0].loopback = true;
    EXPECT_THAT(names(select_interfaces(all, "", "V", true)), ElementsAre("eth0", "eth1"));
    EXPECT_THAT(names(select_interfaces(all, "eth", "V", false)), ElementsAre("eth0", "eth1"));
    EXPECT_THAT(reason_of(all, "eth2"), HasSubstr("down or without a carrier, and has no address"));
    // An empty docker0 is no reason to leave loopback: it has no carrier, and never will.
    all = {all[0], make("docker0", "172.17.0.1", false)};
    all[1].kind = "bridge";
    EXPECT_THAT(names(select_interfaces(all, "", "V", true)), ElementsAre("lo"));
}

// Linux gives every cabled port an address of its own (fe80::), configured or not.
TEST(InterfaceRules, APortThatIsNotUsedStandsInNobodysWay) {
    std::vector<Interface> all = {make("lo", "127.0.0.1"), make("eth0", "fe80::1"),
                                  make("eth0.100", "10.0.0.1")};
    all[0].loopback = true;
    all[2].lower = "eth0";
    for (const char* list : {"", "^docker0,lo"}) {
        EXPECT_THAT(names(select_interfaces(all, list, "V", false)), ElementsAre("eth0.100"));
    }
    EXPECT_THAT(reason_of(all, "eth0"), HasSubstr("link-local"));
    all[2].lower.clear();
    all[2].physical_function = "eth0";
    EXPECT_THAT(names(select_interfaces(all, "", "V", true)), ElementsAre("eth0.100"));
    all[2].physical_function.clear();
    all[2].speed_mbps = 1000;
    all[1].speed_mbps = all[1].nominal_mbps = 25000;
    EXPECT_THAT(names(select_interfaces(all, "", "V", true)), ElementsAre("eth0.100"));
}

TEST(InterfaceRules, WhatIsDownDoesNotStandInTheWayOfAllThatIsUp) {
    std::vector<Interface> all = {make("lo", "127.0.0.1"), make("eth0", "10.0.0.1"),
                                  make("eth1", "10.0.1.1", false)};
    all[0].loopback = true;
    all[1].speed_mbps = 1000;
    all[2].nominal_mbps = 100000;
    EXPECT_THAT(names(select_interfaces(all, "", "V", true)), ElementsAre("eth0", "eth1"));
    all[1] = make("eth0", "169.254.3.4");
    EXPECT_THAT(names(select_interfaces(all, "", "V", true)), ElementsAre("eth0", "eth1"));
    // Known by an address of loopback, with a port that was prepared for something.
    all[0] = make("lo", "10.99.0.1");
    all[0].loopback = true;
    all[1] = make("swp1", "fe80::1");
    EXPECT_THAT(names(select_interfaces(all, "", "V", true)), ElementsAre("lo", "eth1"));
    // Where another one is up, the view stays what it will be.
    all = {make("eth0", "10.0.0.1"), make("eth1", "10.0.1.1", false), make("eth2", "10.0.2.1")};
    all[0].speed_mbps = 1000;
    all[1].nominal_mbps = 100000;
    all[2].speed_mbps = 10000;
    EXPECT_THAT(names(select_interfaces(all, "", "V", true)), ElementsAre("eth1", "eth2"));
}

Interface virtual_one(const char* name, const char* kind, const char* address,
                      const char* master = "") {
    Interface link = make(name, address);
    link.kind = kind;
    link.master = master;
    return link;
}

TEST(InterfaceRules, BridgesAreJudgedByTheirPorts) {
    // A host of virtual machines: two cards in two bridges, one more below a bond below a third.
    std::vector<Interface> all = {
        virtual_one("eno1", "", nullptr, "vmbr0"), virtual_one("eno2", "", "fe80::1", "vmbr1"),
        virtual_one("eno3", "", nullptr, "bond0"), virtual_one("bond0", "bond", nullptr, "vmbr2"),
        virtual_one("vmbr0", "bridge", "10.0.0.1"), virtual_one("vmbr1", "bridge", "10.0.1.1"),
        virtual_one("vmbr2", "bridge", "10.0.2.1"),
        virtual_one("tap100i0", "tun", nullptr, "vmbr0"),
        virtual_one("fwpr101p0", "veth", nullptr, "vmbr0"),
        // Of a container engine, a machine manager, a CNI plugin.
        virtual_one("docker0", "bridge", "172.17.0.1"),
        virtual_one("veth1a2b3c4", "veth", nullptr, "docker0"),
        virtual_one("br-0123456789ab", "bridge", "172.18.0.1"),
        virtual_one("virbr0", "bridge", "192.168.122.1"),
        virtual_one("vnet0", "tun", nullptr, "virbr0"), virtual_one("cni0", "bridge", "10.244.0.1"),
        virtual_one("veth99", "veth", nullptr, "cni0"), virtual_one("br-lan", "bridge", "10.9.0.1"),
        virtual_one("cali12", "veth", "fe80::2")};
    EXPECT_THAT(names(select_interfaces(all, "", "V", true)),
                ElementsAre("vmbr0", "vmbr1", "vmbr2"));
    EXPECT_THAT(reason_of(all, "eno2"), HasSubstr("port of vmbr1"));
    EXPECT_THAT(reason_of(all, "br-lan"), HasSubstr("without a port that leads out"));
    EXPECT_THAT(reason_of(all, "docker0"), HasSubstr("container or machine manager"));
    EXPECT_THAT(reason_of(all, "cali12"), HasSubstr("container"));
    // A card that somebody has put into libvirt's bridge.
    all.push_back(virtual_one("eno4", "", nullptr, "virbr0"));
    EXPECT_EQ(reason_of(all, "virbr0"), "used");
    // Ports are not taken by name either: they cannot answer.
    EXPECT_THAT(select_interfaces(all, "eno2", "V", false).problem,
                HasSubstr("eno2 (port of vmbr1)"));
    // In a container a veth is the way out, and so is a bridge over it.
    EXPECT_THAT(names(select_interfaces({virtual_one("eth0", "veth", "10.1.0.7"),
                                         virtual_one("docker0", "bridge", "172.17.0.1")},
                                        "", "V", true)),
                ElementsAre("eth0"));
    EXPECT_THAT(names(select_interfaces({virtual_one("eth0", "veth", nullptr, "br0"),
                                         virtual_one("br0", "bridge", "10.1.0.7"),
                                         virtual_one("eth1", "veth", "10.2.0.7")},
                                        "", "V", true)),
                ElementsAre("br0", "eth1"));
    // Without anything better, all bridges of the best kind, none before those.
    all = {virtual_one("docker0", "bridge", "172.17.0.1"), virtual_one("br1", "bridge", "10.1.0.7"),
           virtual_one("br2", "bridge", "10.2.0.7")};
    EXPECT_THAT(names(select_interfaces(all, "", "V", true)), ElementsAre("br1", "br2"));
}

TEST(InterfaceRules, OpenVSwitchVrfsAndVirtualPairs) {
    // Ports of Open vSwitch belong to its datapath; the address is on an internal port.
    std::vector<Interface> all = {virtual_one("ens1", "", nullptr, "ovs-system"),
                                  virtual_one("ovs-system", "openvswitch", nullptr),
                                  virtual_one("br-ex", "openvswitch", "10.0.0.1")};
    EXPECT_THAT(names(select_interfaces(all, "", "V", true)), ElementsAre("br-ex"));
    // A VRF's interfaces have addresses of their own.
    all = {virtual_one("blue", "vrf", "10.5.0.1"), virtual_one("ens2", "", "10.0.1.1", "blue")};
    EXPECT_THAT(names(select_interfaces(all, "", "V", true)), ElementsAre("ens2"));
    // A virtual function behind Hyper-V's own interface.
    all = {virtual_one("eth0", "", "10.0.0.1"), virtual_one("enP1s1", "", "fe80::9", "eth0")};
    EXPECT_THAT(names(select_interfaces(all, "", "V", true)), ElementsAre("eth0"));
    // Both ends in this host.
    all = {virtual_one("eth0", "", "10.0.0.1"), virtual_one("cilium_host", "veth", "10.7.0.3"),
           virtual_one("gw0", "veth", "10.8.0.3")};
    all[1].peer_here = all[2].peer_here = true;
    EXPECT_THAT(names(select_interfaces(all, "", "V", true)), ElementsAre("eth0"));
    EXPECT_THAT(reason_of(all, "gw0"), HasSubstr("its other end is in this host"));
    // By its name the host's end of a container's link; by its network a link as any other.
    all = {virtual_one("eth0", "", "10.0.0.1"), virtual_one("veth0", "veth", "10.7.0.3"),
           virtual_one("veth1", "veth", "10.8.0.3")};
    all[2].addresses[0].prefix = 32;
    EXPECT_THAT(names(select_interfaces(all, "", "V", true)), ElementsAre("eth0", "veth0"));
    // A VLAN on a VLAN on a bond.
    all = {virtual_one("bond0", "bond", "10.0.0.1"), virtual_one("bond0.5", "vlan", nullptr),
           virtual_one("bond0.5.6", "vlan", "10.1.0.1")};
    all[1].lower = "bond0";
    all[2].lower = "bond0.5";
    EXPECT_THAT(names(select_interfaces(all, "", "V", true)), ElementsAre("bond0"));
    EXPECT_THAT(names(select_interfaces(all, "=bond0.5.6", "V", false)), ElementsAre("bond0.5.6"));
}

TEST(InterfaceRules, AHostKnownByAnAddressOfLoopback) {
    std::vector<Interface> all = {make("lo", "10.99.0.1"), make("swp1", "fe80::1"),
                                  make("swp2", "fe80::2")};
    all[0].loopback = true;
    EXPECT_THAT(names(select_interfaces(all, "", "V", true)), ElementsAre("lo"));
    EXPECT_THAT(reason_of(all, "swp1"), HasSubstr("link-local"));
    // A dummy interface is as good; an address of a load balancer's beside real ones is not meant.
    all[0].addresses.clear();
    all.push_back(virtual_one("dummy0", "dummy", "10.99.0.1"));
    EXPECT_THAT(names(select_interfaces(all, "", "V", true)), ElementsAre("dummy0"));
    all.push_back(make("eth0", "10.0.0.1"));
    EXPECT_THAT(names(select_interfaces(all, "", "V", true)), ElementsAre("eth0"));
    EXPECT_TRUE(all[0].address_holder());
    EXPECT_TRUE(all[3].address_holder());
    EXPECT_FALSE(all[4].address_holder());
}

TEST(LinkRelations, WhatIsSaidOfVirtualOnesFollowsFromTheirPorts) {
    std::vector<Interface> all = {virtual_one("eno1", "", nullptr, "bond0"),
                                  virtual_one("eno2", "", nullptr, "bond0"),
                                  virtual_one("bond0", "bond", nullptr, "vmbr0"),
                                  virtual_one("vmbr0", "bridge", "10.0.0.1"),
                                  virtual_one("bond0.7", "vlan", "10.0.7.1"),
                                  virtual_one("veth7", "veth", nullptr, "vmbr0")};
    all[0].nominal_mbps = all[1].nominal_mbps = 25000;
    all[0].hardware = "02aa";
    all[1].hardware = "01bb";
    all[2].hardware = all[3].hardware = all[4].hardware = "02aa";
    all[4].lower = "bond0";
    all[4].nominal_mbps = all[2].nominal_mbps = 25000;  // one of the ports has no carrier now
    all[5].nominal_mbps = 10000;
    all[5].hardware = "0000";
    std::vector<Interface> ready = all;
    complete(ready);
    for (const std::size_t i : {2U, 3U, 4U}) {
        EXPECT_EQ(ready[i].nominal_mbps, 50000) << ready[i].name;
        EXPECT_EQ(ready[i].wire, "bond0") << ready[i].name;
        EXPECT_EQ(ready[i].hardware, "01bb02aa") << ready[i].name;
    }
    EXPECT_EQ(ready[0].wire, "eno1");
    all[2].one_port_at_a_time = true;
    complete(all);
    EXPECT_EQ(all[2].nominal_mbps, 25000);
    EXPECT_TRUE(leads_out(all, all[3]));
    EXPECT_FALSE(leads_out(all, all[5]));
    // A list that makes no sense ends too.
    all = {virtual_one("a", "bridge", nullptr, "b"), virtual_one("b", "bridge", nullptr, "a")};
    all[0].lower = "b";
    all[1].lower = "a";
    complete(all);
    EXPECT_FALSE(leads_out(all, all[0]));
}

TEST(InterfaceRules, Rates) {
    EXPECT_EQ(parse_rate("1gbit"), 125000000U);
    EXPECT_EQ(parse_rate("100mbit"), 12500000U);
    EXPECT_EQ(parse_rate("8kbit"), 1000U);
    for (const char* bad : {"", "gbit", "1", "1Gbit", "-1gbit", "1.5gbit", "99999999999999gbit"}) {
        EXPECT_EQ(parse_rate(bad), 0U) << bad;
    }
}

TEST(Addresses, NetworksAndLoopback) {
    Address a;
    Address b;
    ASSERT_TRUE(parse_address("10.1.2.3", a));
    ASSERT_TRUE(parse_address("10.1.3.3", b));
    a.prefix = 24;
    EXPECT_FALSE(a.same_network(b));
    a.prefix = 23;
    EXPECT_TRUE(a.same_network(b));
    ASSERT_TRUE(parse_address("::1", b));
    EXPECT_TRUE(b.loopback());
    EXPECT_FALSE(a.same_network(b));
    EXPECT_FALSE(parse_address("fe80::1%no-such-interface", b));
    EXPECT_FALSE(parse_address("10.0.0.1%lo", b));
    ASSERT_TRUE(parse_address("fe80::1%lo", b));
    EXPECT_TRUE(b.link_local());
    EXPECT_EQ(b.text(), "fe80::1%lo");
    sockaddr_storage storage;
    to_sockaddr(b, 1, storage);
    Address back;
    ASSERT_TRUE(from_sockaddr(reinterpret_cast<sockaddr*>(&storage), back, nullptr));
    EXPECT_EQ(back.scope, b.scope);
    EXPECT_FALSE(parse_address("eth0", a));
    EXPECT_FALSE(parse_address("", a));
}

TEST(Interfaces, LoopbackOfThisHostIsListed) {
    bool found = false;
    for (const Interface& link : list_interfaces()) {
        if (link.loopback) {
            found = true;
        }
        EXPECT_FALSE(link.name.empty());
    }
    EXPECT_TRUE(found);
}

TEST(Addresses, LinkLocalOnesOfBothFamilies) {
    Address address;
    ASSERT_TRUE(parse_address("169.254.20.10", address));
    EXPECT_TRUE(address.link_local());
    ASSERT_TRUE(parse_address("169.253.20.10", address));
    EXPECT_FALSE(address.link_local());
}

}  // namespace
}  // namespace deft
