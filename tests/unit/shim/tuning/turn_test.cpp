// SPDX-License-Identifier: Apache-2.0
// One of a device's communicators at a time is tried.
#include "shim/tuning/turn.h"

#include <gtest/gtest.h>

namespace deft::tuning {
namespace {

constexpr std::int64_t kNow = 1'000;
constexpr int kOne = 1;
constexpr int kOther = 2;

TEST(Turn, IsOneCommunicatorsUntilItLeaves) {
    Turn turn;
    EXPECT_TRUE(turn.take(&kOne, kNow));
    EXPECT_TRUE(turn.take(&kOne, kNow)) << "its next order";
    EXPECT_FALSE(turn.free_for(&kOther, kNow));
    EXPECT_FALSE(turn.take(&kOther, kNow));
    turn.leave(&kOther);
    EXPECT_FALSE(turn.take(&kOther, kNow)) << "it was not its own to leave";
    turn.leave(&kOne);
    EXPECT_TRUE(turn.take(&kOther, kNow));
}

TEST(Turn, IsKeptForALittleBetweenOrders) {
    Turn turn;
    EXPECT_TRUE(turn.take(&kOne, kNow));
    turn.pause(&kOther, kNow);
    EXPECT_FALSE(turn.take(&kOther, kNow + Turn::kPause));
    turn.pause(&kOne, kNow);
    EXPECT_FALSE(turn.take(&kOther, kNow + Turn::kPause - 1));
    EXPECT_TRUE(turn.take(&kOther, kNow + Turn::kPause));
    EXPECT_FALSE(turn.free_for(&kOne, kNow + Turn::kPause));
}

TEST(Turn, EndsWhereTheJobHasStoppedToMakeItsCalls) {
    Turn turn;
    EXPECT_TRUE(turn.take(&kOne, kNow));
    EXPECT_FALSE(turn.take(&kOther, kNow + Turn::kLongest - 1));
    EXPECT_TRUE(turn.take(&kOther, kNow + Turn::kLongest));
}

TEST(Turn, IsEachDevicesOwn) {
    EXPECT_TRUE(Turn::of(70).take(&kOne, kNow));
    EXPECT_TRUE(Turn::of(71).take(&kOther, kNow));
    EXPECT_EQ(&Turn::of(70), &Turn::of(70));
    Turn::of(70).leave(&kOne);
    Turn::of(71).leave(&kOther);
}

}  // namespace
}  // namespace deft::tuning
