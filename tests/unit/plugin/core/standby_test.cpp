// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/standby.h"

#include <gtest/gtest.h>

namespace deft::net {
namespace {

TEST(Standby, ASlowLinkIsKeptBackOnceItHasBeenSlowForLong) {
    Standby standby;
    EXPECT_FALSE(standby.tick({4, 100}, kSecond));
    EXPECT_FALSE(standby.tick({4, 100}, 2 * kSecond - 1));
    EXPECT_FALSE(standby.out());
    EXPECT_TRUE(standby.tick({4, 100}, 2 * kSecond));
    EXPECT_TRUE(standby.out());
}

TEST(Standby, OneGoodMomentStartsTheCountAgain) {
    Standby standby;
    EXPECT_FALSE(standby.tick({4, 100}, kSecond));
    EXPECT_FALSE(standby.tick({5, 100}, kSecond + kMillisecond)) << "a twentieth is enough";
    EXPECT_FALSE(standby.tick({4, 100}, 2 * kSecond));
    EXPECT_FALSE(standby.out());
    EXPECT_TRUE(standby.tick({4, 100}, 3 * kSecond));
}

TEST(Standby, ItIsTriedAgainLessAndLessOften) {
    Standby standby;
    Nanos now = kSecond;
    Nanos rest = Standby::kFirstRest;
    for (int i = 0; i < 10; ++i) {
        (void)standby.tick({1, 100}, now);
        now += Standby::kFor;
        ASSERT_TRUE(standby.tick({1, 100}, now));
        EXPECT_FALSE(standby.tick({50, 100}, now + rest - 1)) << "the estimate is an old one";
        ASSERT_TRUE(standby.tick({1, 100}, now + rest)) << i;
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
        EXPECT_FALSE(standby.tick({1, 100}, now)) << "nothing has changed";
        EXPECT_TRUE(standby.out());
    }
    standby.give_way(false);
    EXPECT_FALSE(standby.out());
    EXPECT_FALSE(standby.tick({1, 100, 0, 1 << 30}, 60 * kSecond)) << "it was not to carry";
}

// Looks like 8 % of the sum, and carries what it may of 100 MB that go out in each second.
struct Shaped {
    Standby standby;
    Standby::Sample path = {8, 100};
    Nanos now = kSecond;

    bool second(double percent) {
        bool changed = false;
        for (int i = 0; i < 1000; ++i) {
            changed = standby.tick(path, now) || changed;
            now += kMillisecond;
            path.delivered += static_cast<std::uint64_t>(percent * 1000);
            path.all += 100'000;
        }
        return standby.tick(path, now) || changed;
    }
};

TEST(Standby, OneThatLooksFasterThanWhatItCarriesIsKeptBack) {
    Shaped link;
    EXPECT_TRUE(link.second(4));
    EXPECT_TRUE(link.standby.out());
    link.now += Standby::kFirstRest;
    EXPECT_TRUE(link.standby.tick(link.path, link.now)) << "tried again";
    EXPECT_FALSE(link.standby.tick(link.path, link.now + 1)) << "judged by what came since";
    EXPECT_FALSE(link.standby.out());
}

TEST(Standby, OneThatCarriesItsPartStays) {
    Shaped link;
    for (int i = 0; i < 5; ++i) {
        EXPECT_FALSE(link.second(6));
    }
    EXPECT_TRUE(link.second(4)) << "what it carried before does not count";
}

TEST(Standby, OneThatHadNothingToCarryStays) {
    Shaped link;
    EXPECT_FALSE(link.second(0)) << "as with small messages";
    link.path.rate = 20;
    EXPECT_FALSE(link.second(1)) << "it would be missed by larger ones";
}

TEST(Standby, OneThatWasAwayIsJudgedByWhatCameSince) {
    Shaped link;
    EXPECT_FALSE(link.standby.tick(link.path, link.now));
    link.standby.away();
    link.now += kSecond;
    link.path.all += 100'000'000;
    link.path.delivered += 1'000'000;
    EXPECT_FALSE(link.standby.tick(link.path, link.now));
    EXPECT_TRUE(link.second(1));
}

TEST(Standby, AFewBytesSayNothing) {
    Shaped link;
    for (int i = 0; i < 10; ++i) {
        EXPECT_FALSE(link.standby.tick(link.path, link.now));
        link.now += kSecond;
        link.path.delivered += 10'000;
        link.path.all += 1'000'000;
    }
    EXPECT_TRUE(link.second(1));
}

}  // namespace
}  // namespace deft::net
