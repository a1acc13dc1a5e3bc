// SPDX-License-Identifier: Apache-2.0
// The devices NCCL is shown, and their properties.
#include "plugin/tcp/device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "plugin/net_api.h"
#include "tests/component/plugin/tcp_pair.h"

namespace deft::net::testing {
namespace {

Interface placed(const char* name, const char* path, int node, std::int64_t speed) {
    Interface link;
    link.name = name;
    link.up = true;
    link.pci_path = path;
    link.numa_node = node;
    link.speed_mbps = speed;
    Address address;
    EXPECT_TRUE(parse_address("10.0.0.1", address));
    address.bytes[3] = static_cast<std::uint8_t>(name[3]);
    link.addresses = {address};
    return link;
}

TEST(Devices, OnePerGpuAffinity) {
    const std::vector<Interface> links = {
        placed("eth0", "/sys/devices/pci0000:10/0000:10:01.0", 0, 200000),
        placed("eth1", "/sys/devices/pci0000:80/0000:80:01.0", 1, 200000)};
    const std::vector<PciPlace> gpus = {pci_place("/sys/devices/pci0000:10/0000:10:02.0", 0),
                                        pci_place("/sys/devices/pci0000:80/0000:80:02.0", 1)};
    const auto devices = make_devices(links, gpus);
    ASSERT_EQ(devices.size(), 2U);
    EXPECT_EQ(devices[0]->name, "deft0");
    EXPECT_EQ(devices[1]->name, "deft1");  // NCCL merges devices of one name
    EXPECT_EQ(devices[0]->pci_path, links[0].pci_path);
    EXPECT_EQ(devices[1]->pci_path, links[1].pci_path);
    EXPECT_EQ(devices[0]->links.size(), 2U);
    EXPECT_EQ(devices[0]->guid, devices[1]->guid);  // one budget
    EXPECT_EQ(devices[0]->speed_mbps(), 400000);
    // The same links give the same guid in another process.
    EXPECT_EQ(make_devices(links, gpus)[0]->guid, devices[0]->guid);

    const auto one = make_devices(links, {});
    ASSERT_EQ(one.size(), 1U);
    EXPECT_EQ(one[0]->name, "deft");

    std::vector<Interface> four = links;
    four.push_back(placed("eth2", "/sys/devices/pci0000:10/0000:10:03.0", 0, 200000));
    four.push_back(placed("eth3", "/sys/devices/pci0000:80/0000:80:03.0", 1, 200000));
    const auto apart = make_devices(four, gpus);
    ASSERT_EQ(apart.size(), 2U);
    EXPECT_EQ(apart[0]->links.size(), 2U);
    EXPECT_NE(apart[0]->guid, apart[1]->guid);
}

TEST(Devices, SpeedIsNominalAndStays) {
    const Device known = make_device({placed("m-0", "", -1, 1000)});
    const Device unknown = make_device({placed("m-1", "", -1, 0)});
    EXPECT_EQ(known.speed_mbps(), 1000);
    EXPECT_EQ(unknown.speed_mbps(), 10000);  // as NCCL assumes
    // What it runs at now is not what it is made for.
    Interface slow = placed("m-2", "", -1, 10000);
    slow.nominal_mbps = 100000;
    EXPECT_EQ(make_device({slow}).speed_mbps(), 100000);
    Interface down = slow;
    down.up = false;
    down.speed_mbps = 0;
    EXPECT_EQ(make_device({down}).speed_mbps(), 100000);
    // Two VLANs of one card.
    Interface other = slow;
    slow.wire = other.wire = "bond0";
    other.name = "m-3";
    EXPECT_EQ(make_device({slow, other}).speed_mbps(), 100000);
    other.wire = "bond1";
    EXPECT_EQ(make_device({slow, other}).speed_mbps(), 200000);
}

// Ranks of one host start while links are up or down, with lists in any order, before and after an
// address came: NCCL must not take what they are told for two devices.
TEST(Devices, WhatNcclIsToldIsTheSameInEveryProcess) {
    std::vector<Interface> links = {
        placed("eth0", "/sys/devices/pci0000:10/0000:10:01.0", 0, 100000),
        placed("eth1", "/sys/devices/pci0000:10/0000:10:02.0", 0, 100000),
        placed("eth2", "/sys/devices/pci0000:80/0000:80:01.0", 1, 100000),
        placed("eth3", "/sys/devices/pci0000:80/0000:80:02.0", 1, 100000)};
    for (std::size_t i = 0; i < links.size(); ++i) {
        links[i].nominal_mbps = 100000;
        links[i].hardware = "02000000000" + std::to_string(i);
    }
    const std::vector<PciPlace> gpus = {pci_place("/sys/devices/pci0000:10/0000:10:03.0", 0),
                                        pci_place("/sys/devices/pci0000:80/0000:80:03.0", 1)};
    const auto first = make_devices(links, gpus);
    const auto told = [](const Device& device) {
        return std::tuple(device.name, device.guid, device.pci_path, device.speed_mbps());
    };
    std::vector<Interface> others = links;
    std::reverse(others.begin(), others.end());
    others[0].up = false;
    others[0].speed_mbps = 0;
    others[1].addresses.clear();
    for (const auto& [given, places] :
         {std::pair(others, gpus), std::pair(others, std::vector<PciPlace>{})}) {
        const auto second = make_devices(given, places);
        const auto same = make_devices(links, places);
        ASSERT_EQ(second.size(), same.size());
        for (std::size_t i = 0; i < second.size(); ++i) {
            EXPECT_EQ(told(*second[i]), told(*same[i]));
        }
    }
    EXPECT_EQ(first.size(), 2U);
    // Another host, another card.
    others[2].hardware = "020000000099";
    EXPECT_NE(make_devices(others, gpus)[0]->guid, first[0]->guid);
    // Of more links than fit the same are kept.
    std::vector<Interface> many;
    for (int i = 0; i < 20; ++i) {
        many.push_back(placed(("eth" + std::to_string(i)).c_str(), "", -1, i < 3 ? 25000 : 10000));
    }
    const Device kept = make_device(many);
    std::reverse(many.begin(), many.end());
    EXPECT_EQ(make_device(many).guid, kept.guid);
}

// NCCL asks from its service threads while others connect: clean under ThreadSanitizer.
TEST(Devices, PropertiesAreAskedByManyThreadsAtOnce) {
    set_process_device(nullptr);
    set_process_device(loopback_device(2));
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            while (!stop.load()) {
                api::Properties properties;
                ASSERT_EQ(api::properties(0, properties), 0);
                ASSERT_STREQ(properties.name, "deft");
                ASSERT_GT(properties.speed_mbps, 0);
                int count = 0;
                ASSERT_EQ(api::devices(&count), 0);
                ASSERT_EQ(count, 1);
            }
        });
    }
    {
        TcpPair pair(2);
        ASSERT_TRUE(pair.establish());
        for (unsigned i = 0; i < 20; ++i) {
            const std::vector<std::byte> data = bytes_of(100000, i);
            std::vector<std::byte> buffer(data.size());
            ASSERT_EQ(pair.transfer(data, buffer), static_cast<long>(data.size()));
            ASSERT_EQ(data, buffer);
        }
    }
    stop.store(true);
    for (std::thread& thread : threads) {
        thread.join();
    }
    set_process_device(nullptr);
}

}  // namespace
}  // namespace deft::net::testing
