// SPDX-License-Identifier: Apache-2.0
// A communicator's traffic class chooses its links and how much of each; devices and properties.
#include "topology/lanes.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "plugin/device.h"
#include "plugin/net_api.h"
#include "tests/component/plugin/tcp_pair.h"

namespace deft::net::testing {
namespace {

Lane lane_of(std::initializer_list<std::pair<const char*, int>> links, int others = 0) {
    Lane lane;
    for (const auto& [name, weight] : links) {
        std::strncpy(lane.links[lane.count].name, name, sizeof(LaneLink::name) - 1);
        lane.links[lane.count++].weight = static_cast<std::uint16_t>(weight);
    }
    lane.others = static_cast<std::uint16_t>(others);
    return lane;
}

std::uint64_t sent_on(const char* link) {
    return LinkStats::process().link(link, "tcp").bytes_sent.load();
}

class LaneTest : public ::testing::Test {
protected:
    void TearDown() override {
        for (int i = 0; i < kLanes; ++i) {
            clear_lane(kFirstLaneClass + i);
        }
    }
    // Moves some messages over a connection of this class; NULL on failure.
    static std::unique_ptr<TcpPair> run(int listening, int connecting, std::size_t links) {
        ConnectionOptions options;
        options.lane = listening;
        auto pair = std::make_unique<TcpPair>(links, 30 * kSecond, options);
        pair->options.lane = connecting;
        if (!pair->establish()) {
            ADD_FAILURE() << "no connection";
            return nullptr;
        }
        for (unsigned i = 0; i < 40; ++i) {
            const std::vector<std::byte> data = bytes_of(1 << 20, i);
            std::vector<std::byte> buffer(data.size());
            EXPECT_EQ(pair->transfer(data, buffer), static_cast<long>(data.size()));
            EXPECT_EQ(data, buffer);
        }
        return pair;
    }
};

TEST_F(LaneTest, RegistryKeepsWhatWasSet) {
    Lane lane;
    EXPECT_FALSE(find_lane(kFirstLaneClass, lane));
    EXPECT_FALSE(set_lane(0, lane));  // somebody else's traffic class
    EXPECT_FALSE(set_lane(kFirstLaneClass + kLanes, lane));
    EXPECT_TRUE(set_lane(kFirstLaneClass + 3, lane_of({{"eth0", 500}}, 7)));
    ASSERT_TRUE(find_lane(kFirstLaneClass + 3, lane));
    EXPECT_EQ(lane.weight("eth0"), 500);
    EXPECT_EQ(lane.weight("eth1"), 7);
    clear_lane(kFirstLaneClass + 3);
    EXPECT_FALSE(find_lane(kFirstLaneClass + 3, lane));
    EXPECT_FALSE(find_lane(-1, lane));
}

TEST_F(LaneTest, OnlyTheLinksOfTheLaneCarry) {
    ASSERT_TRUE(set_lane(kFirstLaneClass, lane_of({{"127.0.0.3", 1000}})));
    const std::uint64_t other = sent_on("127.0.0.2");
    const std::uint64_t own = sent_on("127.0.0.3");
    const auto pair = run(kFirstLaneClass, kFirstLaneClass, 3);
    ASSERT_NE(pair, nullptr);
    EXPECT_EQ(pair->sender->paths(), 1U);
    EXPECT_EQ(sent_on("127.0.0.2"), other);
    EXPECT_EQ(sent_on("127.0.0.3"), own + (40U << 20));
}

// NCCL 2.26 and 2.27 tell the traffic class to the connecting side only.
TEST_F(LaneTest, TheConnectingSideAloneIsEnough) {
    ASSERT_TRUE(set_lane(kFirstLaneClass + 1, lane_of({{"127.0.0.2", 1000}})));
    const std::uint64_t other = sent_on("127.0.0.4");
    const auto pair = run(-1, kFirstLaneClass + 1, 3);
    ASSERT_NE(pair, nullptr);
    EXPECT_EQ(sent_on("127.0.0.4"), other);
}

TEST_F(LaneTest, WeightsDivideTheTraffic) {
    ASSERT_TRUE(set_lane(kFirstLaneClass + 2, lane_of({{"127.0.0.2", 1000}, {"127.0.0.3", 50}})));
    const std::uint64_t heavy = sent_on("127.0.0.2");
    const std::uint64_t light = sent_on("127.0.0.3");
    const auto pair = run(kFirstLaneClass + 2, kFirstLaneClass + 2, 2);
    ASSERT_NE(pair, nullptr);
    EXPECT_EQ(pair->sender->paths(), 2U);
    EXPECT_GT(sent_on("127.0.0.2") - heavy, 2 * (sent_on("127.0.0.3") - light));
}

TEST_F(LaneTest, UnknownClassesAndEmptyLanesUseAllLinks) {
    ASSERT_TRUE(set_lane(kFirstLaneClass + 4, lane_of({{"eth99", 1000}})));
    for (const int traffic_class : {106, kFirstLaneClass + 9, kFirstLaneClass + 4}) {
        const auto pair = run(traffic_class, traffic_class, 2);
        ASSERT_NE(pair, nullptr);
        EXPECT_EQ(pair->sender->paths(), 2U);
    }
}

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

TEST(Devices, SpeedFollowsWhatWasMeasured) {
    const Device known = make_device({placed("m-0", "", -1, 1000)});
    const Device unknown = make_device({placed("m-1", "", -1, 0)});
    EXPECT_EQ(known.speed_mbps(), 1000);
    EXPECT_EQ(unknown.speed_mbps(), 10000);  // as NCCL assumes
    for (const char* name : {"m-0", "m-1"}) {
        LinkCounters& counters = LinkStats::process().link(name, "tcp");
        counters.sample(1);
        for (std::int64_t now = 1; now < 40; ++now) {  // 25 MB in each tenth of a second: 2 Gbit/s
            counters.bytes_sent.fetch_add(25'000'000);
            counters.sample(now * 100'000'001);
        }
    }
    EXPECT_NEAR(static_cast<double>(known.speed_mbps()), 2000, 20);
    EXPECT_NEAR(static_cast<double>(unknown.speed_mbps()), 2000, 20);
    // Less than nominal is not believed: others may share the link.
    EXPECT_EQ(make_device({placed("m-0", "", -1, 10000)}).speed_mbps(), 10000);
    // A gap in which nobody looked says nothing.
    LinkCounters& counters = LinkStats::process().link("m-0", "tcp");
    const std::int64_t before = counters.peak_mbps.load();
    counters.bytes_sent.fetch_add(std::uint64_t{1} << 40);
    counters.sample(40 * 100'000'001LL + 10'000'000'000);
    EXPECT_EQ(counters.peak_mbps.load(), before);
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
                ASSERT_TRUE(set_lane(kFirstLaneClass, lane_of({{"127.0.0.2", 1000}}, 1000)));
            }
        });
    }
    {
        ConnectionOptions options;
        options.lane = kFirstLaneClass;
        TcpPair pair(2, 30 * kSecond, options);
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
    clear_lane(kFirstLaneClass);
}

}  // namespace
}  // namespace deft::net::testing
