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
}

TEST(InterfaceRules, FallsBackToWhatThereIs) {
    std::vector<Interface> all = host();
    EXPECT_THAT(names(select_interfaces({all[0], all[4]}, "", "V", true)), ElementsAre("docker0"));
    EXPECT_THAT(names(select_interfaces({all[0]}, "", "V", true)), ElementsAre("lo"));
    EXPECT_THAT(select_interfaces({}, "", "V", true).problem, HasSubstr("no network interface"));
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
