// SPDX-License-Identifier: Apache-2.0
#include "shim/learning/call_times.h"

#include <gtest/gtest.h>

namespace deft {
namespace {

constexpr std::int64_t kMs = 1'000'000;

TimedCall call(std::size_t position, std::int64_t issued, std::int64_t start, std::int64_t end,
               std::uint64_t stream = 7) {
    TimedCall made;
    made.position = position;
    made.issued = issued * kMs;
    made.timed = true;
    made.start = start * kMs;
    made.end = end * kMs;
    made.stream = stream;
    made.bytes = 100;
    return made;
}

TEST(Samples, PercentilesInterpolate) {
    Samples samples;
    for (int i = 10; i >= 0; --i) {
        samples.add(i);
    }
    const Summary summary = samples.summary();
    EXPECT_DOUBLE_EQ(summary.median, 5);
    EXPECT_DOUBLE_EQ(summary.p10, 1);
    EXPECT_DOUBLE_EQ(summary.p90, 9);
    EXPECT_EQ(summary.n, 11u);
    EXPECT_DOUBLE_EQ(summary.mean, 5);
}

TEST(CallTimes, KeepsTheLatestIterationsForATrace) {
    CallTimes times(1);
    for (std::int64_t i = 0; i < 20; ++i) {
        times.add(call(0, 10 * i, 10 * i + 1, 10 * i + 4));
    }
    ASSERT_EQ(times.traced().size(), CallTimes::kTracedIterations);
    EXPECT_EQ(times.traced().back().origin, 184 * kMs);
    EXPECT_EQ(times.traced().back().calls.at(0).start, 191 * kMs);
    EXPECT_EQ(times.traced().back().calls.at(0).ready, 191 * kMs);
    EXPECT_EQ(times.traced().front().origin, 114 * kMs);

    const std::size_t length = CallTimes::kTracedCalls / 2 + 1;
    CallTimes many(length);
    for (std::size_t i = 0; i < 3 * length; ++i) {
        const auto at = static_cast<std::int64_t>(i);
        many.add(call(i % length, at, at, at + 1));
    }
    ASSERT_EQ(many.traced().size(), 1u);
    EXPECT_EQ(many.traced().front().calls.size(), length);
}

TEST(Samples, OneAndNone) {
    Samples samples;
    EXPECT_EQ(samples.summary().n, 0u);
    samples.add(3);
    EXPECT_DOUBLE_EQ(samples.summary().p90, 3);
    EXPECT_DOUBLE_EQ(samples.summary().p10, 3);
}

TEST(Samples, MeanOfTheMiddle) {
    Samples samples;
    for (int i = 0; i < 10; ++i) {
        samples.add(40);
        samples.add(90);
    }
    samples.add(5000);
    samples.add(1);
    EXPECT_DOUBLE_EQ(samples.summary().mean, 65);
}

TEST(Samples, KeepsTheLatest) {
    Samples samples;
    for (int i = 0; i < 3; ++i) {
        samples.add(1e9);
    }
    for (std::size_t i = 0; i < Samples::kKept; ++i) {
        samples.add(1);
    }
    EXPECT_DOUBLE_EQ(samples.summary().p90, 1);
    EXPECT_EQ(samples.count(), Samples::kKept + 3);
}

// An iteration of 100 ms: computes until 80, transfers at 30..40 and 80..95.
void add_iteration(CallTimes& profile, std::int64_t at) {
    profile.add(call(0, at + 30, at + 30, at + 40));
    profile.add(call(1, at + 80, at + 80, at + 95));
}

TEST(CallTimes, MeasuresFromTheEndOfThePreviousIteration) {
    CallTimes profile(2);
    add_iteration(profile, 0);
    EXPECT_EQ(profile.places()[0].ready_ms.count(), 0u) << "there is no iteration before it";
    add_iteration(profile, 100);
    ASSERT_EQ(profile.places()[0].ready_ms.count(), 1u);
    // The previous one ended at 95.
    EXPECT_DOUBLE_EQ(profile.places()[0].ready_ms.summary().median, 35);
    EXPECT_DOUBLE_EQ(profile.places()[1].ready_ms.summary().median, 85);
    EXPECT_DOUBLE_EQ(profile.places()[0].transfer_ms.summary().median, 10);
    EXPECT_DOUBLE_EQ(profile.places()[1].transfer_ms.summary().median, 15);
    EXPECT_DOUBLE_EQ(profile.iteration_ms().summary().median, 100);
    EXPECT_DOUBLE_EQ(profile.exposed_ms().summary().median, 15);
    EXPECT_DOUBLE_EQ(profile.compute_ms().summary().median, 85);
    EXPECT_DOUBLE_EQ(profile.coverage_rate().summary().median, 25.0 / 85);
}

TEST(CallTimes, ACallBehindAnotherWasReadyBeforeItStarted) {
    // Issued 2 ms ahead of the stream; the second is held up by the first until 60.
    CallTimes profile(2);
    for (const std::int64_t at : {0, 100}) {
        profile.add(call(0, at + 28, at + 30, at + 60));
        profile.add(call(1, at + 40, at + 60, at + 70));
    }
    EXPECT_DOUBLE_EQ(profile.places()[0].ready_ms.summary().median, 60);  // 130 - 70
    EXPECT_DOUBLE_EQ(profile.places()[1].ready_ms.summary().median, 72);  // 140 + 2 - 70
    EXPECT_DOUBLE_EQ(profile.places()[1].issued_ms.summary().median, 70);
    EXPECT_DOUBLE_EQ(profile.exposed_ms().summary().median, 28);  // 170 - 142
}

TEST(CallTimes, AShortGapAfterALongWaitIsNoComputing) {
    // The stream takes 2 ms to go on after call 0, behind which call 1 stood for 50 ms.
    CallTimes profile(3);
    for (const std::int64_t at : {0, 200}) {
        profile.add(call(0, at + 30, at + 30, at + 90));
        profile.add(call(1, at + 40, at + 92, at + 100));
        // Found the stream idle: it was ready when it started.
        profile.add(call(2, at + 119, at + 120, at + 130));
    }
    EXPECT_DOUBLE_EQ(profile.places()[1].ready_ms.summary().median, 111);  // 240 + 1 - 130
    EXPECT_DOUBLE_EQ(profile.places()[2].ready_ms.summary().median, 190);  // 320 - 130
}

TEST(CallTimes, CallsOnOtherStreamsDoNotHoldUp) {
    CallTimes profile(2);
    for (const std::int64_t at : {0, 100}) {
        profile.add(call(0, at + 30, at + 30, at + 60, 1));
        profile.add(call(1, at + 35, at + 60, at + 70, 2));
    }
    EXPECT_DOUBLE_EQ(profile.places()[1].ready_ms.summary().median, 90);  // its own start, 160 - 70
}

TEST(CallTimes, AGroupIsSharedBySize) {
    CallTimes profile(2);
    for (const std::int64_t at : {0, 100}) {
        for (std::size_t i = 0; i < 2; ++i) {
            TimedCall grouped = call(i, at + 30, at + 30, at + 50);
            grouped.group = static_cast<std::uint64_t>(at + 1);
            grouped.bytes = i == 0 ? 300 : 100;
            profile.add(grouped);
        }
    }
    EXPECT_DOUBLE_EQ(profile.places()[0].transfer_ms.summary().median, 15);
    EXPECT_DOUBLE_EQ(profile.places()[1].transfer_ms.summary().median, 5);
}

// The host is an iteration ahead of the device: it has called when the calls' data are far away.
TEST(CallTimes, StartsBoundWhatIsGuessed) {
    CallTimes profile(2);
    const auto add = [&profile](std::int64_t at, std::int64_t took) {
        profile.add(call(0, at - 100, at + 10, at + 10 + took));
        profile.add(call(1, at - 99, std::max(at + 40, at + 10 + took), at + 42 + took));
    };
    add(0, 60);
    add(100, 60);
    EXPECT_LT(profile.compute_ms().summary().median, 20) << "a guess, and early";
    EXPECT_DOUBLE_EQ(profile.latest_start_ms().summary().median, 68);
    EXPECT_DOUBLE_EQ(profile.places()[1].start_ms.summary().median, 68);
    add(202, 1);  // the iteration before it ended at 202
    EXPECT_DOUBLE_EQ(profile.places()[0].start_ms.summary().p10, 8.2) << "8 and 10";
    EXPECT_DOUBLE_EQ(profile.places()[1].start_ms.summary().p10, 42.8) << "40 and 68";
}

TEST(CallTimes, UntimedIterationsCountForTheIterationTimeOnly) {
    CallTimes profile(2);
    add_iteration(profile, 0);
    TimedCall first = call(0, 130, 0, 0);
    first.timed = false;
    profile.add(first);
    profile.add(call(1, 180, 180, 195));
    add_iteration(profile, 200);
    EXPECT_EQ(profile.iteration_ms().count(), 2u);
    EXPECT_EQ(profile.places()[0].ready_ms.count(), 0u);
    EXPECT_EQ(profile.coverage_rate().count(), 0u);
}

TEST(CallTimes, AnInterruptionStartsAfresh) {
    CallTimes profile(2);
    add_iteration(profile, 0);
    profile.interrupted();
    add_iteration(profile, 5000);
    EXPECT_EQ(profile.iteration_ms().count(), 0u);
    add_iteration(profile, 5100);
    EXPECT_EQ(profile.iteration_ms().count(), 1u);
    EXPECT_EQ(profile.places()[0].ready_ms.count(), 1u);
}

TEST(CallTimes, StartsAtTheBeginningOfAnIteration) {
    CallTimes profile(2);
    profile.add(call(1, 80, 80, 95));
    add_iteration(profile, 100);
    EXPECT_EQ(profile.iteration_ms().count(), 0u);
    EXPECT_EQ(profile.places()[0].ready_ms.count(), 0u);
}

// FSDP gathers and scatters on two streams over one communicator: NCCL has one call at a time.
TEST(CallTimes, ATransferIsLessWhatItWaitedForTheCallBefore) {
    CallTimes profile(3);
    for (const std::int64_t at : {0, 100, 200}) {
        profile.add(call(0, at + 40, at + 40, at + 60, 1));
        profile.add(call(1, at + 45, at + 45, at + 75, 2));
        TimedCall other = call(2, at + 50, at + 50, at + 80, 3);
        other.comm = 9;
        profile.add(other);
    }
    EXPECT_DOUBLE_EQ(profile.places()[0].transfer_ms.summary().median, 20);
    EXPECT_DOUBLE_EQ(profile.places()[1].transfer_ms.summary().median, 15);
    EXPECT_DOUBLE_EQ(profile.places()[2].transfer_ms.summary().median, 30) << "beside them";
    const auto alone = [&profile](std::size_t place) {
        return profile.places()[place].alone_ms.summary().median;
    };
    EXPECT_DOUBLE_EQ(alone(0), 10 + 10.0 / 2);
    EXPECT_DOUBLE_EQ(alone(1), 15.0 / 2);
    EXPECT_DOUBLE_EQ(alone(2), 10.0 / 2 + 15.0 / 2 + 5);
}

// HSDP's gathers may go over NVLink while the network carries its sums.
TEST(CallTimes, ACommunicatorThatIsMuchFasterGoesOverOtherLinks) {
    CallTimes profile(2);
    for (const std::int64_t at : {0, 100, 200}) {
        profile.add(call(0, at + 40, at + 40, at + 60, 1));
        TimedCall fast = call(1, at + 50, at + 50, at + 60, 2);
        fast.comm = 9;
        fast.bytes = 800;
        profile.add(fast);
    }
    EXPECT_DOUBLE_EQ(profile.places()[0].alone_ms.summary().median, 20);
    EXPECT_DOUBLE_EQ(profile.places()[1].alone_ms.summary().median, 10);
}

}  // namespace
}  // namespace deft
