// SPDX-License-Identifier: Apache-2.0
// What a rank does when the council has closed and the job goes on.
#include <optional>

#include "shim/control/guard_settings.h"
#include "shim/executor/lease.h"
#include "tests/component/shim/control/follower.h"
#include "tests/component/shim/control/leader.h"

namespace deft::director::test {
namespace {

TEST_F(Follower, WhatIsStagedGoesWhenTheCouncilCloses) {
    stage();  // modules stay
    order(Kind::Discard);
    director_->tick(track_);
    const std::uint64_t before = free_memory();
    stage();
    EXPECT_LT(free_memory(), before) << "nothing was staged";
    scene_.leave(0);
    EXPECT_TRUE(eventually([&] {
        EXPECT_FALSE(director_->tick(track_));
        return free_memory() == before;
    }));
    EXPECT_TRUE(eventually([&] {
        director_->tick(track_);
        return g_lanes.aborted == 1;
    })) << "its lane has never been in force";
}

TEST_F(Follower, AStagingEndsWhenTheCouncilCloses) {
    order(Kind::Stage);
    EXPECT_TRUE(director_->tick(track_));
    scene_.leave(0);
    EXPECT_TRUE(eventually([&] { return !director_->tick(track_); }));
    EXPECT_EQ(g_lanes.making, 0);
}

// Who has left finishes the lane he is making, and waits for the others.
TEST_F(Follower, LanesThatOthersMakeAreMadeThoughTheCouncilCloses) {
    order(Kind::Stage);
    ASSERT_TRUE(answers(Step::Learned)) << answer().reason;
    order(Kind::Open);
    scene_.leave(0);
    EXPECT_TRUE(eventually([&] { return !scene_[1].open(); }));
    EXPECT_TRUE(eventually([&] { return !director_->tick(track_); }));
    EXPECT_EQ(g_lanes.making, 1);
    EXPECT_EQ(g_lanes.called, 0) << "nobody tries it";
    EXPECT_TRUE(lanes_aborted(1));
}

TEST_F(Follower, ASwitchThatWasNamedIsMadeThoughTheCouncilCloses) {
    stage();
    order(Kind::Arm, ordinal_ + 2);
    scene_.leave(0);
    EXPECT_TRUE(eventually([&] { return !scene_[1].open(); }));
    for (int i = 0; i < 3; ++i) {
        EXPECT_FALSE(director_->tick(track_));
    }
    Job job;
    job.forwarded(*director_, ordinal_);
    job.iteration(*director_, ordinal_);
    director_->tick(track_);
    EXPECT_EQ(director_->facts().switched, 1U);
    job.iteration(*director_, ordinal_);
    EXPECT_EQ(director_->facts().state, "running");
}

// Nor does it matter if it comes after all.
TEST_F(Follower, ALostDecisionCostsThePlanAndNothingElse) {
    using agreement::Answer;
    // Stage, Open, Rehearse, Arm
    scene_.member(0).answer_with({Answer::Yes, Answer::Yes, Answer::Yes, Answer::Later});
    stage();
    EXPECT_EQ(g_lanes.questions.exchange(0), 1) << "a rehearsal, so that the first is not slow";
    propose(Kind::Arm, ordinal_ + 2);
    ASSERT_TRUE(eventually([&] { return director_->switch_ahead(); }));
    Job job;
    job.forwarded(*director_, ordinal_);
    scene_[1].let_go();
    job.forwarded(*director_, ordinal_);
    EXPECT_EQ(g_lanes.questions, 1) << "the others are told";
    EXPECT_EQ(director_->merge_async_error(DEFT_NCCL_SUCCESS), DEFT_NCCL_SUCCESS);
    scene_[0].answer(serial_, true);
    ASSERT_TRUE(eventually([&] { return scene_.member(0).decisions().count(serial_) == 1; }));
    scene_.leave(0);
    EXPECT_TRUE(eventually([&] {
        director_->tick(track_);
        return g_lanes.destroyed == 1;
    })) << "its lane has never been in force";
    EXPECT_EQ(g_lanes.aborted, 0) << "another rank may be reading the answer";
    EXPECT_EQ(director_->facts().switched, 0U);
    job.forwarded(*director_, ordinal_);
}

// The decision was against it, and the others have heard that.
TEST_F(Follower, ALaneOnWhichNobodyAnswersIsAbortedThoughAPlanHasUsedIt) {
    using agreement::Answer;
    // Stage, Open, Rehearse, Arm, and the same again, without trials
    scene_.member(0).answer_with({Answer::Yes, Answer::Yes, Answer::Yes, Answer::Yes, Answer::Yes,
                                  Answer::Yes, Answer::Later});
    stage();
    order(Kind::Arm, ordinal_);
    Job job;
    job.iteration(*director_, ordinal_);
    director_->tick(track_);
    ASSERT_EQ(director_->facts().state, "running");
    EXPECT_FALSE(job.make(*director_, ordinal_++, kCounts[1])) << "another sequence";
    director_->tick(track_);
    ASSERT_EQ(director_->facts().ended, 1U);
    stage();
    propose(Kind::Arm, ordinal_);
    ASSERT_TRUE(eventually([&] { return director_->switch_ahead(); }));
    scene_[1].let_go();
    g_lanes.unanswered = true;
    EXPECT_FALSE(job.make(*director_, ordinal_++, kCounts[0]));
    director_->forwarded(nullptr);
    scene_[0].answer(serial_, false);
    scene_.leave(0);
    EXPECT_EQ(g_lanes.aborted, 0);
    EXPECT_TRUE(eventually([&] {
        director_->tick(track_);
        return g_lanes.aborted == 1;
    }));
    EXPECT_EQ(director_->merge_async_error(DEFT_NCCL_SUCCESS), DEFT_NCCL_SUCCESS);
    EXPECT_FALSE(job.make(*director_, ordinal_++, kCounts[1]));
}

// Another rank may never know of it, and this one has not said yet that it does.
TEST_F(Follower, APlanThatWasToReplaceOneInForceGoesWhenTheCouncilCloses) {
    stage();
    order(Kind::Arm, ordinal_);
    Job job;
    job.iteration(*director_, ordinal_);
    director_->tick(track_);
    ASSERT_EQ(director_->facts().state, "running");
    const std::uint64_t before = free_memory();
    stage();
    EXPECT_LT(free_memory(), before) << "nothing was staged";
    order(Kind::Arm, PlanSwitch::kAtRenewal);
    EXPECT_TRUE(director_->switch_ahead());
    scene_.leave(0);
    EXPECT_TRUE(eventually([&] {
        director_->tick(track_);
        return free_memory() == before;
    }));
    EXPECT_FALSE(director_->switch_ahead());
    EXPECT_EQ(director_->facts().switched, 1U);
}

TEST_F(Leader, RestsWhereTheCouncilClosesWhileAPlanIsStaged) {
    iterate(kHidden, false, 20);
    staged();
    EXPECT_TRUE(director_->tick(track_));
    scene_.leave(1);
    EXPECT_TRUE(eventually([&] { return !director_->tick(track_); }));
    EXPECT_EQ(director_->facts().state, "resting");
}

TEST_F(Leader, RestsWhereTheCouncilClosesWhileAPlanIsArmed) {
    using agreement::Answer;
    // Stage, Open, Rehearse, Arm
    scene_.member(1).answer_with({Answer::Yes, Answer::Yes, Answer::Yes, Answer::Later});
    iterate(kHidden, false, 20);
    staged();
    answer(Step::Learned);
    opened();
    answer_from(0, Step::Ready);
    ASSERT_TRUE(ticks_until([&] { return asked() == 3; }));
    EXPECT_TRUE(director_->tick(track_));
    scene_.leave(1);
    EXPECT_TRUE(eventually([&] { return !director_->tick(track_); }));
    EXPECT_EQ(director_->facts().state, "resting");
}

class Lapses : public Follower {
protected:
    void SetUp() override {
        ASSERT_NO_FATAL_FAILURE(Follower::SetUp());
        stage();
        order(Kind::Arm, ordinal_);
        director_->tick(track_);
        job_.emplace();
        job_->iteration(*director_, ordinal_);
        director_->tick(track_);
        ASSERT_EQ(director_->facts().state, "running");
    }
    void TearDown() override {
        Follower::TearDown();
        job_.reset();
    }
    // Iterations that the plan in force goes on for, at most so many, and what is said meanwhile.
    int lasts(int most) {
        testing::internal::CaptureStderr();
        int iterations = 0;
        for (bool taken = true; iterations < most;) {
            taken = job_->make(*director_, ordinal_, kCounts[0]);
            EXPECT_EQ(job_->make(*director_, ordinal_ + 1, kCounts[1]), taken);
            ordinal_ += 2;
            director_->tick(track_);
            if (!taken) {
                break;
            }
            ++iterations;
        }
        said_ = testing::internal::GetCapturedStderr();
        return iterations;
    }

    std::optional<Job> job_;
    std::string said_;
};

constexpr int kMostLate = static_cast<int>(executor::Lease::kEvery + executor::Lease::kAfter);

TEST_F(Lapses, APlanGoesOnWhileTheCouncilIsOpen) {
    EXPECT_EQ(lasts(5 * kMostLate), 5 * kMostLate);
    EXPECT_EQ(said_.find("WARN"), said_.npos) << said_;
}

TEST_F(Lapses, APlanEndsSoonAfterTheCouncilHasClosed) {
    scene_.leave(0);
    ASSERT_TRUE(eventually([&] { return !scene_[1].open(); }));
    director_->tick(track_);
    EXPECT_LE(lasts(5 * kMostLate), kMostLate);
    EXPECT_NE(said_.find("rank 1: the plan has ended, because"), said_.npos) << said_;
    EXPECT_EQ(director_->facts().ended, 1U);
}

// Which this rank cannot know but through NCCL.
TEST_F(Lapses, APlanEndsSoonAfterAnotherRankHasLostTheOthers) {
    g_lanes.refused = true;
    EXPECT_LE(lasts(5 * kMostLate), kMostLate);
    EXPECT_EQ(said_.find("WARN"), said_.npos) << "it is not this rank's to explain: " << said_;
    EXPECT_EQ(director_->facts().ended, 1U);
}

TEST_F(Leader, APlanThatLapsedStaysAwayAsOneThatFell) {
    bring_into_force();
    g_lanes.refused = true;
    for (int i = 0; i < 2 * kMostLate && director_->facts().ended == 0; ++i) {
        job_->make(*director_, ordinal_, kGradients[0]);
        job_->make(*director_, ordinal_ + 1, kGradients[1]);
        ordinal_ += 2;
        director_->tick(track_);
    }
    EXPECT_EQ(director_->facts().ended, 1U);
    EXPECT_EQ(director_->facts().state, "fallen");
    EXPECT_EQ(director_->facts().guard_decisions, 1U);
}

// Only where the job goes on: its end is no reason to warn.
TEST_F(Leader, ThatTheOthersAreLostIsSaidOnceAndThePlanEnds) {
    bring_into_force();
    scene_.leave(1);
    EXPECT_TRUE(eventually([&] { return !scene_[0].open(); }));
    testing::internal::CaptureStderr();
    for (int i = 0; i < 4 * kMostLate; ++i) {
        job_->make(*director_, ordinal_, kGradients[0]);
        job_->make(*director_, ordinal_ + 1, kGradients[1]);
        ordinal_ += 2;
        director_->tick(track_);
    }
    const std::string said = testing::internal::GetCapturedStderr();
    constexpr char kLost[] = "rank 0: the plan has ended, because";
    const std::size_t at = said.find(kLost);
    EXPECT_NE(at, said.npos) << said;
    EXPECT_EQ(said.find("WARN", at), said.npos) << said;
    EXPECT_EQ(director_->facts().ended, 1U);
}

// There is no lease then, and the plan goes on.
TEST_F(Leader, WarnedThatTheGuardCannotActAnyMoreIsSaidOnce) {
    if (guard_settings().mode != guard::Mode::Warn) {
        GTEST_SKIP() << "run once more with DEFT_GUARD=warn";
    }
    bring_into_force();
    const std::uint64_t closed_at = ordinal_;
    scene_.leave(1);
    EXPECT_TRUE(eventually([&] { return !scene_[0].open(); }));
    std::string said;
    std::uint64_t first = 0;
    const auto until = agreement::Clock::now() + agreement::test::kPatience;
    for (int more = 20; more > 0 && agreement::Clock::now() < until; more -= first > 0 ? 1 : 0) {
        testing::internal::CaptureStderr();
        iterate_merged(kIdle, kHidden, 1);
        director_->tick(track_);
        said += testing::internal::GetCapturedStderr();
        first = first == 0 && said.find("WARN") != said.npos ? ordinal_ : first;
    }
    constexpr char kBlind[] = "accuracy guard: it cannot act any more";
    const std::size_t at = said.find(kBlind);
    EXPECT_NE(at, said.npos) << said;
    EXPECT_EQ(said.find("WARN", at), said.npos) << said;
    EXPECT_GT(first, closed_at + 100) << "it may be the job's end";
    EXPECT_TRUE(old_plan_in_force());
}

}  // namespace
}  // namespace deft::director::test
