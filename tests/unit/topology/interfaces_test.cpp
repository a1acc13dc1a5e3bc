// SPDX-License-Identifier: Apache-2.0
#include "topology/interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
    EXPECT_THAT(chosen(""), ElementsAre("eth0", "eth1", "eth10"));
    const InterfaceSelection selection = select_interfaces(host(), "", "V", true);
    EXPECT_EQ(selection.skipped.size(), 5U);
}

TEST(InterfaceRules, PrefixesExactNamesAndExclusion) {
    EXPECT_THAT(chosen("eth1"), ElementsAre("eth1", "eth10"));
    EXPECT_THAT(chosen("=eth1"), ElementsAre("eth1"));
    EXPECT_THAT(chosen("=eth1,eth0"), ElementsAre("eth1", "eth0"));
    EXPECT_THAT(chosen("^eth1"), ElementsAre("eth0"));
    EXPECT_THAT(chosen("^=eth1"), ElementsAre("eth0", "eth10"));
    EXPECT_THAT(chosen("lo"), ElementsAre("lo"));
    EXPECT_THAT(chosen("eth0,docker"), ElementsAre("eth0", "docker0"));
    EXPECT_THAT(chosen(" =eth1 ,\teth0,, "), ElementsAre("eth1", "eth0"));
    EXPECT_THAT(chosen("127.0.0.2@1gbit, eth0"), ElementsAre("127.0.0.2", "eth0"));
}

TEST(InterfaceRules, FallsBackToWhatThereIs) {
    std::vector<Interface> all = host();
    EXPECT_THAT(names(select_interfaces({all[0], all[4]}, "", "V", true)), ElementsAre("docker0"));
    EXPECT_THAT(names(select_interfaces({all[0]}, "", "V", true)), ElementsAre("lo"));
    EXPECT_THAT(select_interfaces({}, "", "V", true).problem, HasSubstr("no network interface"));
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
    // A virtual function whose card is not seen here, and slow links among themselves, are used.
    all[0].up = false;
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
    EXPECT_THAT(selection.problem, HasSubstr("\"ib3...\""));
    EXPECT_THAT(selection.problem, HasSubstr("eth1"));
    EXPECT_THAT(selection.problem, HasSubstr("eth2 (down)"));
    EXPECT_EQ(selection.problem.find('\n'), std::string::npos);
    // NCCL's own variable is used on many kinds of hosts at once: one match is enough.
    EXPECT_THAT(chosen("eth0,ib3", false), ElementsAre("eth0"));
    EXPECT_NE(select_interfaces(host(), "ib3", "NCCL_SOCKET_IFNAME", false).problem, "");
    EXPECT_NE(select_interfaces(host(), "eth2", "V", true).problem, "");  // down
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
        found = found || link.loopback;
        EXPECT_FALSE(link.name.empty());
    }
    EXPECT_TRUE(found);
}

}  // namespace
}  // namespace deft
