// SPDX-License-Identifier: Apache-2.0
// What a rank does when the council has closed and the job goes on.
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
    EXPECT_EQ(g_lanes.aborted, 0);
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
    scene_.member(1).answer_with({Answer::Yes, Answer::Yes, Answer::Later});  // Stage, Open, Arm
    iterate(kHidden, false, 20);
    staged();
    answer(Step::Learned);
    heard(Kind::Open);
    answer_from(0, Step::Ready);
    ASSERT_TRUE(ticks_until([&] { return asked() == 3; }));
    EXPECT_TRUE(director_->tick(track_));
    scene_.leave(1);
    EXPECT_TRUE(eventually([&] { return !director_->tick(track_); }));
    EXPECT_EQ(director_->facts().state, "resting");
}

// Only where the job goes on: its end is no reason to warn.
TEST_F(Leader, ThatTheGuardCannotActAnyMoreIsSaidOnce) {
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
