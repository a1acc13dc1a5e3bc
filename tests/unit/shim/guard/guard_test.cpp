// SPDX-License-Identifier: Apache-2.0
#include "shim/guard/guard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "perf/executor/plans.h"

namespace deft::guard {
namespace {

using executor::test::uniform_plan;

constexpr int kRanks = 4;

// An iteration takes little more than half of the time.
planner::Plan plan(std::uint32_t merge, std::uint32_t delay) {
    planner::Plan plan = uniform_plan({4096, 8192}, merge, delay);
    plan.predicted.iteration = 1.1;
    plan.predicted.baseline = 2;
    return plan;
}

// Reports of all ranks for one iteration. `signal` and `noise` are squared norms: of the true
// gradient and of one rank's deviation from it.
void report_all(Guard& guard, std::uint64_t iteration, double signal, double noise,
                double merged = 1) {
    for (int r = 0; r < kRanks; ++r) {
        Statistics s;
        s.iteration = iteration;
        s.complete = true;
        s.local_square = merged * merged * signal + merged * noise;
        s.reduced_square = kRanks * kRanks * merged * merged * signal + kRanks * merged * noise;
        s.bytes = 12288;
        s.merged = merged;
        guard.report(r, s);
    }
}

TEST(Noise, IsFoundInRandomGradients) {
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    constexpr int kSize = 2000;
    std::vector<double> truth(kSize);
    for (double& x : truth) {
        x = 0.05 * normal(random);
    }
    double signal = 0;
    for (const double x : truth) {
        signal += x * x;
    }
    for (const int merged : {1, 2}) {
        double local = 0;
        double reduced = 0;
        constexpr int kTrials = 200;
        for (int trial = 0; trial < kTrials; ++trial) {
            std::vector<double> sum(kSize);
            for (int r = 0; r < kRanks; ++r) {
                for (int i = 0; i < kSize; ++i) {
                    double x = 0;
                    for (int m = 0; m < merged; ++m) {
                        x += truth[i] + 0.3 * normal(random);
                    }
                    local += x * x / (kRanks * kTrials);
                    sum[i] += x;
                }
            }
            for (const double x : sum) {
                reduced += x * x / kTrials;
            }
        }
        const Noise noise = noise_of(local, reduced, kRanks, merged);
        EXPECT_NEAR(noise.mean_square / (kRanks * kRanks * signal), 1, 0.05);
        EXPECT_NEAR(noise.noise_square / (kRanks * 0.09 * kSize), 1, 0.05);
    }
}

TEST(Report, SurvivesTheWire) {
    Statistics s;
    s.iteration = 77;
    s.complete = true;
    s.local_square = 1.5;
    s.reduced_square = 2.5;
    s.bytes = 4096;
    s.merged = 2;
    s.not_finite = 3;
    const auto bytes = encode(s);
    Statistics back;
    ASSERT_TRUE(decode(bytes, back));
    EXPECT_EQ(back.iteration, 77U);
    EXPECT_TRUE(back.complete);
    EXPECT_EQ(back.local_square, 1.5);
    EXPECT_EQ(back.reduced_square, 2.5);
    EXPECT_EQ(back.bytes, 4096U);
    EXPECT_EQ(back.merged, 2);
    EXPECT_EQ(back.not_finite, 3U);
    EXPECT_FALSE(decode(std::span(bytes).first(kReportBytes - 1), back));
    auto bad = bytes;
    bad[0] ^= std::byte{0x40};
    EXPECT_FALSE(decode(bad, back));
    s.local_square = std::numeric_limits<double>::quiet_NaN();
    EXPECT_FALSE(decode(encode(s), back));
}

TEST(Guard, LeavesAHealthyPlanAlone) {
    Guard guard({}, kRanks);
    guard.plan_in_force(plan(1, 1), 0);
    for (std::uint64_t t = 0; t < 400; t += 8) {
        report_all(guard, t, 1.0 / (1.0 + double(t) / 100), 0.5);
        EXPECT_EQ(guard.decide(t).action, Action::Keep) << t;
    }
    EXPECT_NEAR(guard.noise().noise_square, kRanks * 0.5, 1e-9);
}

constexpr int kMany = 2000;

// What the leader measures of one iteration, its own gradients and the sums, and what other ranks
// send it.
void report_some(Guard& guard, std::uint64_t iteration, double signal, int first, int last) {
    for (int rank = first; rank < last; ++rank) {
        if (reports(rank, kMany)) {
            Statistics s;
            s.iteration = iteration;
            s.complete = true;
            s.local_square = signal + 1;
            s.reduced_square = double(kMany) * kMany * signal + kMany;
            s.bytes = 4096;
            guard.report(rank, s);
        }
    }
}

TEST(Guard, NeedsOneReportOfWhatIsEqualOnAllRanks) {
    Guard guard({}, kMany);
    guard.plan_in_force(plan(1, 1), 0);
    for (std::uint64_t t = 0; t < 80; t += 8) {
        report_some(guard, t, 1, 0, 1);
        EXPECT_EQ(guard.decide(t).action, Action::Keep) << t;
    }
    EXPECT_EQ(guard.seen(), 10U);
    for (const std::uint64_t t : {80, 88}) {
        report_some(guard, t, 400, 0, 1);
    }
    EXPECT_EQ(guard.decide(88).action, Action::FallBack);
}

TEST(Guard, DoesNotWaitForARankThatIsSilent) {
    Guard guard({}, kMany);
    guard.plan_in_force(plan(1, 1), 0);
    for (std::uint64_t t = 0; t < 160; t += 8) {
        report_some(guard, t, 1, 0, kMany / 2 + 50);
    }
    EXPECT_NEAR(guard.noise().noise_square, kMany, 1e-6);
    EXPECT_NEAR(guard.noise().mean_square, double(kMany) * kMany, 1);
}

TEST(Guard, HearsOfSixtyFourRanksAtMostAndOfAllWhereTheyAreFewer) {
    for (const int ranks : {1, 2, 63, 64, 65, 127, 128, 129, 1024, 1025, 10'000}) {
        int count = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            count += reports(rank, ranks) ? 1 : 0;
        }
        EXPECT_LE(count, kReporters) << ranks;
        EXPECT_GT(count, std::min(ranks, kReporters) / 2) << ranks;
        EXPECT_TRUE(ranks > kReporters || count == ranks) << ranks;
    }
}

TEST(Guard, APlanThatLapsedFell) {
    Guard guard({}, kRanks);
    guard.plan_in_force(plan(1, 1), 0);
    guard.lapsed(100);
    EXPECT_TRUE(guard.fallen());
    EXPECT_EQ(guard.decisions(), 1U);
    guard.lapsed(100);
    EXPECT_EQ(guard.decisions(), 1U) << "once";
    EXPECT_EQ(guard.fallen_for(130), 30U);
    guard.plan_in_force({}, 100);
    EXPECT_EQ(guard.decide(299).action, Action::Keep);
    EXPECT_EQ(guard.decide(300).action, Action::Resume);
    Settings warn;
    warn.mode = Mode::Warn;
    Guard other(warn, kRanks);
    other.plan_in_force(plan(1, 1), 0);
    other.lapsed(100);
    EXPECT_FALSE(other.fallen());
}

TEST(Guard, FallsBackOnValuesThatAreNotFinite) {
    Guard guard({}, kRanks);
    guard.plan_in_force(plan(1, 1), 0);
    Statistics bad;
    bad.iteration = 5;
    bad.bytes = 4096;
    bad.not_finite = 2;
    guard.report(1, bad);
    const Decision decision = guard.decide(6);
    EXPECT_EQ(decision.action, Action::FallBack);
    EXPECT_TRUE(decision.act);
    EXPECT_NE(decision.reason.find("not finite"), std::string::npos);
    EXPECT_EQ(guard.decide(7).action, Action::Keep);  // once
}

TEST(Guard, ResumesLaterAndLaterAndThenGivesUp) {
    Settings settings;
    settings.hold = 100;
    settings.most_falls = 2;
    Guard guard(settings, kRanks);
    std::uint64_t t = 0;
    std::uint64_t hold = 100;
    for (int fall = 0; fall < 3; ++fall) {
        guard.plan_in_force(plan(2, 1), t);
        Statistics bad;
        bad.not_finite = 1;
        guard.report(0, bad);
        ASSERT_EQ(guard.decide(++t).action, Action::FallBack);
        guard.plan_in_force(plan(1, 0), ++t);
        if (fall == 2) {
            break;
        }
        EXPECT_EQ(guard.decide(t + hold - 1).action, Action::Keep);
        ASSERT_EQ(guard.decide(t += hold).action, Action::Resume) << fall;
        hold *= 2;
    }
    EXPECT_EQ(guard.decide(t + 1000000).action, Action::Keep);
    EXPECT_EQ(guard.falls(), 3U);
}

TEST(Guard, RepeatsAFallThatDidNotHappenAndResumesWithoutBeingTold) {
    Guard guard({}, kRanks);
    guard.plan_in_force(plan(1, 1), 0);
    Statistics bad;
    bad.not_finite = 1;
    guard.report(0, bad);
    ASSERT_EQ(guard.decide(5).action, Action::FallBack);
    guard.report(0, bad);  // from the last moments of the plan
    EXPECT_EQ(guard.decide(8).action, Action::Keep);
    EXPECT_EQ(guard.decide(40).action, Action::Keep);
    guard.report(0, bad);  // it still runs
    EXPECT_EQ(guard.decide(41).action, Action::FallBack);
    EXPECT_EQ(guard.falls(), 1U);
    EXPECT_EQ(guard.decide(41 + 199).action, Action::Keep);
    EXPECT_EQ(guard.decide(41 + 200).action, Action::Resume);
}

TEST(Guard, FallsBackWhenNormsGrowAndStayHigh) {
    Guard guard({}, kRanks);
    guard.plan_in_force(plan(1, 1), 0);
    std::uint64_t t = 0;
    for (; t < 80; t += 8) {
        report_all(guard, t, 1, 0.5);
        ASSERT_EQ(guard.decide(t).action, Action::Keep);
    }
    report_all(guard, t, 100, 50);  // one alone is an outlier
    EXPECT_EQ(guard.decide(t).action, Action::Keep);
    report_all(guard, t += 8, 1, 0.5);
    EXPECT_EQ(guard.decide(t).action, Action::Keep);
    report_all(guard, t += 8, 16, 8);
    EXPECT_EQ(guard.decide(t).action, Action::Keep);
    report_all(guard, t += 8, 100, 50);
    const Decision decision = guard.decide(t);
    EXPECT_EQ(decision.action, Action::FallBack);
    EXPECT_NE(decision.reason.find("norm of the reduced gradients grew"), std::string::npos);
}

TEST(Guard, FallsBackWhenNormsExplodeRightAfterTheSwitch) {
    Guard guard({}, kRanks);
    guard.plan_in_force(plan(2, 0), 0);
    report_all(guard, 0, 1, 0.5);
    EXPECT_EQ(guard.decide(0).action, Action::Keep);
    report_all(guard, 8, 100, 50);
    EXPECT_EQ(guard.decide(8).action, Action::Keep) << "one alone is an outlier";
    report_all(guard, 16, 1e4, 5e3);
    EXPECT_EQ(guard.decide(16).action, Action::FallBack);
}

// A plan that sends sums of eight has sent the one gradient that it had at first.
TEST(Guard, ComparesSumsOfDifferentNumbersOfGradients) {
    Guard guard({}, kRanks);
    guard.plan_in_force(plan(8, 0), 0);
    std::uint64_t t = 0;
    for (const double merged : {1, 8, 8, 8, 8, 8, 8}) {
        report_all(guard, t += 8, 1, 1e-6, merged);
        const Decision decision = guard.decide(t);
        EXPECT_EQ(decision.action, Action::Keep) << decision.reason;
    }
}

TEST(Guard, FallsBackWhenTheNetworkHasDied) {
    Guard guard({}, kRanks);
    guard.plan_in_force(plan(2, 0), 0);
    report_all(guard, 0, 1, 0.5);
    Decision decision;
    std::uint64_t t = 8;
    for (; t < 200 && decision.action == Action::Keep; t += 8) {
        report_all(guard, t, 1e-6, 1e-4);  // only the last layer's bias is left
        decision = guard.decide(t);
    }
    ASSERT_EQ(decision.action, Action::FallBack);
    EXPECT_LE(t, 48U);
    EXPECT_NE(decision.reason.find("collapsed"), std::string::npos) << decision.reason;
}

TEST(Guard, LetsATrainingThatSucceedsComeToRest) {
    Guard guard({}, kRanks);
    guard.plan_in_force(plan(1, 1), 0);
    for (std::uint64_t t = 0; t < 8000; t += 8) {
        const double norm = std::exp(-static_cast<double>(t) / 400);
        report_all(guard, t, norm * norm, norm * norm / 2);
        EXPECT_EQ(guard.decide(t).action, Action::Keep) << t;
    }
}

TEST(Guard, TightensMergingThatCostsProgress) {
    // Clean gradients: an update of four is worth hardly more than one of one.
    Guard guard({}, kRanks);
    guard.plan_in_force(plan(4, 0), 0);
    Decision decision;
    for (std::uint64_t t = 0; t < 400 && decision.action == Action::Keep; t += 8) {
        report_all(guard, t, 1, 2, 4);  // a noise scale of 0.5
        decision = guard.decide(t);
    }
    ASSERT_EQ(decision.action, Action::Tighten) << decision.reason;
    EXPECT_EQ(decision.max_merge, 3U);
    EXPECT_GE(decision.iteration, 8U * 7);
    // The tightened plan is judged by new measurements.
    guard.plan_in_force(plan(1, 1), decision.iteration);
    for (std::uint64_t t = 400; t < 800; t += 8) {
        report_all(guard, t, 1, 2);
        EXPECT_EQ(guard.decide(t).action, Action::Keep);
    }
}

TEST(Guard, LeavesMergingAloneThatCostsLessThanItGains) {
    for (const bool priced : {true, false}) {
        Settings settings;
        settings.merging_priced = priced;
        Guard guard(settings, kRanks);
        guard.plan_in_force(plan(4, 0), 0);
        for (std::uint64_t t = 0; t < 400; t += 8) {
            report_all(guard, t, 1, priced ? 40 : 2, 4);  // a noise scale of 10, of 0.5
            EXPECT_EQ(guard.decide(t).action, Action::Keep) << priced;
        }
    }
}

// Up to where the guard finds that merging costs progress. What it does then.
Decision find_it_costly(Guard& guard, double merged, std::uint64_t from = 0) {
    Decision decision;
    for (std::uint64_t t = from; t < from + 400 && decision.action == Action::Keep; t += 8) {
        report_all(guard, t, 1, 0.04, merged);
        decision = guard.decide(t);
    }
    return decision;
}

TEST(Guard, EndsAPlanWhileATighterOneIsAwaited) {
    Guard guard({}, kRanks);
    guard.plan_in_force(plan(3, 0), 0);
    ASSERT_EQ(find_it_costly(guard, 3).action, Action::Tighten);
    EXPECT_TRUE(guard.tightening());
    EXPECT_EQ(find_it_costly(guard, 3, 400).action, Action::Keep) << "said once";
    Statistics bad;
    bad.not_finite = 1;
    guard.report(0, bad);
    EXPECT_EQ(guard.decide(800).action, Action::FallBack);
    EXPECT_TRUE(guard.fallen());
    guard.plan_in_force(plan(2, 0), 810);  // it was on its way
    EXPECT_TRUE(guard.fallen());
    guard.plan_in_force({}, 820);
    EXPECT_EQ(guard.decide(820 + 199).action, Action::Keep);
    EXPECT_EQ(guard.decide(820 + 200).action, Action::Resume);
    guard.plan_in_force(plan(2, 0), 1030);
    EXPECT_FALSE(guard.fallen());
}

TEST(Guard, CountsWhatCannotBeTightenedAsAFall) {
    Guard guard({}, kRanks);
    guard.plan_in_force(plan(2, 0), 0);
    EXPECT_EQ(find_it_costly(guard, 2).action, Action::FallBack);
    EXPECT_EQ(guard.falls(), 1U);
    guard.plan_in_force({}, 400);
    EXPECT_EQ(guard.decide(600).action, Action::Resume);
    guard.plan_in_force(plan(3, 0), 610);
    ASSERT_EQ(find_it_costly(guard, 3, 610).action, Action::Tighten);
    EXPECT_EQ(guard.tightened_in_vain(1100).action, Action::FallBack);
    EXPECT_EQ(guard.falls(), 2U);
    guard.plan_in_force({}, 1110);
    EXPECT_EQ(guard.decide(1110 + 399).action, Action::Keep);
    EXPECT_EQ(guard.decide(1110 + 400).action, Action::Resume);
}

TEST(Guard, OnlySaysSoInModeWarn) {
    Settings settings;
    settings.mode = Mode::Warn;
    Guard guard(settings, kRanks);
    guard.plan_in_force(plan(1, 1), 0);
    for (int i = 0; i < 3; ++i) {
        Statistics bad;
        bad.not_finite = 1;
        guard.report(0, bad);
        const Decision decision = guard.decide(static_cast<std::uint64_t>(i));
        EXPECT_EQ(decision.action, Action::FallBack);
        EXPECT_FALSE(decision.act);
    }
    EXPECT_EQ(guard.falls(), 0U);
}

TEST(Guard, IsSilentWhenOffOrSynchronous) {
    Settings settings;
    settings.mode = Mode::Off;
    Guard off(settings, kRanks);
    Guard synchronous({}, kRanks);
    off.plan_in_force(plan(1, 1), 0);
    synchronous.plan_in_force(plan(1, 0), 0);
    for (Guard* guard : {&off, &synchronous}) {
        Statistics bad;
        bad.not_finite = 1;
        guard->report(0, bad);
        EXPECT_EQ(guard->decide(10).action, Action::Keep);
    }
}

TEST(Guard, ForgetsIterationsThatSomeRankNeverReports) {
    Guard guard({}, kRanks);
    guard.plan_in_force(plan(1, 1), 0);
    for (std::uint64_t t = 0; t < 100000; ++t) {
        Statistics s;
        s.iteration = t;
        s.complete = true;
        s.bytes = 1;
        guard.report(0, s);
    }
    EXPECT_EQ(guard.decide(100000).action, Action::Keep);
}

}  // namespace
}  // namespace deft::guard
