// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/standby.h"

#include <gtest/gtest.h>

namespace deft::net {
namespace {

TEST(Standby, ASlowLinkIsKeptBackOnceItHasBeenSlowForLong) {
    Standby standby;
    EXPECT_FALSE(standby.tick(4, 100, kSecond));
    EXPECT_FALSE(standby.tick(4, 100, 2 * kSecond - 1));
    EXPECT_FALSE(standby.out());
    EXPECT_TRUE(standby.tick(4, 100, 2 * kSecond));
    EXPECT_TRUE(standby.out());
}

TEST(Standby, OneGoodMomentStartsTheCountAgain) {
    Standby standby;
    EXPECT_FALSE(standby.tick(4, 100, kSecond));
    EXPECT_FALSE(standby.tick(5, 100, kSecond + kMillisecond)) << "a twentieth is enough";
    EXPECT_FALSE(standby.tick(4, 100, 2 * kSecond));
    EXPECT_FALSE(standby.out());
    EXPECT_TRUE(standby.tick(4, 100, 3 * kSecond));
}

TEST(Standby, ItIsTriedAgainLessAndLessOften) {
    Standby standby;
    Nanos now = kSecond;
    Nanos rest = Standby::kFirstRest;
    for (int i = 0; i < 10; ++i) {
        (void)standby.tick(1, 100, now);
        now += Standby::kFor;
        ASSERT_TRUE(standby.tick(1, 100, now));
        EXPECT_FALSE(standby.tick(50, 100, now + rest - 1)) << "the estimate is an old one";
        ASSERT_TRUE(standby.tick(1, 100, now + rest)) << i;
        EXPECT_FALSE(standby.out());
        now += rest;
        rest = std::min(2 * rest, Standby::kLongestRest);
    }
}

TEST(Standby, OneThatSharesAWireIsOutAsLongAsItDoes) {
    Standby standby;
    standby.give_way(true);
    EXPECT_TRUE(standby.out());
    for (Nanos now = kSecond; now < 60 * kSecond; now += kSecond) {
        EXPECT_FALSE(standby.tick(1, 100, now)) << "nothing has changed";
        EXPECT_TRUE(standby.out());
    }
    standby.give_way(false);
    EXPECT_FALSE(standby.out());
}

}  // namespace
}  // namespace deft::net
