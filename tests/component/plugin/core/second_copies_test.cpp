// SPDX-License-Identifier: Apache-2.0
// What is sent a second time because the path that has it is late, or lost; on a virtual clock.
#include <gtest/gtest.h>

#include "tests/component/plugin/core/traffic.h"

namespace deft::net::testing {
namespace {

TrafficOptions one_by_one(std::size_t messages, std::size_t mebibytes) {
    TrafficOptions options;
    options.depth = 1;
    options.messages = messages;
    options.size = [=](std::size_t) { return mebibytes << 20; };
    options.capacity = mebibytes << 20;
    return options;
}

// Shorter than what makes a path suspect: packets that vanish, a rate that breaks down.
TEST(SecondCopies, TheTailWaitsForNoPath) {
    for (const std::size_t victim : {0, 1}) {
        FakeWire wire({link(2), link(1)});
        ASSERT_TRUE(wire.establish());
        TrafficOptions options;
        options.messages = 2000;
        options.each_step = [&](Nanos since) {
            wire.links[victim].black_hole =
                since % kSecond > 500 * kMillisecond && since % kSecond < 700 * kMillisecond;
        };
        const TrafficResult result = run_traffic(wire, options);
        ASSERT_TRUE(result.complete) << wire.sender->failure().text;
        EXPECT_GT(wire.counters[victim]->resent_bytes.load(), 0U);
        EXPECT_LE(result.longest_stall, 80 * kMillisecond) << "link " << victim;
        EXPECT_EQ(wire.links[victim].connections, 1);
    }
}

// However much slower the path is that has nothing to do: what it does not take at once stays where
// it is, and is not queued a second time behind itself.
TEST(SecondCopies, GoOverAnIdlePathOnly) {
    for (const double slow : {0.4, 0.1, 0.04}) {
        SCOPED_TRACE(slow);
        FakeWire wire({link(4), link(slow)});
        wire.links[1].socket_buffer = 64 * 1024;
        ASSERT_TRUE(wire.establish());
        TrafficOptions options = one_by_one(300, 4);
        options.each_step = [&](Nanos since) {
            wire.links[0].black_hole =
                since % kSecond > 500 * kMillisecond && since % kSecond < 600 * kMillisecond;
        };
        ASSERT_TRUE(run_traffic(wire, options).complete);
        const std::uint64_t sent = wire.counters[0]->bytes_sent.load();
        EXPECT_GT(wire.counters[0]->resent_bytes.load(), 0U);
        EXPECT_LE(sent, 300U * (4U << 20));
    }
}

// The copies keep the other path busy for a while: no sign that the receiver is silent on both.
TEST(SecondCopies, DoNotExcuseADeadPath) {
    FakeWire wire({link(1), link(0.001)});
    wire.links[1].nominal_mbps = 1;  // by itself it gets nothing
    ASSERT_TRUE(wire.establish());
    TrafficOptions options = one_by_one(200, 8);
    Nanos begun = 0;
    Nanos noticed = 0;
    options.each_step = [&](Nanos since) {
        wire.links[0].black_hole = since > kSecond && since < 3 * kSecond;
        begun = begun == 0 && wire.links[0].black_hole ? since : begun;
        if (noticed == 0 && wire.sender->state(0) != PathState::Up) {
            noticed = since;
        }
    };
    ASSERT_TRUE(run_traffic(wire, options).complete);
    EXPECT_GT(noticed, begun);
    EXPECT_LE(noticed, begun + 400 * kMillisecond);
}

// What another path has already is not sent a third time when the first is lost.
TEST(SecondCopies, ALostPathsChunksAreNotSentWhereTheyAreOnTheirWay) {
    FakeWire wire({link(1), link(0.5)});
    wire.links[1].latency = 400 * kMillisecond;
    wire.links[0].socket_buffer = wire.links[1].socket_buffer = 16 << 20;
    ASSERT_TRUE(wire.establish());
    TrafficOptions options = one_by_one(4, 8);
    options.each_step = [&](Nanos since) {
        wire.links[0].black_hole = since > 72 * kMillisecond;  // the second message has just begun
        wire.links[0].carrier = since < 500 * kMillisecond;
    };
    ASSERT_TRUE(run_traffic(wire, options).complete);
    EXPECT_GT(wire.counters[0]->resent_bytes.load(), 4U << 20);
    EXPECT_LE(wire.counters[1]->bytes_sent.load(), 24U << 20);
}

// No second copies where nothing is wrong, however different the paths.
TEST(SecondCopies, NothingIsSentTwiceOverHealthyPaths) {
    FakeWire wire({link(1), link(0.1)});
    wire.links[1].latency = 5 * kMillisecond;
    ASSERT_TRUE(wire.establish());
    for (const std::size_t depth : {1, 4}) {
        TrafficOptions options;
        options.depth = depth;
        options.messages = 500;
        options.burst = 20;
        options.pause = 30 * kMillisecond;
        ASSERT_TRUE(run_traffic(wire, options).complete);
    }
    for (const auto& counters : wire.counters) {
        EXPECT_EQ(counters->resent_bytes.load(), 0U);
    }
}

// The first messages meet links of which only the nominal rate is known.
TEST(SecondCopies, NothingIsSentTwiceWhereRatesAreUnknown) {
    for (const double slow : {0.5, 0.1}) {
        FakeWire wire({link(1), link(slow), link(0.001)});
        wire.links[2].nominal_mbps = 1;  // has nothing to do: copies would go there
        wire.links[0].socket_buffer = wire.links[1].socket_buffer = 16 << 20;
        ASSERT_TRUE(wire.establish());
        TrafficOptions options = one_by_one(30, 8);
        ASSERT_TRUE(run_traffic(wire, options).complete);
        for (const auto& counters : wire.counters) {
            EXPECT_EQ(counters->resent_bytes.load(), 0U);
        }
    }
}

}  // namespace
}  // namespace deft::net::testing
