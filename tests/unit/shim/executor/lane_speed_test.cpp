// SPDX-License-Identifier: Apache-2.0
// What is made of two measured all-reduces.
#include <gtest/gtest.h>

#include "shim/executor/lanes.h"

namespace deft::executor {
namespace {

constexpr std::size_t kSmall = 256 * 1024;
constexpr std::size_t kLarge = 4 * 1024 * 1024;

LaneSpeed of(double small, double large) {
    return speed_from(kSmall, small, kLarge, large);
}

TEST(LaneSpeed, ALineThroughBothSizes) {
    for (const double start : {0.0, 20e-6, 3e-3}) {
        for (const double per_byte : {1e-6, 1e-9, 1e-11}) {
            if (start > 8 * per_byte * kLarge) {
                continue;  // below
            }
            const LaneSpeed speed = of(start + per_byte * kSmall, start + per_byte * kLarge);
            EXPECT_NEAR(speed.start, start, 1e-12) << per_byte;
            EXPECT_NEAR(speed.per_byte / per_byte, 1, 1e-6);
        }
    }
}

// Both hidden in the noise, or the small one hit by it: not infinitely fast, nothing below zero.
TEST(LaneSpeed, NoiseMakesNoNetworkInfinitelyFast) {
    for (const double small : {0.9e-3, 1e-3, 2e-3, 1.0}) {
        const LaneSpeed speed = of(small, 1e-3);
        EXPECT_GE(speed.per_byte, 0.1 * 1e-3 / kLarge);
        EXPECT_LE(speed.per_byte, 1e-3 / kLarge);
        EXPECT_GE(speed.start, 0);
        EXPECT_LE(speed.start, small);
    }
    // The small one was lucky: the line would begin below zero.
    const LaneSpeed speed = of(1e-6, 1e-3);
    EXPECT_EQ(speed.start, 0);
    EXPECT_NEAR(speed.per_byte, 1e-3 / (kLarge - kSmall), 1e-12);
}

}  // namespace
}  // namespace deft::executor
