// SPDX-License-Identifier: Apache-2.0
// When paths are doubted, and what it costs; on a clock of its own, a tick a millisecond.
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "plugin/core/path_prober.h"

namespace deft::net::testing {
namespace {

constexpr std::uint64_t kBacklog = 4 << 20;

// Two paths and what they deliver, in bytes a second, used both or alone.
struct Job {
    std::array<double, 2> both;
    std::array<double, 2> alone;
    PathProber trials;
    std::array<PathProber::Sample, 2> paths{{{true, 0, 0}, {true, 0, 0}}};
    std::array<Nanos, 2> out{};  // time each was left out
    Nanos now = kSecond;

    void tick(std::uint64_t backlog = kBacklog, double noise = 1) {
        const bool off[2] = {trials.out(0), trials.out(1)};
        for (std::size_t i = 0; i < 2; ++i) {
            out[i] += off[i] ? kMillisecond : 0;
            const double rate = off[i] ? 0 : off[1 - i] ? alone[i] : both[i];
            paths[i].delivered += backlog > 0 ? static_cast<std::uint64_t>(rate * noise / 1000) : 0;
        }
        trials.tick(now, paths, backlog);
        now += kMillisecond;
    }
    void run(Nanos time) {
        for (const Nanos end = now + time; now < end;) {
            tick();
        }
    }
};

TEST(PathProber, ThatCarriesMostOfItIsDoubtedToo) {
    // The other could do it all, and more, if it were left alone.
    Job job{{70e6, 30e6}, {70e6, 130e6}, {}};
    job.run(100 * kSecond);
    EXPECT_TRUE(job.trials.dropped(0));
    EXPECT_FALSE(job.trials.dropped(1));
}

TEST(PathProber, ThatCarriesMostOfItIsHardlyEverMissed) {
    for (const double slow : {10e6, 50e6}) {
        SCOPED_TRACE(slow);
        Job job{{100e6, slow}, {100e6, slow}, {}};
        job.run(20 * kSecond);
        EXPECT_EQ(job.out[0], 0) << "not among the first";
        EXPECT_GT(job.out[1], 0);
        job.run(3600 * kSecond);
        EXPECT_EQ(job.trials.drops(), 0U);
        EXPECT_GT(job.out[0], 0);
        for (const Nanos out : job.out) {
            EXPECT_LT(out, 4 * kSecond) << "a thousandth of the hour";
        }
    }
}

// Where the totals tell nothing, trials become rare.
TEST(PathProber, ThatCannotTellBecomeRare) {
    Job job{{100e6, 100e6}, {100e6, 100e6}, {}};
    for (int i = 0; i < 3'600'000; ++i) {
        job.tick(kBacklog, i / 200 % 2 == 0 ? 0.5 : 1.5);  // before and after differ
    }
    EXPECT_EQ(job.trials.drops(), 0U);
    EXPECT_LT(job.out[0] + job.out[1], 20 * kSecond);
}

// The links are empty when a burst begins, which says nothing about one of them.
TEST(PathProber, BeginningsOfBurstsDoNotCount) {
    for (int length = 20; length < 90; ++length) {
        SCOPED_TRACE(length);
        Job job{{100e6, 8e6}, {100e6, 8e6}, {}};
        for (int i = 0; i < 100'000; ++i) {
            const int in_burst = i % (2 * length);
            job.tick(in_burst < length ? kBacklog : 0, in_burst < 5 ? 0 : 1);
        }
        EXPECT_EQ(job.trials.drops(), 0U);
        EXPECT_GT(job.out[1], 0);
    }
}

// What one connection leaves of a link the other takes, and leaves it more of the first link: each
// could do without the second, but not both.
struct TwoConnections {
    std::array<PathProber::Sample, 2> paths[2]{{{{true, 0, 0}, {true, 0, 0}}},
                                               {{{true, 0, 0}, {true, 0, 0}}}};
    Nanos neither = 0;  // time the second link was used by neither

    // The second begins so much `later`.
    void run(PathProber& first, PathProber& second, Nanos time, Nanos later = 0) {
        PathProber* const trials[2] = {&first, &second};
        for (Nanos now = kSecond; now < kSecond + time; now += kMillisecond) {
            const bool off[2] = {first.out(1), second.out(1)};
            neither += off[0] && off[1] ? kMillisecond : 0;
            for (std::size_t i = 0; i < 2; ++i) {
                if (off[i]) {
                    paths[i][0].delivered += off[1 - i] ? 100'000 : 150'000;
                } else {
                    paths[i][0].delivered += trials[i]->out(0) ? 0 : off[1 - i] ? 50'000 : 100'000;
                    paths[i][1].delivered += off[1 - i] ? 100'000 : 50'000;
                }
            }
            for (std::size_t i = 0; i < 2; ++i) {
                if (i == 0 || now >= kSecond + later) {
                    trials[i]->tick(now, paths[i], kBacklog);
                }
            }
        }
    }
};

TEST(PathProber, TwoConnectionsDoNotBothGiveUpALink) {
    for (int later = 0; later < 600; later += 10) {
        SCOPED_TRACE(later);
        ProbeToken token;
        TwoConnections job;
        PathProber first(&token);
        PathProber second(&token);
        job.run(first, second, 100 * kSecond, later * kMillisecond);
        EXPECT_GE(first.drops() + second.drops(), 1U);
        EXPECT_LT(job.neither, kSecond);
    }
}

// The other's job computes for long, or it is gone: it does not keep the token.
TEST(PathProber, TurnIsNotKeptByWhoIsNotDriven) {
    ProbeToken token;
    TwoConnections job;
    PathProber first(&token);
    PathProber second(&token);
    ASSERT_TRUE(token.take(&job, 0));
    job.run(first, second, 100 * kSecond);
    EXPECT_GE(first.drops() + second.drops(), 1U);
    EXPECT_LT(job.neither, kSecond);
    EXPECT_TRUE(token.take(&job, 200 * kSecond));
    token.give(&job);
    {
        TwoConnections brief;
        PathProber third(&token);
        PathProber fourth(&token);
        brief.run(third, fourth, 2100 * kMillisecond);  // a trial has begun
        EXPECT_FALSE(token.take(&job, 3100 * kMillisecond));
    }
    EXPECT_TRUE(token.take(&job, 3100 * kMillisecond));
}

// The idle thread drives it now and then.
TEST(PathProber, TurnIsNotKeptByWhoIsIdle) {
    ProbeToken token;
    TwoConnections job;
    PathProber first(&token);
    PathProber second(&token);
    job.run(first, second, 2050 * kMillisecond);
    Nanos now = kSecond + 2050 * kMillisecond;
    for (const Nanos end = now + 9 * kSecond; now < end; now += 250 * kMillisecond) {
        first.tick(now, job.paths[0], 0);
        EXPECT_FALSE(token.take(&job, now));
    }
    for (const Nanos end = now + 2 * kSecond; now < end; now += 250 * kMillisecond) {
        first.tick(now, job.paths[0], 0);
    }
    EXPECT_TRUE(token.take(&job, now));
    first.tick(now, job.paths[0], 0);
    EXPECT_TRUE(token.has(&job)) << "it gives up what it does not have any more";
}

// What is sent beside the load would miss it.
TEST(PathProber, PathIsBackWhenTheLoadHasGone) {
    Job job{{100e6, 100e6}, {100e6, 100e6}, {}};
    while (!job.trials.out(0) && !job.trials.out(1)) {
        ASSERT_LT(job.now, 60 * kSecond);
        job.tick();
    }
    const Nanos gone = job.now;
    while (job.trials.out(0) || job.trials.out(1)) {
        ASSERT_LT(job.now, gone + 11 * kSecond);
        job.tick(0);
    }
    EXPECT_EQ(job.trials.drops(), 0U);
    EXPECT_GT(job.now, gone + kSecond) << "a pause between bursts";
}

// One that was left out and is tried again goes on being left out if the load goes away.
TEST(PathProber, PathTriedAgainStaysOutWithoutLoad) {
    Job job{{50e6, 50e6}, {100e6, 100e6}, {}};
    job.run(10 * kSecond);
    ASSERT_EQ(job.trials.drops(), 1U);
    const std::size_t left = job.trials.dropped(0) ? 0 : 1;
    while (job.trials.out(left)) {
        ASSERT_LT(job.now, 60 * kSecond);
        job.tick();
    }
    for (int i = 0; i < 65'000; ++i) {
        job.tick(0);
    }
    EXPECT_TRUE(job.trials.dropped(left));
    EXPECT_EQ(job.trials.drops(), 1U);
    job.out = {};
    job.run(2 * kSecond);
    EXPECT_EQ(job.out[left], 2 * kSecond) << "not at once";
}

// With hardly any load a trial comes to no end: the path it puts back must not stay for that.
TEST(PathProber, UselessPathIsHardlyEverBackWithoutLoad) {
    for (const int burst : {4, 7, 10}) {  // ms, every 200
        SCOPED_TRACE(burst);
        Job job{{50e6, 50e6}, {100e6, 100e6}, {}};
        job.run(10 * kSecond);
        ASSERT_EQ(job.trials.drops(), 1U);
        job.out = {};
        const Nanos hour = 3600 * kSecond;
        for (Nanos i = 0; i < hour / kMillisecond; ++i) {
            job.tick(i % 200 < burst ? kBacklog : 0);
        }
        EXPECT_GT(job.out[0] + job.out[1], hour / 10 * 9);
    }
}

// A third path that never gets anything must not keep the others' trials frequent.
TEST(PathProber, ThatGetsNothingIsNotWaitedFor) {
    Job job{{100e6, 100e6}, {100e6, 100e6}, {}};
    std::array<PathProber::Sample, 3> paths{{{true, 0, 0}, {true, 0, 0}, {true, 0, 0}}};
    Nanos out = 0;
    for (Nanos now = kSecond; now < 3600 * kSecond; now += kMillisecond) {
        for (std::size_t i = 0; i < 2; ++i) {
            const bool off = job.trials.out(i);
            out += off ? kMillisecond : 0;
            paths[i].delivered += off ? 0 : 100'000;
        }
        job.trials.tick(now, paths, kBacklog);
    }
    EXPECT_LT(out, 8 * kSecond);
}

}  // namespace
}  // namespace deft::net::testing
