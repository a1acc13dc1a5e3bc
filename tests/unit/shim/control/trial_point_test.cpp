// SPDX-License-Identifier: Apache-2.0
#include "shim/control/trial_point.h"

#include <gtest/gtest.h>

#include <array>

namespace deft::director {
namespace {

using agreement::Decision;

class TrialPoints : public ::testing::Test {
protected:
    TrialPoints() {
        point_.attach([this] { launched_.push_back(at_); });
    }
    bool name(std::uint64_t serial, std::uint64_t call, Series series = Series::Sums) {
        return point_.name(serial, series, call, made_);
    }
    // The job makes its calls up to this one.
    void make_up_to(std::uint64_t last, bool grouped = false) {
        while (made_.load() <= last) {
            make(grouped);
        }
    }
    void make(bool grouped = false, Series series = Series::Sums) {
        at_ = made_.fetch_add(1);
        if (point_.due(series, at_)) {
            point_.reached(series, at_, grouped, [this](std::uint64_t serial, auto) {
                ++waits_;
                return decision_(serial);
            });
        }
    }

    TrialPoint point_;
    std::atomic<std::uint64_t> made_{0};
    std::uint64_t at_ = 0;
    std::vector<std::uint64_t> launched_;  // at these calls
    int waits_ = 0;
    std::function<Decision(std::uint64_t)> decision_ = [](std::uint64_t) { return Decision::Lost; };
};

TEST_F(TrialPoints, HooksLaunchAtTheCallThatWasNamed) {
    ASSERT_TRUE(name(1, 5));
    EXPECT_TRUE(point_.ahead());
    point_.commit(1);
    make_up_to(9);
    EXPECT_EQ(launched_, std::vector<std::uint64_t>{5});
    EXPECT_EQ(waits_, 0);
    EXPECT_FALSE(point_.ahead());
    EXPECT_FALSE(point_.drop()) << "it has been launched";
}

TEST_F(TrialPoints, ACallThatIsPastIsRefused) {
    make_up_to(5);
    EXPECT_FALSE(name(1, 5));
    point_.commit(1);
    make_up_to(9);
    EXPECT_TRUE(launched_.empty());
}

TEST_F(TrialPoints, AHookWaitsForADecisionThatIsNotKnown) {
    decision_ = [](std::uint64_t) { return Decision::Commit; };
    ASSERT_TRUE(name(1, 5));
    make_up_to(9);
    EXPECT_EQ(launched_, std::vector<std::uint64_t>{5});
    EXPECT_EQ(waits_, 1);
}

TEST_F(TrialPoints, ADecisionThatIsLostLaunchesNothingThoughItComesLater) {
    ASSERT_TRUE(name(1, 5));
    make_up_to(5);
    point_.commit(1);
    make_up_to(9);
    EXPECT_TRUE(launched_.empty());
    EXPECT_EQ(waits_, 1);
}

TEST_F(TrialPoints, WhatIsDroppedIsNotLaunched) {
    ASSERT_TRUE(name(1, 5));
    point_.commit(1);
    EXPECT_TRUE(point_.drop());
    make_up_to(9);
    EXPECT_TRUE(launched_.empty());
    ASSERT_TRUE(name(2, 12));
    point_.commit(2);
    make_up_to(20);
    EXPECT_EQ(launched_, std::vector<std::uint64_t>{12});
}

// While the hook waits, its proposal is cancelled, and another call named that lies ahead.
TEST_F(TrialPoints, AHookThatHasWaitedTakesNoOtherProposalForItsOwn) {
    std::uint64_t first = 1;  // serial of the proposal that is cancelled
    for (const Decision heard : {Decision::Cancel, Decision::Commit}) {
        const std::uint64_t call = made_.load() + 5;
        const std::uint64_t own = call + 4;
        decision_ = [this, heard, own](std::uint64_t serial) {
            point_.cancel(serial);
            EXPECT_TRUE(name(serial + 1, own));
            point_.commit(serial + 1);
            return heard;
        };
        ASSERT_TRUE(name(first, call));
        make_up_to(own);
        EXPECT_EQ(launched_, std::vector<std::uint64_t>{own}) << "at its own call alone";
        launched_.clear();
        first += 2;
    }
}

TEST_F(TrialPoints, ACallOfTheOtherSeriesIsNone) {
    ASSERT_TRUE(name(1, 5, Series::Shards));
    point_.commit(1);
    make_up_to(9);
    EXPECT_TRUE(launched_.empty());
    make(false, Series::Shards);
    EXPECT_EQ(launched_.size(), 1U);
}

TEST_F(TrialPoints, InAGroupTheNextCallThatIsInNoneTakesItsPlace) {
    ASSERT_TRUE(name(1, 5));
    point_.commit(1);
    make_up_to(7, true);
    EXPECT_TRUE(launched_.empty());
    make_up_to(9);
    EXPECT_EQ(launched_, std::vector<std::uint64_t>{8});
}

TEST_F(TrialPoints, NothingIsNamedWhileAHookIsInside) {
    bool named = true;
    point_.attach([&] { named = name(2, 20); });
    ASSERT_TRUE(name(1, 5));
    point_.commit(1);
    make_up_to(9);
    EXPECT_FALSE(named);
}

TEST_F(TrialPoints, WhatAStagingBeforeHasLaunchedIsNotThisOnes) {
    ASSERT_TRUE(name(1, 5));
    point_.commit(1);
    make_up_to(9);
    EXPECT_FALSE(point_.drop());
    point_.forget_launched();
    EXPECT_TRUE(point_.drop());
}

}  // namespace
}  // namespace deft::director
