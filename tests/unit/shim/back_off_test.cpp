// SPDX-License-Identifier: Apache-2.0
#include "shim/director/back_off.h"

#include <gtest/gtest.h>

namespace deft::director {
namespace {

constexpr std::uint64_t kLength = 3;

TEST(BackOff, PlansThatLastAreMadeAtOnceHoweverOftenTheyEnd) {
    BackOff back_off;
    for (std::uint64_t i = 1; i <= 1000; ++i) {
        EXPECT_EQ(back_off.ended(i * 100, kLength, BackOff::kWorthwhile), 0U);
        EXPECT_FALSE(back_off.holds(i * 100));
    }
}

TEST(BackOff, ShortOnesHaveLongerAndLongerPausesButNeverTheLast) {
    BackOff back_off;
    std::uint64_t ordinal = 10;
    for (std::uint32_t i = 1; i < BackOff::kFree; ++i) {
        EXPECT_EQ(back_off.ended(ordinal, kLength, 1), 0U) << i;
        EXPECT_FALSE(back_off.holds(ordinal));
    }
    std::uint64_t expected = BackOff::kFirst;
    for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(back_off.ended(ordinal, kLength, BackOff::kWorthwhile - 1), expected);
        EXPECT_TRUE(back_off.holds(ordinal + expected * kLength - 1));
        EXPECT_FALSE(back_off.holds(ordinal += expected * kLength));
        expected = std::min(2 * expected, BackOff::kMost);
    }
    EXPECT_EQ(expected, BackOff::kMost);
}

TEST(BackOff, OnePlanThatLastsForgetsTheShortOnes) {
    BackOff back_off;
    for (std::uint32_t i = 0; i < BackOff::kFree + 3; ++i) {
        back_off.ended(0, kLength, 0);
    }
    EXPECT_TRUE(back_off.holds(0));
    EXPECT_EQ(back_off.ended(500, kLength, BackOff::kWorthwhile), 0U);
    EXPECT_FALSE(back_off.holds(500));
    EXPECT_EQ(back_off.ended(510, kLength, 0), 0U) << "as the first";
}

TEST(BackOff, HoldsNothingBeforeTheFirstEndAndBearsNoGradients) {
    BackOff back_off;
    EXPECT_FALSE(back_off.holds(0));
    for (std::uint32_t i = 0; i < BackOff::kFree; ++i) {
        back_off.ended(7, 0, 0);
    }
    EXPECT_TRUE(back_off.holds(7));
    EXPECT_FALSE(back_off.holds(7 + BackOff::kFirst));
}

}  // namespace
}  // namespace deft::director
