// SPDX-License-Identifier: Apache-2.0
// Paths that swallow full-size pieces (docs/alive.md), on a virtual clock.
#include <gtest/gtest.h>

#include "tests/component/plugin/core/one_message.h"

namespace deft::net::testing {
namespace {

double rate_of(std::vector<FakeLink> links, std::size_t messages,
               const std::function<void(FakeWire&, Nanos)>& fault = nullptr,
               std::string* said = nullptr) {
    FakeWire wire(std::move(links));
    EXPECT_TRUE(wire.establish());
    TrafficOptions options;
    options.messages = messages;
    options.size = [](std::size_t) { return 256 * 1024; };
    options.capacity = 256 * 1024;
    if (fault != nullptr) {
        options.each_step = [&](Nanos since) { fault(wire, since); };
    }
    ::testing::internal::CaptureStderr();
    const TrafficResult result = run_traffic(wire, options);
    const std::string text = ::testing::internal::GetCapturedStderr();
    if (said != nullptr) {
        *said = text;
    }
    EXPECT_TRUE(result.complete) << wire.sender->failure().text;
    return static_cast<double>(result.bytes) * 8 / static_cast<double>(result.elapsed);
}

TEST(FullSize, APathThatSwallowsThemCostsNothingNextToAHealthyOne) {
    for (const std::size_t messages : {100, 1500, 6000}) {
        SCOPED_TRACE(messages);
        const double alone = rate_of({link(1)}, messages);
        EXPECT_GE(rate_of({link(1), swallowing()}, messages), 0.97 * alone);
        EXPECT_GE(rate_of({swallowing(10), link(1)}, messages), 0.97 * alone);
    }
}

// The job computes while the answer to a piece is on its way, and nobody reads it: that says
// nothing of the path.
TEST(FullSize, TimeInWhichNobodyReadsTheAnswerIsNotThePaths) {
    FakeWire wire({link(1), link(1)});
    ASSERT_TRUE(wire.establish());
    wire.links[1].latency = 50 * kMillisecond;  // its piece is on its way when the message is over
    TrafficOptions options;
    options.messages = 1;
    ASSERT_TRUE(run_traffic(wire, options).complete);
    wire.links[1].latency = wire.links[0].latency;
    wire.now += 3 * kSecond;
    options.messages = 200;
    const TrafficResult result = run_traffic(wire, options);
    ASSERT_TRUE(result.complete);
    const double gbit = static_cast<double>(result.bytes) * 8 / static_cast<double>(result.elapsed);
    EXPECT_GE(gbit, 1.7);
}

// A piece that was slow once does not keep a path out for ever.
TEST(FullSize, OneSlowPieceIsForgotten) {
    FakeWire wire({link(1), link(1)});
    ASSERT_TRUE(wire.establish());
    wire.links[1].bytes_per_second = 100e3;  // 0.7 s for it
    TrafficOptions options;
    options.messages = 400;
    ASSERT_TRUE(run_traffic(wire, options).complete);
    wire.links[1].bytes_per_second = wire.links[0].bytes_per_second;
    options.messages = 6000;
    const TrafficResult result = run_traffic(wire, options);
    ASSERT_TRUE(result.complete);
    std::uint64_t last = 0;
    for (const auto& [time, size] : result.log) {
        last += time >= result.elapsed - kSecond ? size : 0;
    }
    EXPECT_GE(static_cast<double>(last) * 8 / 1e9, 1.7);
}

TEST(FullSize, OneWarningNamesTheCause) {
    std::string said;
    rate_of({link(1), swallowing()}, 6000, nullptr, &said);  // 12 s
    EXPECT_EQ(count(said, "WARN"), 1U) << said;
    EXPECT_EQ(count(said, "MTU"), 1U) << said;
}

TEST(FullSize, APathThatBeginsToSwallowThemInMidRunIsLeftOut) {
    std::string said;
    const double alone = rate_of({link(1)}, 5000);
    const double rate = rate_of(
        {link(1), link(1)}, 5000,
        [](FakeWire& wire, Nanos since) {
            wire.links[1].narrow = since > 100 * kMillisecond ? 1400 : 0;
            wire.links[1].times_out = 5 * kSecond;
        },
        &said);
    EXPECT_GE(rate, 0.97 * alone);
    EXPECT_EQ(count(said, "MTU"), 1U) << said;
}

TEST(FullSize, APathIsBackOnceItCarriesThem) {
    FakeWire wire({link(1), swallowing()});
    ASSERT_TRUE(wire.establish());
    TrafficOptions options;
    options.messages = 8000;
    options.each_step = [&](Nanos since) {
        if (since > 5 * kSecond) {
            wire.links[1].narrow = 0;
        }
    };
    ASSERT_TRUE(run_traffic(wire, options).complete);
    EXPECT_GT(wire.counters[1]->bytes_sent.load(), 100U << 20);
}

// Where there is no other path it does with small packets, and does not forget that they helped.
TEST(FullSize, TheOnlyPathKeepsItsPacketsSmall) {
    for (const std::size_t links : {1, 2}) {
        OneMessage scene(std::vector<FakeLink>(links, swallowing()));
        for (FakeLink& each : scene.wire.links) {
            each.small_helps = true;
        }
        ::testing::internal::CaptureStderr();
        scene.post();
        scene.send();
        scene.drive(kMinute, [&] { return scene.sent && scene.received; });
        EXPECT_TRUE(scene.sent && scene.received) << links;
        EXPECT_LE(scene.since(), 15 * kSecond);
        for (FakeLink& each : scene.wire.links) {
            each.black_hole = true;
        }
        scene.drive(20 * kSecond);
        for (FakeLink& each : scene.wire.links) {
            each.black_hole = false;
        }
        scene.drive(3 * kSecond);
        scene.sent = scene.received = false;
        scene.post();
        scene.send();
        scene.drive(kMinute, [&] { return scene.sent && scene.received; });
        const std::string said = ::testing::internal::GetCapturedStderr();
        EXPECT_LE(scene.since(), kSecond) << links;
        EXPECT_EQ(count(said, "kept small"), links) << said;
    }
}

// Over a hole alone, with small packets: until now nothing but the loss of its link ended that.
struct OverAHole {
    OverAHole() : scene({swallowing()}) {
        link().small_helps = true;
        ::testing::internal::CaptureStderr();
        move();
        EXPECT_TRUE(link().small);
    }
    ~OverAHole() { said = ::testing::internal::GetCapturedStderr(); }
    FakeLink& link() { return scene.wire.links[0]; }
    void move() {
        scene.sent = scene.received = false;
        scene.post();
        scene.send();
        scene.drive(kMinute, [&] { return scene.sent && scene.received; });
        EXPECT_TRUE(scene.sent && scene.received);
    }

    OneMessage scene;
    std::string said;
};

TEST(FullSize, SmallPacketsEndOnceTheHoleHasHealed) {
    OverAHole over;
    over.link().narrow = 0;
    over.scene.drive(2 * FullSize::kFirstTrial);
    EXPECT_EQ(over.link().trials, 1);
    EXPECT_FALSE(over.link().small);
    over.move();
    EXPECT_LE(over.scene.since(), kSecond);
}

TEST(FullSize, ThatIsSeenInMidTransferToo) {
    OverAHole over;
    over.link().bytes_per_second = 40e3;  // the message takes 26 s
    over.scene.drive(FullSize::kFirstTrial / 2);
    over.link().narrow = 0;
    over.move();
    EXPECT_FALSE(over.link().small);
}

TEST(FullSize, WhileThereIsAHoleTrialsAreSeldomAndTouchNothing) {
    OverAHole over;
    const int before = over.link().connections;
    over.scene.drive(30 * kMinute);
    EXPECT_GE(over.link().trials, 6);
    EXPECT_LE(over.link().trials, 12);
    EXPECT_EQ(over.link().connections, before);
    EXPECT_TRUE(over.link().small);
    over.move();
    EXPECT_LE(over.scene.since(), kSecond);
}

// A hole that heals and opens again costs more and more time between the two.
TEST(FullSize, AHoleThatComesAndGoesIsTriedLessAndLess) {
    OverAHole over;
    for (int round = 0; round < 6; ++round) {
        over.link().narrow = 0;
        over.scene.drive(2 * FullSize::kMaxTrial, [&] { return !over.link().small; });
        EXPECT_FALSE(over.link().small) << round;
        over.link().narrow = 1400;
        over.move();
        EXPECT_TRUE(over.link().small) << round;
    }
    const Nanos began = over.scene.wire.now;
    over.link().narrow = 0;
    over.scene.drive(2 * FullSize::kMaxTrial, [&] { return !over.link().small; });
    EXPECT_GE(over.scene.wire.now - began, FullSize::kMaxTrial / 2);
}

// Every connection would have to find out, and each attempt costs a little.
TEST(FullSize, ASwallowingPathIsTriedLessAndLess) {
    FakeWire wire({link(1), swallowing()});
    ASSERT_TRUE(wire.establish());
    for (int minute = 0; minute < 30; ++minute) {
        TrafficOptions options;
        options.messages = 200;
        options.step = 100 * kMicrosecond;
        options.burst = 10;
        options.pause = 3 * kSecond;
        ASSERT_TRUE(run_traffic(wire, options).complete);
    }
    EXPECT_GE(wire.links[1].connections, 6);
    EXPECT_LE(wire.links[1].connections, 20) << "in half an hour";
    EXPECT_EQ(wire.counters[1]->bytes_sent.load(), 0U);
}

}  // namespace
}  // namespace deft::net::testing
