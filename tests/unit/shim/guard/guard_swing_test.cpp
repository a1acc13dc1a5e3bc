// SPDX-License-Identifier: Apache-2.0
// The guard's look at how successive sums point: a training that swings, and those that do not.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "perf/executor/plans.h"
#include "shim/guard/guard.h"

namespace deft::guard {
namespace {

constexpr int kRanks = 2;

Guard watching(std::uint32_t merge, std::uint32_t delay, const Settings& settings = {}) {
    Guard guard(settings, kRanks);
    guard.plan_in_force(executor::test::uniform_plan({4096, 8192}, merge, delay), 0);
    return guard;
}

// Reports of `updates` updates with these cosines; the first decision that is not to keep on.
Decision after(Guard& guard, int updates, const std::function<double(int)>& before,
               const std::function<double(int)>& earlier, int first = 0) {
    for (int t = first; t < first + updates; ++t) {
        for (int rank = 0; rank < kRanks; ++rank) {
            Statistics s;
            s.iteration = static_cast<std::uint64_t>(t);
            s.bytes = 12288;
            s.cosine_before = before(t);
            s.cosine_earlier = earlier(t);
            guard.report(rank, s);
        }
        const Decision decision = guard.decide(static_cast<std::uint64_t>(t));
        if (decision.action != Action::Keep) {
            return decision;
        }
    }
    return {};
}

const auto always = [](double value) { return [value](int) { return value; }; };

TEST(Swing, EndsADelayedPlan) {
    Guard guard = watching(1, 1);
    const Decision decision = after(guard, 100, always(0.78), always(-0.3));
    EXPECT_EQ(decision.action, Action::FallBack);
    EXPECT_TRUE(decision.act);
    EXPECT_EQ(decision.iteration, 19U);  // twenty updates are a mean, one rank's reports of each
    EXPECT_NE(decision.reason.find("the training swings"), std::string::npos) << decision.reason;
    EXPECT_NE(decision.reason.find("0.78"), std::string::npos) << decision.reason;
}

TEST(Swing, IsSeenSoonerInMergedSums) {
    for (const auto& [merge, action] : {std::pair{1U, Action::Keep}, {2U, Action::FallBack}}) {
        Guard guard = watching(merge, 1);
        EXPECT_EQ(after(guard, 100, always(0.65), always(0.05)).action, action) << merge;
    }
}

TEST(Swing, IsSeenSoonerUnderMomentum) {
    Settings settings;
    settings.heavy_ball = true;
    Guard guard = watching(1, 1, settings);
    EXPECT_EQ(after(guard, 100, always(0.65), always(0.05)).action, Action::FallBack);
    Guard later = watching(1, 1);
    later.optimizer(settings);
    EXPECT_EQ(after(later, 100, always(0.65), always(0.05)).action, Action::FallBack);
}

TEST(Swing, IsNoSmoothDescent) {
    Guard guard = watching(1, 1);
    EXPECT_EQ(after(guard, 200, always(0.95), always(0.9)).action, Action::Keep);
    Guard slower = watching(1, 1);  // what each update keeps 0.8 of
    EXPECT_EQ(after(slower, 200, always(0.8), always(0.26)).action, Action::Keep);
}

TEST(Swing, IsNoEdgeOfStability) {
    Guard guard = watching(1, 1);
    EXPECT_EQ(after(guard, 200, always(-0.5), always(0.1)).action, Action::Keep);
    Guard predicted = watching(1, 1);  // as quadratic prediction looks with momentum
    EXPECT_EQ(after(predicted, 200, always(0.45), always(-0.4)).action, Action::Keep);
}

TEST(Swing, IsAMeanOverManyUpdates) {
    Guard guard = watching(1, 1);
    const auto now_and_then = [](int t) { return t % 3 == 0 ? 0.9 : 0.5; };
    EXPECT_EQ(after(guard, 200, now_and_then, always(-0.3)).action, Action::Keep);
}

TEST(Swing, WhatCannotBeComparedIsNotCounted) {
    Guard guard = watching(1, 1);
    EXPECT_EQ(after(guard, 50, always(0.8), always(executor::kNoCosine)).action, Action::Keep);
    EXPECT_EQ(after(guard, 19, always(0.8), always(0.0), 50).action, Action::Keep);
    EXPECT_EQ(after(guard, 1, always(0.8), always(0.0), 69).action, Action::FallBack);
}

TEST(Swing, ANewPlanBeginsAnew) {
    Guard guard = watching(1, 1);
    EXPECT_EQ(after(guard, 19, always(0.8), always(0.0)).action, Action::Keep);
    guard.plan_in_force(executor::test::uniform_plan({4096, 8192}, 1, 1), 19);
    EXPECT_EQ(after(guard, 19, always(0.8), always(0.0), 19).action, Action::Keep);
}

TEST(Swing, IsSaidNowAndThenInModeWarn) {
    Settings settings;
    settings.mode = Mode::Warn;
    Guard guard = watching(1, 1, settings);
    int said = 0;
    for (int t = 0; t < 100; ++t) {
        const Decision decision = after(guard, 1, always(0.8), always(0.0), t);
        said += decision.action == Action::FallBack ? 1 : 0;
        EXPECT_FALSE(decision.act);
    }
    EXPECT_EQ(said, 5);  // every twenty updates
}

TEST(Swing, TravelsAndIsChecked) {
    Statistics s;
    s.cosine_before = -0.25;
    s.cosine_earlier = 1;
    Statistics back;
    ASSERT_TRUE(decode(encode(s), back));
    EXPECT_EQ(back.cosine_before, -0.25);
    EXPECT_EQ(back.cosine_earlier, 1);
    s.cosine_before = executor::kNoCosine;
    ASSERT_TRUE(decode(encode(s), back));
    EXPECT_EQ(back.cosine_before, executor::kNoCosine);
    s.cosine_before = 1e9;  // what no peer of ours sends
    EXPECT_FALSE(decode(encode(s), back));
    s.cosine_before = 0;
    s.cosine_earlier = std::nan("");
    EXPECT_FALSE(decode(encode(s), back));
}

}  // namespace
}  // namespace deft::guard
