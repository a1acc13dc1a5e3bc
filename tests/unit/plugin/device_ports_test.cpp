// SPDX-License-Identifier: Apache-2.0
#include "plugin/device_ports.h"

#include <gtest/gtest.h>

#include "plugin/verbs/ports.h"

namespace deft::net {
namespace {

std::shared_ptr<const Device> device(const char* link, std::int64_t mbps,
                                     const char* wire = nullptr) {
    Interface one;
    one.name = link;
    one.wire = wire == nullptr ? link : wire;
    one.speed_mbps = one.nominal_mbps = mbps;
    return std::make_shared<const Device>(make_device({one}));
}

std::shared_ptr<const VerbsPort> port(const char* interface, std::int64_t mbps) {
    auto made = std::make_shared<VerbsPort>();
    made->speed_mbps = mbps;
    if (*interface != '\0') {
        made->interfaces.push_back(interface);
    }
    return made;
}

TEST(DevicePorts, APortGoesWithTheDeviceOfItsInterface) {
    const auto first = device("eth0", 100000);
    const auto second = device("eth1", 100000);
    const Ports ports = {port("eth0", 100000), port("eth1", 100000), port("", 200000)};
    EXPECT_EQ(ports_of(*first, {first, second}, ports), (Ports{ports[0], ports[2]}));
    EXPECT_EQ(ports_of(*second, {first, second}, ports), (Ports{ports[1], ports[2]}));
    EXPECT_EQ(ports_of(*first, {first}, ports), ports) << "eth1 is no link of deft's";
}

TEST(DevicePorts, APortGoesWithTheVlanThatGoesOverItsInterface) {
    const auto vlan = device("eth0.7", 100000, "eth0");
    const auto other = device("eth1", 100000);
    const Ports ports = {port("eth0", 100000)};
    EXPECT_EQ(ports_of(*vlan, {vlan, other}, ports), ports);
    EXPECT_EQ(ports_of(*other, {vlan, other}, ports), Ports{});
    EXPECT_EQ(told_speed(*vlan, ports), 100000);
}

TEST(DevicePorts, AWireCountsOnce) {
    const auto one = device("eth0", 100000);
    EXPECT_EQ(told_speed(*one, {}), 100000);
    EXPECT_EQ(told_speed(*one, {port("eth0", 100000)}), 100000);
    EXPECT_EQ(told_speed(*one, {port("eth0", 400000)}), 400000);
    EXPECT_EQ(told_speed(*one, {port("", 400000), port("eth9", 1000)}), 501000);
}

}  // namespace
}  // namespace deft::net
