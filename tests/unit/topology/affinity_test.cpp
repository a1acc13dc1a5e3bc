// SPDX-License-Identifier: Apache-2.0
#include "topology/affinity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deft {
namespace {

using ::testing::ElementsAre;

// A device below bridges: place(1, "pci0000:10", "0000:10:00.0", "0000:11:00.0").
template <class... Names>
PciPlace place(int node, Names... names) {
    PciPlace result;
    result.bridges = {names...};
    result.address = result.bridges.back();
    result.bridges.pop_back();
    result.numa_node = node;
    return result;
}

TEST(PciPlace, ComesFromTheResolvedFolder) {
    const PciPlace device =
        pci_place("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/net/eth0", 1);
    EXPECT_EQ(device.address, "0000:01:00.0");
    EXPECT_THAT(device.bridges, ElementsAre("pci0000:00", "0000:00:01.0"));
    EXPECT_EQ(device.numa_node, 1);
    const PciPlace cloud = pci_place(
        "/sys/devices/LNXSYSTM:00/LNXSYBUS:00/PNP0A03:00/VMBUS:00/guid/pci0001:00/0001:00:00.0", 0);
    EXPECT_EQ(cloud.address, "0001:00:00.0");
    EXPECT_THAT(cloud.bridges, ElementsAre("pci0001:00"));
    EXPECT_EQ(pci_place("/sys/devices/pci10000:e0/10000:e0:06.0/10000:e1:00.0", 0).address,
              "10000:e1:00.0");  // domains of five digits exist
    EXPECT_FALSE(pci_place("/sys/devices/virtual/net/veth0", 0).known());
    EXPECT_FALSE(pci_place("/sys/devices/platform/soc", 0).known());
    EXPECT_FALSE(pci_place("", -1).known());
}

TEST(PciPlace, Distances) {
    const PciPlace gpu = place(0, "h0", "up", "port1", "gpu");
    EXPECT_EQ(distance(gpu, gpu), Distance::Same);
    EXPECT_EQ(distance(gpu, place(0, "h0", "up", "port2", "nic")), Distance::Pix);
    EXPECT_EQ(distance(gpu, place(0, "h0", "up", "port2", "up2", "port3", "nic")), Distance::Pxb);
    EXPECT_EQ(distance(gpu, place(0, "h0", "root2", "nic")), Distance::Phb);
    EXPECT_EQ(distance(gpu, place(0, "h1", "root2", "nic")), Distance::Node);
    EXPECT_EQ(distance(gpu, place(-1, "h1", "root2", "nic")), Distance::Node);
    EXPECT_EQ(distance(gpu, place(1, "h2", "root2", "nic")), Distance::Sys);
    EXPECT_EQ(distance(gpu, PciPlace{}), Distance::Unknown);
}

LinkPlace link(PciPlace pci, std::int64_t speed) {
    return {std::move(pci), speed};
}

TEST(Affinity, OneGroupWithoutGpusOrPlaces) {
    const std::vector<LinkPlace> links = {link({}, 1000), link({}, 10000)};
    const auto groups = group_by_affinity(links, {});
    ASSERT_EQ(groups.size(), 1U);
    EXPECT_THAT(groups[0].links, ElementsAre(0, 1));
    EXPECT_FALSE(groups[0].shared);
    EXPECT_EQ(group_by_affinity(links, {place(0, "h", "gpu")}).size(), 1U);
    EXPECT_TRUE(group_by_affinity({}, {}).empty());
}

TEST(Affinity, WithoutGpusTheFastestPlacedLinkIsTheNearest) {
    const auto groups = group_by_affinity(
        {link(place(0, "h", "a"), 1000), link({}, 100000), link(place(0, "h", "b"), 25000)}, {});
    ASSERT_EQ(groups.size(), 1U);
    EXPECT_EQ(groups[0].nearest, 2U);
}

TEST(Affinity, EqualSetsStandAlone) {
    std::vector<LinkPlace> links;
    std::vector<PciPlace> gpus;
    for (const char* host : {"h0", "h1"}) {
        for (const char* card : {"nic0", "nic1"}) {
            links.push_back(link(place(0, host, (std::string(host) + card).c_str()), 100000));
        }
        gpus.push_back(place(0, host, (std::string(host) + "gpu0").c_str()));
        gpus.push_back(place(0, host, (std::string(host) + "gpu1").c_str()));
    }
    const auto groups = group_by_affinity(links, gpus);
    ASSERT_EQ(groups.size(), 2U);
    EXPECT_THAT(groups[0].links, ElementsAre(0, 1));
    EXPECT_THAT(groups[1].links, ElementsAre(2, 3));
    EXPECT_FALSE(groups[0].shared);
}

// Unequal devices would let NCCL's search give every channel what the slowest can carry.
TEST(Affinity, UnequalOrSingleLinksAreShared) {
    const std::vector<PciPlace> gpus = {place(0, "h0", "g0"), place(1, "h1", "g1")};
    const std::vector<LinkPlace> single = {link(place(0, "h0", "n0"), 200000),
                                           link(place(1, "h1", "n1"), 200000)};
    auto groups = group_by_affinity(single, gpus);
    ASSERT_EQ(groups.size(), 2U);
    EXPECT_THAT(groups[0].links, ElementsAre(0, 1));
    EXPECT_THAT(groups[1].links, ElementsAre(0, 1));
    EXPECT_TRUE(groups[0].shared);
    EXPECT_EQ(groups[0].nearest, 0U);
    EXPECT_EQ(groups[1].nearest, 1U);

    const std::vector<LinkPlace> unequal = {
        link(place(0, "h0", "n0"), 100000), link(place(0, "h0", "n1"), 100000),
        link(place(1, "h1", "n2"), 100000), link(place(1, "h1", "n3"), 200000)};
    groups = group_by_affinity(unequal, gpus);
    ASSERT_EQ(groups.size(), 2U);
    EXPECT_EQ(groups[0].links.size(), 4U);
    EXPECT_EQ(groups[1].links.size(), 4U);
    EXPECT_EQ(groups[1].nearest, 3U);
}

TEST(Affinity, SlowLinkIsUsedButNeverNearest) {
    const std::vector<PciPlace> gpus = {place(0, "h0", "g0")};
    const std::vector<LinkPlace> links = {link(place(0, "h0", "slow"), 10000),
                                          link(place(1, "h1", "fast"), 400000)};
    const auto groups = group_by_affinity(links, gpus);
    ASSERT_EQ(groups.size(), 1U);
    EXPECT_EQ(groups[0].nearest, 1U);
    EXPECT_THAT(groups[0].links, ElementsAre(0, 1));
}

TEST(Affinity, GpusNearTheSameLinkShareOneDevice) {
    const std::vector<PciPlace> gpus = {place(0, "h0", "g0"), place(1, "h1", "g1")};
    const auto groups = group_by_affinity({link(place(0, "h0", "n0"), 100000)}, gpus);
    ASSERT_EQ(groups.size(), 1U);
    EXPECT_FALSE(groups[0].shared);
}

}  // namespace
}  // namespace deft
