// SPDX-License-Identifier: Apache-2.0
// What progress costs, and that no other plan of a small job reaches the same loss sooner.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

#include "planner/model/progress.h"
#include "planner/policies/builder.h"
#include "planner/policies/policy.h"
#include "planner/solver/bounds.h"
#include "planner/stability.h"
#include "tests/unit/planner/random_cases.h"

namespace deft::planner {
namespace {

// What noise is left of SGD with momentum on a quadratic, its gradients late: the squares of what
// one impulse becomes.
double variance(double a, double momentum, std::uint32_t delay) {
    std::vector<double> x(20000 + delay, 0.0);
    double sum = 0;
    x[delay + 1] = 1;
    for (std::size_t t = delay + 1; t + 1 < x.size(); ++t) {
        sum += x[t] * x[t];
        x[t + 1] = x[t] + momentum * (x[t] - x[t - 1]) - a * x[t - delay];
    }
    return sum;
}

TEST(AgePrice, IsWhatNoiseLateGradientsLeave) {
    for (const double momentum : {0.8, 0.9}) {
        const double limit = stability_limit(momentum, 1);
        for (const double part : {0.1, 0.2, 0.5}) {
            const double a = part * limit;
            const double left = variance(a, momentum, 1) / variance(a, momentum, 0);
            EXPECT_NEAR(measured_age_price(a, limit, true), std::max(left - 1, kLeastAgePrice),
                        0.1 * left)
                << momentum << " " << part;
        }
    }
    EXPECT_TRUE(std::isinf(measured_age_price(0.2, 0.1, true)));
    EXPECT_TRUE(std::isinf(measured_age_price(0.2, 0, true)));
    EXPECT_EQ(measured_age_price(0.001, 0.1, false), kAgePrice);
    EXPECT_GT(measured_age_price(0.05, 0.1, false), kAgePrice);
}

// Every iteration's gradients, sent as they become ready; those of the mask are used one later.
Plan late_buckets(const Profile& profile, const Fabric& fabric, std::uint32_t mask) {
    PlanBuilder builder("subset", Barrier::Update);
    for (std::uint32_t i = 0; i < profile.size(); ++i) {
        const std::int32_t late = (mask >> i & 1) != 0 ? 1 : 0;
        builder.add(i, 0, profile.buckets[i].bytes, 0);
        builder.deliver(0, i, 0, profile.buckets[i].bytes, {-late, 1});
    }
    return builder.finish(profile, fabric, {});
}

TEST(Progress, NoSetOfLateBucketsReachesTheLossSooner) {
    std::size_t chosen = 0;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        std::mt19937_64 random(seed);
        const Profile profile =
            testing::random_profile(random, 1 + static_cast<std::uint32_t>(random() % 7));
        const double coverage = testing::uniform(random, 0.5, 2);
        const Fabric fabric = testing::one_link(static_cast<double>(profile.bytes()) /
                                                (coverage * profile.compute()));
        Options options;
        options.max_merge = 1;
        options.mixed_ages = true;
        options.noise = 0;
        options.age_price = testing::uniform(random, 0.05, 1);
        const Plan best = make_plan("best", profile, fabric, options);
        EXPECT_GE(best.predicted.iteration, lower_bound(profile, fabric, options) * (1 - 1e-9));
        EXPECT_NEAR(best.predicted.progress, progress_per_iteration(best, options), 1e-12);
        chosen += best.predicted.mixed_ages() ? 1 : 0;
        for (std::uint32_t mask = 0; mask < 1U << profile.size(); ++mask) {
            const Plan other = late_buckets(profile, fabric, mask);
            EXPECT_LE(seconds_that_count(best, options),
                      seconds_that_count(other, options) * (1 + 2e-4))
                << seed << ", late " << mask << " of " << profile.size();
        }
    }
    EXPECT_GT(chosen, 10U);
}

TEST(Progress, AVerdictCountsWhatAnIterationIsWorth) {
    std::mt19937_64 random(1);
    const Profile profile = testing::random_profile(random, 6);
    const Fabric fabric =
        testing::one_link(static_cast<double>(profile.bytes()) / (1.5 * profile.compute()));
    Options options;
    options.noise_scale = 0;  // two in one update are worth one
    const Plan fast = make_plan("covap", profile, fabric, options);
    EXPECT_LT(fast.predicted.iteration, 0.9 * fast.predicted.baseline);
    EXPECT_EQ(fast.predicted.verdict, Verdict::Keep);
    options.objective = Objective::IterationTime;
    EXPECT_EQ(make_plan("covap", profile, fabric, options).predicted.verdict, Verdict::Use);
    options.objective = Objective::Progress;
    options.noise_scale = 1e6;
    EXPECT_EQ(make_plan("covap", profile, fabric, options).predicted.verdict, Verdict::Use);
}

// DeFT's knapsacks gain most here if they may delay and merge two iterations, and not three.
TEST(WiderCaps, KeepWhatNarrowerOnesGain) {
    for (const bool overheads : {false, true}) {
        std::mt19937_64 random(366665584);
        const Profile profile = testing::random_profile(random, 8);
        const Fabric fabric = testing::random_fabric(random, 2, overheads);
        const auto best = [&](std::uint32_t cap) {
            Options options;
            options.max_delay = options.max_merge = cap;
            options.noise = 0;
            options.noise_scale = 1;
            options.age_price = 0;
            return seconds_that_count(make_plan("best", profile, fabric, options), options);
        };
        EXPECT_LE(best(3), best(2) * (1 + 1e-4)) << "overheads " << overheads;
    }
}

}  // namespace
}  // namespace deft::planner
