// SPDX-License-Identifier: Apache-2.0
#include "planner/model/fabric.h"

#include <gtest/gtest.h>

#include <cmath>

#include "planner/model/collective.h"
#include "planner/model/presets.h"
#include "planner/model/water_filling.h"
#include "tests/unit/planner/random_cases.h"

namespace deft::planner {
namespace {

TEST(CostCurve, PassesThroughItsPointsAndIsLinearInLogSize) {
    const Link link = preset_link("nvlink-a100", 8);
    EXPECT_DOUBLE_EQ(link.cost.seconds(8388608), 133.5e-6);
    EXPECT_NEAR(link.cost.seconds(std::sqrt(8388608.0 * 16777216.0)), 0.5 * (133.5e-6 + 276.6e-6),
                1e-12);
    EXPECT_DOUBLE_EQ(link.cost.seconds(1), 43.8e-6);
    // Beyond the end: the last slope, about 134 GB/s.
    const double more = link.cost.seconds(4294967296.0) - link.cost.seconds(2147483648.0);
    EXPECT_NEAR(2147483648.0 / more, 134e9, 2e9);
}

TEST(CostCurve, BytesWithinInvertsSeconds) {
    for (const char* name : {"nvlink-a100", "nvlink-h200", "10GbE"}) {
        const Link link = preset_link(name, 16);
        for (double bytes = 1 << 20; bytes < 1e10; bytes *= 1.7) {
            const double seconds = link.seconds(bytes);
            const double back = link.bytes_within(seconds);
            EXPECT_NEAR(link.seconds(back), seconds, 1e-12 + 1e-9 * seconds)
                << name << " " << bytes;
        }
        EXPECT_EQ(link.bytes_within(0), 0) << name;
    }
}

TEST(CostCurve, IsStraightBetweenSizesThatLieFarApart) {
    Link link;
    link.cost.points = {{1e6, 1e-3}, {1e8, 0.1}, {2e8, 0.1}, {4e8, 0.3}};
    link.cost.straight = true;
    EXPECT_DOUBLE_EQ(link.seconds(1e6), 1e-3);
    EXPECT_DOUBLE_EQ(link.seconds(5e7), 0.05);  // 0.086 by the logarithm
    EXPECT_DOUBLE_EQ(link.bytes_within(0.05), 5e7);
    EXPECT_DOUBLE_EQ(link.bytes_within(0.1), 2e8);
    EXPECT_DOUBLE_EQ(link.bytes_within(0.2), 3e8);
    EXPECT_DOUBLE_EQ(link.seconds(5e8), 0.4);
    EXPECT_DOUBLE_EQ(link.best_rate(), 2e8 / (0.1 - link.cost.latency()));
    // A line through the points, and what it takes before the first byte.
    link.cost.points = {{1e6, 3e-3}, {2e6, 4e-3}, {1e8, 0.102}};
    EXPECT_DOUBLE_EQ(link.cost.latency(), 1.5e-3) << "2 ms, but no more than half of the first";
    link.cost.points = {{3e6, 5e-3}, {4e6, 6e-3}, {1e8, 0.102}};
    EXPECT_NEAR(link.cost.latency(), 2e-3, 1e-9);
    EXPECT_NEAR(link.best_rate(), 1e9, 1e3);
}

TEST(CostCurve, NoSizeBeatsTheBestRate) {
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
        std::mt19937_64 random(seed);
        const Fabric fabric = testing::random_fabric(random, 3, true);
        for (const Link& link : fabric.links) {
            for (double bytes = 1024; bytes < 1e11; bytes *= 1.37) {
                const double moving = link.cost.seconds(bytes) - link.cost.latency();
                EXPECT_LE(bytes, moving > 0 ? link.best_rate() * moving * (1 + 1e-9) : INFINITY)
                    << seed;
                if (bytes < 32768) {
                    break;  // below the first point nothing moves
                }
            }
        }
    }
}

TEST(WaterFilling, EqualFinishOnLines) {
    Fabric fabric;
    fabric.links = {testing::line("a", 10e9, 1e-4), testing::line("b", 5e9, 5e-4),
                    testing::line("c", 1e9, 1)};
    const WaterFilling filling = water_fill(fabric, 1e8);
    EXPECT_EQ(filling.bytes[2], 0);  // its latency alone is longer
    EXPECT_NEAR(fabric.links[0].seconds(filling.bytes[0]), filling.seconds, 1e-12);
    EXPECT_NEAR(fabric.links[1].seconds(filling.bytes[1]), filling.seconds, 1e-12);
    EXPECT_NEAR(filling.bytes[0] + filling.bytes[1], 1e8, 1e-3);
    // A message below sum (alpha_j - alpha_k) / beta_k stays on one link.
    EXPECT_EQ(water_fill(fabric, 1e6).bytes[1], 0);
    EXPECT_GT(water_fill(fabric, 4.1e6).bytes[1], 0);
}

TEST(WaterFilling, NoSplitOfTwoLinksIsFaster) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        std::mt19937_64 random(seed);
        Fabric fabric = testing::random_fabric(random, 2, true);
        for (Link& link : fabric.links) {
            link.group.clear();
        }
        const double bytes = testing::uniform(random, 1e5, 3e8);
        const double filled = water_fill(fabric, bytes).seconds;
        for (int i = 0; i <= 100; ++i) {
            const double first = bytes * i / 100;
            const double a = i == 0 ? 0 : fabric.links[0].seconds(first);
            const double b = i == 100 ? 0 : fabric.links[1].seconds(bytes - first);
            EXPECT_LE(filled, std::max(a, b) * (1 + 1e-9)) << seed;
        }
    }
}

TEST(WaterFilling, WholeElementsSumToTheMessage) {
    Fabric fabric;
    fabric.links = {testing::line("a", 10e9), testing::line("b", 3e9)};
    const auto shares = split_bytes(water_fill(fabric, 1e7), 10000000, 512, 4096);
    EXPECT_EQ(shares[0] + shares[1], 10000000U);
    EXPECT_EQ(shares[1] % 512, 0U);
    EXPECT_NEAR(static_cast<double>(shares[1]), 1e7 * 3 / 13, 512);
    EXPECT_EQ(split_bytes(water_fill(fabric, 1e4), 10000, 512, 4096)[1], 0U);
}

TEST(Fabric, MergedCarriesTheSum) {
    Fabric fabric;
    fabric.links = {testing::line("a", 2e9), testing::line("b", 1e9)};
    EXPECT_NEAR(fabric.merged().links[0].seconds(3e9), 1, 1e-9);
    fabric.groups.push_back({"uplink", 2.5e9});
    fabric.links[0].group = fabric.links[1].group = "uplink";
    EXPECT_NEAR(fabric.merged().links[0].seconds(3e9), 1.2, 1e-9);
}

TEST(Fabric, ProblemsNameTheField) {
    Fabric fabric;
    EXPECT_EQ(fabric.problem(), "links: there is none");
    fabric.links = {testing::line("a", 2e9), testing::line("a", 1e9)};
    EXPECT_NE(fabric.problem().find("links[1].name"), std::string::npos);
    fabric.links[1].name = "b";
    fabric.links[1].cost.alpha = -1;
    EXPECT_NE(fabric.problem().find("links[1].alpha"), std::string::npos);
    fabric.links[1].cost.alpha = 0;
    fabric.links[0].group = "pipe";
    EXPECT_NE(fabric.problem().find("links[0].group"), std::string::npos);
}

TEST(Collective, RingTreeHierarchical) {
    EXPECT_NEAR(ring_link("r", 16, 1e-5, 1e9).seconds(1.6e9), 30e-5 + 2 * 15 / 16.0 * 1.6, 1e-9);
    EXPECT_NEAR(tree_link("t", 16, 1e-5, 1e9).seconds(1e9), 8e-5 + 2, 1e-9);
    const Link link = hierarchical_link("h", 4, 8, 1e-6, 100e9, 1e-5, 10e9);
    const double inner = 7e-6 + 7 / 8.0 * 1e9 / 100e9;
    const double outer = 6e-5 + 6 / 4.0 * 1e9 / 10e9;
    EXPECT_NEAR(link.seconds(1e9), 2 * inner + outer, 1e-12);
    // Large messages: the tree loses by n/(n-1); small ones: it wins by its depth.
    EXPECT_LT(tree_link("t", 256, 1e-5, 1e9).seconds(1e4),
              ring_link("r", 256, 1e-5, 1e9).seconds(1e4));
}

// Rings by few ranks and for large messages, trees by many and for small ones: never worse than
// either, and start-ups that grow with the logarithm of the nodes.
TEST(NcclLink, TakesTheFasterAlgorithmForEveryMessage) {
    for (const std::uint32_t ranks : {2U, 4U, 8U, 64U, 1024U, 10000U}) {
        const Link link = nccl_link("l", ranks, 4, 5e-6, 100e-6, 1e9);
        const double n = ranks;
        const double nodes = std::ceil(n / 4);
        const double crossing = nodes > 1 ? std::min(2 * (n - 1), 2 * nodes) : 0;
        const double ring = crossing * 100e-6 + (2 * (n - 1) - crossing) * 5e-6;
        const double tree =
            nodes > 1 ? 2 * ((std::min(4.0, n) - 1) * 5e-6 + std::ceil(std::log2(nodes)) * 100e-6)
                      : INFINITY;
        EXPECT_NEAR(link.latency(), std::min(ring, tree), 1e-12) << ranks;
        for (double bytes = 1; bytes < 1e12; bytes *= 3) {
            const double expected =
                std::min(ring + bytes * 2 * (n - 1) / n / 1e9, tree + bytes * 2 / 0.92e9);
            EXPECT_NEAR(link.seconds(bytes), expected, 1e-9 * expected) << ranks;
            EXPECT_NEAR(link.bytes_within(link.seconds(bytes)), bytes, 1e-6 * bytes) << ranks;
        }
        EXPECT_NEAR(link.best_rate(), 1e9 * n / (2 * (n - 1)), 1);
    }
    // 256 times the ranks, 8 more levels.
    const double few = nccl_link("l", 64, 8, 1e-6, 10e-6, 1e9).latency();
    const double many = nccl_link("l", 16384, 8, 1e-6, 10e-6, 1e9).latency();
    EXPECT_NEAR(many - few, 2 * 8 * 10e-6, 1e-9);
    Fabric broken;
    broken.links.push_back(nccl_link("l", 8, 4, 1e-6, 1e-6, 1e9));
    broken.links[0].cost.algorithms[0].beta = -1;
    EXPECT_NE(broken.problem(), "");
}

TEST(Presets, SayWhereNobodyMeasured) {
    EXPECT_EQ(preset_link("10GbE", 8).beyond, "");
    EXPECT_EQ(preset_link("10GbE", 32).beyond, "");
    EXPECT_EQ(preset_link("10GbE", 33).beyond, "measured with 8 to 32 ranks, used for 33");
    EXPECT_EQ(preset_link("nvlink-a100", 4).beyond, "measured with 8 ranks, used for 4");
    Fabric two;
    two.links = {preset_link("10GbE", 64), preset_link("100Gb-IB", 64)};
    EXPECT_NE(two.merged().links[0].beyond.find("10GbE measured"), std::string::npos);
}

// What nccl-tests showed, seconds per all-reduce, against the presets of nodes with NVLink inside.
struct Row {
    const char* preset;
    std::uint32_t ranks;
    double mebibytes, microseconds;
};

constexpr Row kNodes[] = {
    // NVIDIA/nccl issue 1244, two nodes.
    {"h100-8x400Gb-IB", 16, 1, 121.8},
    {"h100-8x400Gb-IB", 16, 2, 129.8},
    {"h100-8x400Gb-IB", 16, 4, 127.6},
    {"h100-8x400Gb-IB", 16, 8, 146.5},
    {"h100-8x400Gb-IB", 16, 16, 203.0},
    {"h100-8x400Gb-IB", 16, 32, 298.5},
    {"h100-8x400Gb-IB", 16, 64, 467.9},
    {"h100-8x400Gb-IB", 16, 128, 1108.0},
    {"h100-8x400Gb-IB", 16, 256, 2055.4},
    {"h100-8x400Gb-IB", 16, 512, 3218.6},
    // nccl-tests issue 283, 248 nodes: 350 GB/s times 2 (n - 1) / n.
    {"h100-8x400Gb-IB", 1984, 512, 3066.3},
    // nccl-tests issue 100, two nodes: 91 GB/s.
    {"a100-4x200Gb-IB", 16, 1024, 22123},
};

TEST(Presets, OfNodesWithNvlinkInsideAreAsMeasured) {
    double sum = 0;
    for (const Row& row : kNodes) {
        const double seconds = preset_link(row.preset, row.ranks).seconds(row.mebibytes * 0x1p20);
        const double off = std::abs(std::log(seconds / (row.microseconds * 1e-6)));
        EXPECT_LT(off, std::log(1.1)) << row.preset << ", " << row.ranks << " ranks, "
                                      << row.mebibytes << " MiB: " << seconds * 1e6 << " us";
        sum += off;
    }
    EXPECT_LT(sum / std::size(kNodes), std::log(1.02)) << std::exp(sum / std::size(kNodes));
    // nccl-tests issue 119, three nodes, every MiB up to 128: 84.8 GB/s on average.
    const Link three = preset_link("a100-4x200Gb-IB", 24);
    double bus = 0;
    for (int i = 1; i <= 128; ++i) {
        bus += i * 0x1p20 * 2 * 23 / 24 / three.seconds(i * 0x1p20) / 128;
    }
    EXPECT_NEAR(bus, 84.8e9, 0.15 * 84.8e9);
}

// As NCCL chooses: by the number of ranks and the message.
TEST(Presets, ChooseRingTreeOrHierarchy) {
    const auto fastest = [](const Link& link, double bytes) {
        const auto& ways = link.cost.algorithms;
        return std::min_element(ways.begin(), ways.end(),
                                [&](const CostLine& a, const CostLine& b) {
                                    return a.alpha + a.beta * bytes < b.alpha + b.beta * bytes;
                                }) -
               ways.begin();
    };
    const Link three = preset_link("h100-8x400Gb-IB", 24);
    ASSERT_EQ(three.cost.algorithms.size(), 3U);
    EXPECT_EQ(fastest(three, 0x1p20), 1) << "a tree";
    EXPECT_EQ(fastest(three, 0x1p27), 2) << "the hierarchy";
    EXPECT_EQ(fastest(three, 0x1p30), 0) << "a ring";
    EXPECT_EQ(fastest(preset_link("h100-8x400Gb-IB", 2048), 0x1p30), 2);
    const Link a100 = preset_link("a100-4x200Gb-IB", 2048);
    EXPECT_EQ(a100.cost.algorithms.size(), 2U) << "its switches add nothing";
    EXPECT_EQ(fastest(a100, 0x1p28), 1);
    EXPECT_EQ(fastest(preset_link("a100-4x200Gb-IB", 16), 0x1p28), 0);
    // On one node there is the node's own curve.
    EXPECT_EQ(preset_link("h100-8x400Gb-IB", 8).cost, preset_link("nvlink-h200", 8).cost);
    EXPECT_EQ(preset_link("a100-4x200Gb-IB", 8).cost, preset_link("nvlink-a100", 8).cost);
    EXPECT_EQ(preset_link("a100-4x200Gb-IB", 8).beyond, "");
    EXPECT_NE(preset_link("a100-4x200Gb-IB", 9).beyond, "");
    EXPECT_EQ(preset_link("h100-8x400Gb-IB", 1984).beyond, "");
    EXPECT_NE(preset_link("h100-8x400Gb-IB", 1985).beyond, "");
    // Between two nodes and 248 nobody measured, and with 248 one size.
    EXPECT_EQ(preset_link("h100-8x400Gb-IB", 16).beyond, "");
    EXPECT_EQ(preset_link("h100-8x400Gb-IB", 64).beyond,
              "measured with 16 and 1984 ranks, used for 64");
    EXPECT_EQ(preset_link("h100-8x400Gb-IB", 16).least_bytes, 0x1p20);
    EXPECT_EQ(preset_link("h100-8x400Gb-IB", 1984).least_bytes, 0x1p29);
}

TEST(Presets, SayWhichMessagesWereMeasured) {
    const Link link = preset_link("400Gb-IB", 2);
    EXPECT_EQ(link.least_bytes, 2 * 0x1p20);
    EXPECT_EQ(link.most_bytes, 32 * 0x1p20);
    Fabric two;
    two.links = {link, link};
    EXPECT_EQ(two.merged().links[0].least_bytes, 4 * 0x1p20) << "each gets a half";
    EXPECT_EQ(two.merged().links[0].most_bytes, 64 * 0x1p20);
    // The node's own curve has its own range.
    EXPECT_EQ(preset_link("a100-4x200Gb-IB", 8).least_bytes, 32 * 0x1p10);
}

TEST(Presets, EveryOneHasARateAndASource) {
    EXPECT_GE(link_presets().size(), 5U);
    for (const LinkPreset& preset : link_presets()) {
        Fabric fabric;
        fabric.links.push_back(preset_link(preset.name, 16));
        EXPECT_EQ(fabric.problem(), "") << preset.name;
        EXPECT_FALSE(fabric.links[0].source.empty()) << preset.name;
    }
    EXPECT_THROW(preset_link("token ring", 2), std::invalid_argument);
}

}  // namespace
}  // namespace deft::planner
