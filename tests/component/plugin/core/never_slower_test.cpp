// SPDX-License-Identifier: Apache-2.0
// Paths that add nothing are left out, and those that add something are kept; on a virtual clock.
#include <gtest/gtest.h>

#include "tests/component/plugin/core/traffic.h"

namespace deft::net::testing {
namespace {

FakeLink small_buffer(double gbit) {
    FakeLink fake = link(gbit);
    fake.socket_buffer = 64 * 1024;
    return fake;
}

TrafficOptions for_seconds(double seconds, double gbit) {
    TrafficOptions options;
    options.size = [](std::size_t) { return 256 * 1024; };
    options.capacity = 256 * 1024;
    options.messages = static_cast<std::size_t>(seconds * gbit * 1e9 / 8 / (256 * 1024));
    options.step = 20 * kMicrosecond;
    return options;
}

double rate(const TrafficResult& result) {
    return static_cast<double>(result.bytes) * 8 / static_cast<double>(result.elapsed);
}

// Of the last second, or seconds.
double last_rate(const TrafficResult& result, Nanos window = kSecond) {
    std::uint64_t bytes = 0;
    for (const auto& [time, size] : result.log) {
        bytes += time >= result.elapsed - window ? size : 0;
    }
    return static_cast<double>(bytes) * 8 / static_cast<double>(window);
}

TEST(NeverSlower, PathThroughTheSamePipeIsLeftOut) {
    FakeWire wire({small_buffer(0.1), small_buffer(0.1)});
    wire.links[1].shares = &wire.links[0];
    ASSERT_TRUE(wire.establish());
    const TrafficResult result = run_traffic(wire, for_seconds(6, 0.1));
    ASSERT_TRUE(result.complete);
    EXPECT_GE(wire.sender->drops(), 1U);
    EXPECT_TRUE(wire.sender->dropped(0) != wire.sender->dropped(1));
    EXPECT_GE(rate(result), 0.97 * 0.1);
}

// Two streams that fill each other's queue reach less than one.
TEST(NeverSlower, PathThatTakesFromTheTotalIsLeftOut) {
    for (const double together : {0.9, 0.7, 0.5}) {
        for (const std::size_t others : {0, 1}) {  // of their own
            SCOPED_TRACE(std::to_string(together) + " with others: " + std::to_string(others));
            FakeWire wire(std::vector<FakeLink>(2 + others, small_buffer(0.1)));
            wire.links[1].shares = &wire.links[0];
            wire.links[0].together = together;
            ASSERT_TRUE(wire.establish());
            const double good = 0.1 * static_cast<double>(1 + others);
            const TrafficResult result = run_traffic(wire, for_seconds(10, good));
            ASSERT_TRUE(result.complete);
            EXPECT_EQ(wire.sender->drops(), 1U);
            EXPECT_TRUE(wire.sender->dropped(0) != wire.sender->dropped(1));
            EXPECT_GE(last_rate(result, 3 * kSecond), 0.95 * good);  // some of it for trials
        }
    }
}

// A ring all-reduce goes on in both directions at one pace: while the peer's own sender is the
// slower one, nothing is missed of a path here, but neither would more links be of use.
TEST(NeverSlower, APathIsNotJudgedWhileTheReceiverSetsThePace) {
    for (const double pace : {0.15, 0.19, 0.25}) {
        SCOPED_TRACE(pace);
        FakeWire wire({small_buffer(0.2), small_buffer(0.1)});
        ASSERT_TRUE(wire.establish());
        TrafficOptions options = for_seconds(10, pace);
        options.receive_every = static_cast<Nanos>(256 * 1024 * 8 / pace);
        ASSERT_TRUE(run_traffic(wire, options).complete);
        EXPECT_EQ(wire.sender->drops(), 0U);
        const TrafficResult result = run_traffic(wire, for_seconds(4, 0.3));
        EXPECT_GE(last_rate(result), 0.95 * 0.3);
    }
}

TEST(NeverSlower, IsTriedAgainOnceItsPipeIsItsOwn) {
    FakeWire wire({small_buffer(0.1), small_buffer(0.1)});
    wire.links[1].shares = &wire.links[0];
    ASSERT_TRUE(wire.establish());
    ASSERT_TRUE(run_traffic(wire, for_seconds(5, 0.1)).complete);
    ASSERT_EQ(wire.sender->drops(), 1U);
    wire.links[1].shares = nullptr;
    const TrafficResult result = run_traffic(wire, for_seconds(14, 0.2));
    ASSERT_TRUE(result.complete);
    EXPECT_FALSE(wire.sender->dropped(0) || wire.sender->dropped(1));
    EXPECT_EQ(wire.sender->drops(), 1U);
    EXPECT_GE(last_rate(result), 0.9 * 0.2);
}

TEST(NeverSlower, UsefulPathsAreKept) {
    for (const double slow : {0.1, 0.05, 0.02}) {
        SCOPED_TRACE(slow);
        FakeWire wire({small_buffer(0.1), small_buffer(slow)});
        ASSERT_TRUE(wire.establish());
        const TrafficResult result = run_traffic(wire, for_seconds(8, 0.1 + slow));
        ASSERT_TRUE(result.complete);
        EXPECT_EQ(wire.sender->drops(), 0U);
        EXPECT_GE(rate(result), 0.95 * (0.1 + slow));
    }
}

// The pipe of the other three is one; one path of its own.
TEST(NeverSlower, OneOfSeveralIsEnough) {
    FakeWire wire({small_buffer(0.1), small_buffer(0.1), small_buffer(0.1), small_buffer(0.1)});
    wire.links[1].shares = wire.links[2].shares = &wire.links[0];
    ASSERT_TRUE(wire.establish());
    const TrafficResult result = run_traffic(wire, for_seconds(9, 0.2));
    ASSERT_TRUE(result.complete);
    EXPECT_FALSE(wire.sender->dropped(3));
    EXPECT_GE(wire.sender->drops(), 1U);
    // With all four in use it stays at 0.148: the shared pipe's paths look like four equal ones.
    EXPECT_GE(last_rate(result), 0.85 * 0.2);
}

// A training job sends while it computes, then computes without sending.
TrafficOptions bursts(double milliseconds, double seconds, double gbit) {
    TrafficOptions options = for_seconds(seconds, gbit);
    options.burst = static_cast<std::size_t>(milliseconds * 1e-3 * gbit * 1e9 / 8 / (256 * 1024));
    options.pause = static_cast<Nanos>(milliseconds * 1e6);
    return options;
}

TEST(NeverSlower, UsefulPathsAreKeptInBursts) {
    for (const double milliseconds : {100, 250, 400}) {
        SCOPED_TRACE(milliseconds);
        FakeWire wire({small_buffer(0.1), small_buffer(0.1)});
        ASSERT_TRUE(wire.establish());
        TrafficResult result = run_traffic(wire, bursts(milliseconds, 10, 0.2));
        ASSERT_TRUE(result.complete);
        EXPECT_EQ(wire.sender->drops(), 0U);
        result.elapsed -= result.paused;
        EXPECT_GE(rate(result), 0.96 * 0.2);
    }
}

TEST(NeverSlower, PathThatTakesFromTheTotalIsLeftOutInBursts) {
    for (const double milliseconds : {100, 250, 400}) {
        SCOPED_TRACE(milliseconds);
        FakeWire wire({small_buffer(0.1), small_buffer(0.1)});
        wire.links[1].shares = &wire.links[0];
        wire.links[0].together = 0.7;
        ASSERT_TRUE(wire.establish());
        TrafficResult result = run_traffic(wire, bursts(milliseconds, 20, 0.1));
        ASSERT_TRUE(result.complete);
        EXPECT_GE(wire.sender->drops(), 1U);
        result.elapsed -= result.paused;
        EXPECT_GE(rate(result), 0.85 * 0.1);
    }
}

TEST(NeverSlower, PathLeftOutCarriesOnWhenTheOtherDies) {
    for (const bool black_hole : {false, true}) {
        SCOPED_TRACE(black_hole);
        FakeWire wire({small_buffer(0.1), small_buffer(0.1)});
        wire.links[1].shares = &wire.links[0];
        ASSERT_TRUE(wire.establish());
        ASSERT_TRUE(run_traffic(wire, for_seconds(5, 0.1)).complete);
        const std::size_t left = wire.sender->dropped(0) ? 0 : 1;
        ASSERT_TRUE(wire.sender->dropped(left));
        TrafficOptions options = for_seconds(2, 0.1);
        options.each_step = [&](Nanos since) {
            const bool now = since > 500 * kMillisecond;
            wire.links[1 - left].black_hole = black_hole && now;
            wire.links[1 - left].carrier = black_hole || !now;
        };
        const TrafficResult result = run_traffic(wire, options);
        ASSERT_TRUE(result.complete) << wire.sender->failure().text;
        EXPECT_LE(result.longest_stall, black_hole ? kSecond : 100 * kMillisecond);
        EXPECT_GT(wire.counters[left]->chunks_sent.load(), 0U);
    }
}

}  // namespace
}  // namespace deft::net::testing
