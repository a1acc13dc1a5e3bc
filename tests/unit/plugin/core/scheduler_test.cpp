// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plugin/core/path_state.h"
#include "plugin/core/rate.h"

namespace deft::net {
namespace {

TEST(Scheduler, EarliestFinishCountsQueueRateAndLatency) {
    PathOutlook paths[] = {{true, 100e6, 0, kMillisecond}, {true, 200e6, 0, kMillisecond}};
    EXPECT_EQ(earliest_finish(paths, 65536), 1);
    paths[1].queued = 200000;  // 1 ms of work ahead
    EXPECT_EQ(earliest_finish(paths, 65536), 0);
    paths[0].latency = 3 * kMillisecond;
    EXPECT_EQ(earliest_finish(paths, 65536), 1);
    paths[1].usable = false;
    EXPECT_EQ(earliest_finish(paths, 65536), 0);
    paths[0].usable = false;
    EXPECT_EQ(earliest_finish(paths, 65536), -1);
    EXPECT_EQ(earliest_finish({}, 1), -1);
}

TEST(Scheduler, ChunksAreAlignedBoundedAndFew) {
    for (std::uint64_t total = 1; total < (std::uint64_t{1} << 36); total = total * 3 + 7) {
        for (const std::size_t usable : {1, 2, 8}) {
            for (const double rate : {1e6, 1e9, 50e9}) {
                const std::uint64_t size = chunk_bytes(total, usable, rate);
                ASSERT_EQ(size % kChunkAlign, 0U);
                ASSERT_LE((total + size - 1) / size, 64U) << total;
                ASSERT_TRUE(size >= kMinChunk || size >= total) << total;
            }
        }
    }
    EXPECT_EQ(chunk_bytes(100, 2, 1e9), 128U);      // whole
    EXPECT_EQ(chunk_bytes(65536, 2, 1e9), 65536U);  // too small to share
    EXPECT_EQ(chunk_bytes(32767, 2, 50e6), 32768U);
    EXPECT_EQ(chunk_bytes(1 << 20, 1, 1e9), 1U << 20);   // nobody to share with
    EXPECT_EQ(chunk_bytes(1 << 20, 1, 200e3), 100096U);  // half a second
    EXPECT_EQ(chunk_bytes(1 << 20, 2, 100e6), kMinChunk);
    EXPECT_EQ(chunk_bytes(1 << 20, 2, 1e9), 65536U);
}

// When the slower path is done with its share of a message that nothing follows, next to what both
// together need for it.
double alone(std::uint64_t total, double fast, double slow) {
    PathOutlook paths[] = {{true, fast, 0, 0}, {true, slow, 0, 0}};
    const std::uint64_t chunk = chunk_bytes(total, 2, fast);
    for (std::uint64_t at = 0; at < total; at += chunk) {
        const std::uint64_t bytes = std::min(chunk, total - at);
        paths[earliest_finish(paths, chunk)].queued += bytes;
    }
    const double last = std::max(static_cast<double>(paths[0].queued) / fast,
                                 static_cast<double>(paths[1].queued) / slow);
    return last * (fast + slow) / static_cast<double>(total);
}

// NCCL cuts a sum of half a megabyte into such messages and waits for each of them.
TEST(Scheduler, SlowPathsEndTogetherAfterAMessageThatIsAlone) {
    for (const double fast : {12.5e6, 50e6, 125e6}) {
        double sum = 0;
        int count = 0;
        for (std::uint64_t total = 48 * 1024; total <= 256 * 1024; total += 4096) {
            sum += alone(total, fast, fast / 2);
            ++count;
        }
        EXPECT_LT(sum / count, 1.1) << fast;
    }
}

TEST(Rate, IsLearnedFromBusyStretchesOnly) {
    RateEstimator rate;
    rate.reset(1250e6, 50 * kMicrosecond);
    Nanos now = kSecond;
    // 64 KiB every 0.5 ms is 131 MB/s; four chunks are always outstanding.
    for (int i = 0; i < 4; ++i) {
        rate.posted(65536, now);
    }
    for (int i = 0; i < 200; ++i) {
        now += 500 * kMicrosecond;
        rate.posted(65536, now);
        rate.acknowledged(65536, now - 2 * kMillisecond, now);
    }
    EXPECT_NEAR(rate.bytes_per_second(), 131e6, 10e6);
    EXPECT_EQ(rate.outstanding(), 4U * 65536);
    const double before = rate.bytes_per_second();
    rate.forget(now);
    now += kSecond;  // idle time is not slowness
    rate.posted(1000, now);
    rate.acknowledged(1000, now, now + 40 * kMicrosecond);
    EXPECT_EQ(rate.bytes_per_second(), before);
    EXPECT_EQ(rate.latency(), 40 * kMicrosecond);
}

TEST(Rate, OldEstimatesRiseSoThatAPathIsTriedAgain) {
    RateEstimator rate;
    rate.reset(1e9, kMillisecond);
    Nanos now = kSecond;
    rate.posted(10 << 20, now);
    now += kSecond;
    rate.acknowledged(10 << 20, now - kSecond, now);  // 10 MB/s
    const double low = rate.bytes_per_second();
    EXPECT_LT(low, 20e6);
    for (int i = 0; i < 200; ++i) {
        rate.age(now += 100 * kMillisecond);
    }
    EXPECT_EQ(rate.bytes_per_second(), 1e9);
}

TEST(PathState, TransitionTable) {
    using enum PathState;
    using enum PathEvent;
    struct Row {
        PathState from;
        PathEvent event;
        PathState to;
    };
    const Row moves[] = {
        {Up, NoProgress, Suspect},    {Up, Lost, Down},       {Suspect, Progress, Up},
        {Suspect, Lost, Down},        {Down, Retry, Probing}, {Probing, Connected, Up},
        {Probing, ProbeFailed, Down}, {Probing, Lost, Down},
    };
    for (const PathState from : {Up, Suspect, Down, Probing}) {
        EXPECT_STRNE(to_string(from), "?");
        for (const PathEvent event : {Connected, Progress, NoProgress, Lost, Retry, ProbeFailed}) {
            EXPECT_STRNE(to_string(event), "?");
            PathState expected = from;  // all else changes nothing
            for (const Row& row : moves) {
                if (row.from == from && row.event == event) {
                    expected = row.to;
                }
            }
            EXPECT_EQ(next_state(from, event), expected)
                << to_string(from) << " + " << to_string(event);
        }
    }
}

}  // namespace
}  // namespace deft::net
