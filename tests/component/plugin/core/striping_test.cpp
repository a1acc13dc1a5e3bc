// SPDX-License-Identifier: Apache-2.0
// The striping core over fake links on a virtual clock: shares, tails, relearning. Times here are
// virtual, so they can be asserted.
#include <gtest/gtest.h>

#include "tests/component/plugin/core/traffic.h"

namespace deft::net::testing {
namespace {

double rate_after(const TrafficResult& result, Nanos from, Nanos to) {
    std::uint64_t bytes = 0;
    for (const auto& [time, size] : result.log) {
        bytes += time >= from && time < to ? size : 0;
    }
    return static_cast<double>(bytes) * 1e9 / static_cast<double>(to - from);
}

double throughput(std::vector<FakeLink> links, std::size_t size, std::size_t messages) {
    FakeWire wire(std::move(links));
    EXPECT_TRUE(wire.establish());
    TrafficOptions options;
    options.messages = messages;
    options.size = [=](std::size_t) { return size; };
    const TrafficResult result = run_traffic(wire, options);
    EXPECT_TRUE(result.complete);
    return static_cast<double>(result.bytes) * 1e9 / static_cast<double>(result.elapsed);
}

TEST(Striping, TwoUnequalLinksAddUp) {
    EXPECT_GE(throughput({link(2), link(1)}, 512 * 1024, 400), 0.95 * 3 * kGbit);
    EXPECT_GE(throughput({link(1), link(2)}, 1 << 20, 200), 0.95 * 3 * kGbit);
}

TEST(Striping, FourEqualLinksAddUp) {
    EXPECT_GE(throughput({link(1), link(1), link(1), link(1)}, 1 << 20, 300), 0.95 * 4 * kGbit);
}

TEST(Striping, SlowLinkNeverHoldsUpTheFastOne) {
    const double alone = throughput({link(1)}, 512 * 1024, 200);
    const double both = throughput({link(1), link(0.1)}, 512 * 1024, 200);
    EXPECT_GE(both, 0.93 * 1.1 * kGbit);
    EXPECT_GE(both, alone);
}

TEST(Striping, TwoPathsThroughOnePipeGiveWhatOneGives) {
    FakeWire wire({link(1), link(1)});
    wire.links[1].shares = &wire.links[0];
    ASSERT_TRUE(wire.establish());
    const TrafficResult result = run_traffic(wire, {.messages = 200});
    ASSERT_TRUE(result.complete);
    EXPECT_GE(static_cast<double>(result.bytes) * 1e9 / static_cast<double>(result.elapsed),
              0.95 * kGbit);
}

TEST(Striping, ChangedRateIsLearnedWithinASecond) {
    FakeWire wire({link(1), link(0.5)});
    ASSERT_TRUE(wire.establish());
    TrafficOptions options;
    options.messages = 900;
    options.each_step = [&](Nanos since) {
        const bool halved = since > kSecond && since < 2 * kSecond;
        wire.links[0].bytes_per_second = (halved ? 0.5 : 1) * kGbit;
    };
    const TrafficResult result = run_traffic(wire, options);
    ASSERT_TRUE(result.complete);
    ASSERT_GT(result.elapsed, 2700 * kMillisecond);
    EXPECT_GE(rate_after(result, 1300 * kMillisecond, 2 * kSecond), 0.9 * kGbit);
    EXPECT_GE(rate_after(result, 2300 * kMillisecond, 2700 * kMillisecond), 0.9 * 1.5 * kGbit);
}

TEST(Striping, OddAndZeroSizesArriveBitExact) {
    for (const std::size_t paths : {1, 2, 3}) {
        std::vector<FakeLink> links;
        for (std::size_t i = 0; i < paths; ++i) {
            links.push_back(link(1.0 / static_cast<double>(i + 1), (i * 50 + 5) * kMicrosecond));
        }
        FakeWire wire(std::move(links));
        ASSERT_TRUE(wire.establish());
        TrafficOptions options;
        options.messages = 300;
        options.depth = 8;
        options.capacity = 700000;
        options.size = [](std::size_t message) {
            std::mt19937_64 random(message * 977);
            static constexpr std::size_t edges[] = {0,    1,     127,    128,    2047,  2048,
                                                    2049, 65535, 131071, 131072, 131073};
            return message % 3 == 0 ? edges[message / 3 % std::size(edges)]
                                    : static_cast<std::size_t>(random() % 700000);
        };
        EXPECT_TRUE(run_traffic(wire, options).complete) << paths << " paths";
    }
}

// NCCL posts whole slots and sends what there is: small messages, which are acknowledged lazily,
// must not use up credit that a large one behind them waits for.
TEST(Striping, CreditNeverStallsAMixture) {
    for (std::size_t depth = 1; depth <= 10; ++depth) {
        for (const std::size_t paths : {1, 2}) {
            FakeWire wire(std::vector<FakeLink>(paths, link(10)));
            ASSERT_TRUE(wire.establish());
            TrafficOptions options;
            options.messages = 400;
            options.depth = depth;
            options.limit = 20 * kSecond;
            options.size = [=](std::size_t message) -> std::size_t {
                std::mt19937_64 random(message * 31 + depth);
                return random() % 4 != 0 ? random() % 9000 : random() % (1 << 20);
            };
            EXPECT_TRUE(run_traffic(wire, options).complete)
                << paths << " paths, " << depth << " in flight";
        }
    }
}

TEST(Striping, SmallMessagesTakeTheQuickestPath) {
    FakeWire wire({link(10, 500 * kMicrosecond), link(10, 10 * kMicrosecond)});
    ASSERT_TRUE(wire.establish());
    TrafficOptions options;
    options.messages = 500;
    options.depth = 1;
    options.size = [](std::size_t) { return 64; };
    ASSERT_TRUE(run_traffic(wire, options).complete);
    EXPECT_GT(wire.counters[1]->chunks_sent.load(), 490U);
}

TEST(Striping, RequestsAreBoundedNotRefused) {
    FakeWire wire({link(1)});
    ASSERT_TRUE(wire.establish());
    std::vector<std::byte> data(1000);
    std::size_t started = 0;
    while (wire.sender->isend(data.data(), data.size(), wire.now) != nullptr) {
        ASSERT_LE(++started, kSlots);
    }
    EXPECT_GE(started, 32U);  // NCCL asks for so many per connection
    EXPECT_FALSE(wire.sender->failure());
}

TEST(Striping, MessageLargerThanItsBufferIsAnError) {
    FakeWire wire({link(1), link(1)});
    ASSERT_TRUE(wire.establish());
    TrafficOptions options;
    options.messages = 1;
    options.capacity = 200000;
    options.size = [](std::size_t) { return 200001; };
    options.limit = 5 * kSecond;
    EXPECT_FALSE(run_traffic(wire, options).complete);
    EXPECT_TRUE(wire.receiver->failure());
}

}  // namespace
}  // namespace deft::net::testing
