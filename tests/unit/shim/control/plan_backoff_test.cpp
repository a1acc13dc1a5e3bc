// SPDX-License-Identifier: Apache-2.0
#include "shim/control/plan_backoff.h"

#include <gtest/gtest.h>

namespace deft::director {
namespace {

constexpr std::uint64_t kLength = 3;

TEST(PlanBackoff, PlansThatLastAreMadeAtOnceHoweverOftenTheyEnd) {
    PlanBackoff backoff;
    for (std::uint64_t i = 1; i <= 1000; ++i) {
        EXPECT_EQ(backoff.ended(i * 100, kLength, PlanBackoff::kWorthwhile), 0U);
        EXPECT_FALSE(backoff.holds(i * 100));
    }
}

TEST(PlanBackoff, ShortOnesHaveLongerAndLongerPausesButNeverTheLast) {
    PlanBackoff backoff;
    std::uint64_t ordinal = 10;
    for (std::uint32_t i = 1; i < PlanBackoff::kFree; ++i) {
        EXPECT_EQ(backoff.ended(ordinal, kLength, 1), 0U) << i;
        EXPECT_FALSE(backoff.holds(ordinal));
    }
    std::uint64_t expected = PlanBackoff::kFirst;
    for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(backoff.ended(ordinal, kLength, PlanBackoff::kWorthwhile - 1), expected);
        EXPECT_TRUE(backoff.holds(ordinal + expected * kLength - 1));
        EXPECT_FALSE(backoff.holds(ordinal += expected * kLength));
        expected = std::min(2 * expected, PlanBackoff::kMost);
    }
    EXPECT_EQ(expected, PlanBackoff::kMost);
}

TEST(PlanBackoff, OnePlanThatLastsForgetsTheShortOnes) {
    PlanBackoff backoff;
    for (std::uint32_t i = 0; i < PlanBackoff::kFree + 3; ++i) {
        backoff.ended(0, kLength, 0);
    }
    EXPECT_TRUE(backoff.holds(0));
    EXPECT_EQ(backoff.ended(500, kLength, PlanBackoff::kWorthwhile), 0U);
    EXPECT_FALSE(backoff.holds(500));
    EXPECT_EQ(backoff.ended(510, kLength, 0), 0U) << "as the first";
}

TEST(PlanBackoff, HoldsNothingBeforeTheFirstEndAndBearsNoGradients) {
    PlanBackoff backoff;
    EXPECT_FALSE(backoff.holds(0));
    for (std::uint32_t i = 0; i < PlanBackoff::kFree; ++i) {
        backoff.ended(7, 0, 0);
    }
    EXPECT_TRUE(backoff.holds(7));
    EXPECT_FALSE(backoff.holds(7 + PlanBackoff::kFirst));
}

}  // namespace
}  // namespace deft::director
