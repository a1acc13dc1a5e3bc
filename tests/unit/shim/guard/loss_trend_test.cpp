// SPDX-License-Identifier: Apache-2.0
#include "shim/guard/loss_trend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "tests/unit/shim/guard/losses.h"

namespace deft::guard {
namespace {

using test::Noise;
using test::Scatter;
using test::Schedule;

constexpr int kSwitch = 60;  // iterations before the plan
constexpr int kNever = -1;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

// The iteration of the first alarm, counted from the switch.
int alarm(const std::function<double(int)>& loss, const std::function<double(int)>& rate,
          int iterations, std::string* why = nullptr) {
    LossTrend trend;
    for (int t = 0; t < iterations; ++t) {
        if (t < kSwitch) {
            trend.synchronous(loss(t), rate(t));
        } else if (const std::string said = trend.late(loss(t), rate(t)); !said.empty()) {
            if (why != nullptr) {
                *why = said;
            }
            return t - kSwitch;
        }
    }
    return kNever;
}

// `scale`: of the scatter, to the loss.
int alarm(const Schedule& schedule, Scatter scatter, double scale, unsigned seed,
          const std::function<double(int, double)>& damage = nullptr, int iterations = 1000) {
    Noise noise(scatter, seed);
    return alarm(
        [&](int t) {
            const double loss = schedule.loss(t) * (1 + scale * noise.next());
            return damage ? damage(t, loss) : loss;
        },
        schedule.rate, iterations);
}

// Alarms without a reason, of so many trainings of 940 iterations under a plan.
int alarms(const Schedule& schedule, Scatter scatter, double scale, int trainings) {
    int count = 0;
    for (int seed = 0; seed < trainings; ++seed) {
        count += alarm(schedule, scatter, scale, static_cast<unsigned>(seed)) != kNever ? 1 : 0;
    }
    return count;
}

TEST(LossTrend, RarelyHasNoReason) {
    constexpr int kTrainings = 100;
    int all = 0;
    int trainings = 0;
    for (const Schedule& schedule :
         {test::flat(), test::falling(), test::slow(), test::plateau(kSwitch), test::plateau(100),
          test::warm_restarts()}) {
        for (const Scatter scatter : {Scatter::Normal, Scatter::Heavy, Scatter::Skewed}) {
            for (const double scale : {0.03, 0.1, 0.3}) {
                const int count = alarms(schedule, scatter, scale, kTrainings);
                EXPECT_LE(count, kTrainings * 3 / 100)
                    << schedule.name << " " << static_cast<int>(scatter) << " " << scale;
                all += count;
                trainings += kTrainings;
            }
        }
    }
    EXPECT_LE(all * 400, trainings) << all << " of " << trainings;  // one of 400
    RecordProperty("alarms", all);
    std::printf("%d alarms in %d trainings of 940 iterations\n", all, trainings);
}

// Whatever the scatter, and wherever the training stands.
TEST(LossTrend, SeesADivergenceWithinEightIterations) {
    int slowest = 0;
    for (const Schedule& schedule : {test::flat(), test::falling(), test::slow()}) {
        for (const Scatter scatter : {Scatter::Normal, Scatter::Heavy, Scatter::Skewed}) {
            for (const int begins : {0, 30, 400}) {
                for (unsigned seed = 0; seed < 50; ++seed) {
                    // It grows by a quarter in each iteration, as what was seen of trainings did.
                    const int seen = alarm(schedule, scatter, 0.1, seed, [&](int t, double loss) {
                        const int since = t - kSwitch - begins;
                        return since < 0 ? loss : loss * std::pow(1.25, since + 1);
                    });
                    ASSERT_GE(seen, begins) << schedule.name << " " << seed << " " << begins;
                    slowest = std::max(slowest, seen - begins);
                }
            }
        }
    }
    EXPECT_LE(slowest, 8);
}

TEST(LossTrend, SeesALossThatStaysHigher) {
    for (unsigned seed = 0; seed < 50; ++seed) {
        const auto higher = [](int t, double loss) { return t < 100 ? loss : loss + 0.3; };
        const int seen = alarm(test::flat(), Scatter::Normal, 0.1, seed, higher);
        EXPECT_GE(seen, 40);
        EXPECT_LE(seen, 40 + 16) << "three standard deviations";
    }
}

// A training that fell, and under the plan goes up a little: too little to be a divergence.
TEST(LossTrend, SeesALossThatHasTurned) {
    int seen = 0;
    for (unsigned seed = 0; seed < 50; ++seed) {
        const Schedule turns = {
            "turns",
            [](int t) { return t < kSwitch ? 2.3 - 0.015 * t : 1.4 + 0.019 * (t - kSwitch); },
            test::same};
        const int at = alarm(turns, Scatter::Normal, 0.05, seed, nullptr, kSwitch + 24);
        seen += at != kNever ? 1 : 0;
    }
    EXPECT_GE(seen, 45);
}

TEST(LossTrend, ASingleLossSaysNothing) {
    const auto outlier = [](int t, double loss) { return t == 100 ? 50 : loss; };
    EXPECT_EQ(alarm(test::flat(), Scatter::Normal, 0.1, 1, outlier), kNever);
}

// A guard that only warns lets the plan go on.
TEST(LossTrend, SaysAThingOnceUntilItHappensAgain) {
    LossTrend trend;
    for (int i = 0; i < 60; ++i) {
        trend.synchronous(1, 0.1);
    }
    int said = 0;
    for (const double loss : {3.0, 1.0, kInfinite, 1.0, 3.0}) {
        for (int i = 0; i < 30; ++i) {
            said += trend.late(loss, 0.1).empty() ? 0 : 1;
        }
    }
    EXPECT_EQ(said, 3);
}

TEST(LossTrend, ALossThatIsNotFiniteIsOne) {
    std::string why;
    const auto loss = [](int t) { return t == 70 ? kInfinite : 1.0; };
    EXPECT_EQ(alarm(loss, test::same, 100, &why), 70 - kSwitch);
    EXPECT_NE(why.find("not finite"), std::string::npos) << why;
    const auto before = [](int t) { return t == 70 || t == 30 ? kInfinite : 1.0; };
    EXPECT_EQ(alarm(before, test::same, 100), kNever) << "so it was without a plan";
}

// A rate that the training never had excuses nothing.
TEST(LossTrend, ARateThatIsDoubledIsNoRestart) {
    const auto rate = [](int t) { return t < 120 ? 0.1 : 0.2; };
    const auto loss = [](int t) { return t < 120 ? 0.5 : 0.5 * std::pow(1.25, t - 119); };
    const int seen = alarm(loss, rate, 300);
    EXPECT_GE(seen, 120 - kSwitch);
    EXPECT_LE(seen, 120 - kSwitch + 8);
}

// Nor does one that it had excuse a loss beyond what it had then.
TEST(LossTrend, ARestartThatDivergesIsSeen) {
    const Schedule restarts = test::warm_restarts();
    const auto loss = [&](int t) {
        return restarts.loss(t) * (t < 400 ? 1 : std::pow(1.5, t - 399));
    };
    const int seen = alarm(loss, restarts.rate, 500);
    EXPECT_GE(seen, 400 - kSwitch);
    EXPECT_LE(seen, 400 - kSwitch + 12);
}

TEST(LossTrend, NothingIsJudgedWithoutATrend) {
    LossTrend trend;
    for (std::size_t i = 0; i + 1 < LossTrend::kLeast; ++i) {
        trend.synchronous(1, 0.1);
    }
    for (int i = 0; i < 50; ++i) {
        EXPECT_EQ(trend.late(1000, 0.1), "");
    }
    EXPECT_TRUE(std::isnan(trend.expected()));
}

// A plan that was away for some iterations is compared with the trend of before.
TEST(LossTrend, IsKeptOverAFewSynchronousIterations) {
    LossTrend trend;
    for (int i = 0; i < 60; ++i) {
        trend.synchronous(1 + 0.1 * (i % 2), 0.1);
    }
    EXPECT_EQ(trend.late(1, 0.1), "");
    trend.synchronous(1, 0.1);
    bool seen = false;
    for (int i = 0; i < 8; ++i) {
        seen = seen || !trend.late(3, 0.1).empty();
    }
    EXPECT_TRUE(seen);
}

// After a fall the plan waits until the loss has a trend, and none that rises.
TEST(LossTrend, IsSettledWhereTheSynchronousLossDoesNotRise) {
    LossTrend trend;
    EXPECT_FALSE(trend.settled());
    for (int i = 0; i < 60; ++i) {
        trend.synchronous(1, 0.1);
    }
    trend.late(1, 0.1);
    EXPECT_FALSE(trend.settled());
    trend.forget();
    for (int i = 0; i < 31; ++i) {
        trend.synchronous(2 - 0.02 * i, 0.1);
        EXPECT_FALSE(trend.settled());
    }
    trend.synchronous(1, 0.1);
    EXPECT_TRUE(trend.settled());
    for (int i = 0; i < 32; ++i) {
        trend.synchronous(1 + 0.1 * i, 0.1);
    }
    EXPECT_FALSE(trend.settled());
}

}  // namespace
}  // namespace deft::guard
