// SPDX-License-Identifier: Apache-2.0
// One rank's director where a lane, its communicator or the process ends.
#include <malloc.h>
#include <deque>

#include "shim/control/directors.h"
#include "tests/component/shim/control/follower.h"

namespace deft::director::test {
namespace {

// Torn down in the middle, a lane would look to the other ranks like a link that died.
TEST_F(Follower, ALaneInTheMakingIsFinishedBeforeTheCommunicatorIsDestroyed) {
    std::thread background = held_in_the_making();
    std::thread job([&] { director_->end(false); });
    EXPECT_TRUE(eventually([&] { return director_->ended(); }));
    g_lanes.held = false;
    job.join();
    background.join();
    EXPECT_EQ(g_lanes.aborted, 0);
    EXPECT_EQ(g_lanes.destroyed, 1);
}

TEST_F(Follower, AnAbortEndsALaneInTheMaking) {
    std::thread background = held_in_the_making();
    director_->end(true);
    background.join();  // open() has given up though NCCL is still at it
    EXPECT_EQ(g_lanes.destroyed, 0);
    g_lanes.held = false;
    EXPECT_TRUE(eventually([] { return g_lanes.aborted == 1; })) << "whoever comes last ends it";
}

// NCCL's initialisation and the lanes' transfers may wait for ever, and exit() does not.
TEST_F(Follower, ALaneInTheMakingIsLeftWhenTheProcessEnds) {
    std::thread background = held_in_the_making();
    director_->leave_off();
    background.join();  // NCCL is still at it
    ASSERT_TRUE(answers(Step::Refused)) << answer().reason;
    order(Kind::Stage);
    ASSERT_TRUE(answers(Step::Learned)) << answer().reason;
    order(Kind::Open);
    ASSERT_TRUE(answers(Step::Refused)) << answer().reason;
    EXPECT_EQ(g_lanes.making, 1) << "another one was begun";
    g_lanes.held = false;
    EXPECT_TRUE(eventually([] { return g_lanes.aborted == 1; })) << "whoever comes last ends it";
}

// So it is told to all directors of the process.
TEST_F(Follower, AWarmUpIsLeftWhenTheProcessEnds) {
    static auto& made = *new Communicator;  // the list of directors knows it to the end
    made.table = &fake_table();
    made.serial = 1;
    made.rank = 1;
    made.nranks = kRanks;
    made.device = 0;
    introduce(made, &scene_[1]);
    director_ = made.director.load();
    order(Kind::Stage);
    ASSERT_TRUE(answers(Step::Learned)) << answer().reason;
    order(Kind::Open);
    g_lanes.held_transfers = true;
    ASSERT_NO_FATAL_FAILURE(rehearse());
    EXPECT_GT(g_lanes.called, 0);
    leave_off();
    director_->tick(track_);
    EXPECT_EQ(g_lanes.aborted, 0) << "in exit() nothing of NCCL is called any more";
}

TEST_F(StuckTransfer, AnAbortReleasesADestroyThatWaits) {
    std::atomic<bool> over{false};
    std::thread job([&] {
        director_->end(false);
        over = true;
    });
    EXPECT_TRUE(eventually([&] { return director_->ended(); }));
    EXPECT_EQ(director_->facts().switched, 1U);
    EXPECT_FALSE(over) << "facts() has waited for the transfer";
    director_->end(true);
    job.join();
    EXPECT_TRUE(lanes_aborted(1));
    EXPECT_EQ(g_lanes.destroyed, 0);
}

// A nonblocking communicator is finalised and aborted by the same thread.
TEST_F(StuckTransfer, FinalizeLeavesItToDestroyOrAbort) {
    director_->finalize();
    EXPECT_TRUE(g_lanes.held_transfers);
    EXPECT_FALSE(job_->make(*director_, ordinal_, kCounts[0]));
    EXPECT_EQ(g_lanes.destroyed, 0);
    director_->end(true);
    EXPECT_TRUE(lanes_aborted(1));
}

TEST_F(StuckTransfer, DestroyClosesLanesAfterFinalize) {
    director_->finalize();
    g_lanes.held_transfers = false;
    director_->end(false);
    EXPECT_EQ(g_lanes.destroyed, 1);
    EXPECT_EQ(g_lanes.aborted, 0);
}

// ncclCommShrink with NCCL_SHRINK_ABORT: the ranks that are left find each other through the
// council.
TEST_F(StuckTransfer, ACutAbortsLanesAndStaysInTheCouncil) {
    director_->cut();
    EXPECT_TRUE(lanes_aborted(1));
    EXPECT_TRUE(scene_[1].open());
    EXPECT_FALSE(job_->make(*director_, ordinal_, kCounts[0]));
    director_->tick(track_);
    EXPECT_TRUE(director_->over());
    director_->end(false);
    EXPECT_FALSE(scene_[1].open());
    EXPECT_EQ(g_lanes.destroyed, 0);
}

// NCCL leaves a transfer that cannot go on where it is until its communicator is aborted.
TEST_F(StuckTransfer, DestroyAbortsALaneThatHasFailed) {
    g_lanes.error = DEFT_NCCL_REMOTE_ERROR;
    director_->end(false);
    EXPECT_EQ(g_lanes.aborted, 1);
    EXPECT_EQ(g_lanes.destroyed, 0);
}

// A hook is inside NCCL with a lane.
class HookInside : public Follower {
protected:
    void SetUp() override {
        ASSERT_NO_FATAL_FAILURE(Follower::SetUp());
        job_ = std::make_unique<Job>();
        before_ = free_memory();
        stage();
        order(Kind::Arm, ordinal_);
        g_lanes.held_calls = true;
        hook_ = std::thread([this] {
            CUcontext context = nullptr;
            cuDevicePrimaryCtxRetain(&context, 0);
            cuCtxSetCurrent(context);
            job_->call(*director_, ordinal_, kCounts[0]);
        });
        ASSERT_TRUE(eventually([] { return g_lanes.calling == 1; }));
    }
    void TearDown() override {
        g_lanes.held_calls = false;
        if (hook_.joinable()) {
            hook_.join();
        }
        Follower::TearDown();
        job_.reset();
    }
    void leave() {
        g_lanes.held_calls = false;
        hook_.join();
    }

    std::unique_ptr<Job> job_;
    std::thread hook_;
    std::uint64_t before_ = 0;
};

TEST_F(HookInside, LeavesBeforeAnAbortEndsTheLane) {
    std::thread watchdog([&] { director_->end(true); });
    EXPECT_TRUE(eventually([&] { return director_->ended(); }));
    leave();
    watchdog.join();
    EXPECT_TRUE(lanes_aborted(1));
    EXPECT_FALSE(g_lanes.torn);
}

// It waits for a peer that is gone, so the abort comes all the same. Its stream, its buffers stay.
TEST_F(HookInside, KeepsWhatItUsesUntilItHasLeft) {
    director_->end(true);
    EXPECT_TRUE(lanes_aborted(1));
    director_->tick(track_);
    EXPECT_FALSE(director_->over());
    leave();
    director_->tick(track_);
    EXPECT_TRUE(director_->over());
    EXPECT_EQ(free_memory(), before_);
}

// It writes what is counted.
TEST_F(Follower, WhatAPlanDropsIsCountedWhenNoHookIsInside) {
    stage();
    order(Kind::Arm, ordinal_);
    Job job;
    job.call(*director_, ordinal_++, kCounts[0]);
    g_lanes.held_calls = true;
    std::thread hook([&] {
        CUcontext context = nullptr;
        cuDevicePrimaryCtxRetain(&context, 0);
        cuCtxSetCurrent(context);
        job.call(*director_, ordinal_, kCounts[1]);
    });
    EXPECT_TRUE(eventually([] { return g_lanes.calling == 1; }));
    EXPECT_GE(director_->flush(), 0);  // stands for the end that another thread brings
    director_->tick(track_);
    EXPECT_NE(director_->facts().state, "running");
    EXPECT_EQ(director_->facts().dropped, 0U);
    g_lanes.held_calls = false;
    hook.join();
    director_->tick(track_);
    EXPECT_EQ(director_->facts().dropped, 2U);
}

// Of a job that makes communicators without end the oldest are told of no more, and are freed.
TEST_F(Follower, AThousandCommunicatorsAreSmallAndItsCountersOutliveThem) {
    deft_stats_t before{};
    add_up(before);
    static auto& self = *new Communicator;
    self.table = &fake_table();
    self.serial = 1;
    self.rank = 1;
    self.nranks = kRanks;
    self.device = 0;
    self.pins = 1;  // until the test's end
    introduce(self, &scene_[1]);
    director_ = self.director;
    ASSERT_NE(director_, nullptr);
    stage();
    order(Kind::Arm, ordinal_);
    Job job;
    job.iteration(*director_, ordinal_);
    job.iteration(*director_, ordinal_);
    director_->tick(track_);
    director_->end(false);
    ASSERT_TRUE(director_->over());
    constexpr std::uint32_t kMade = 1000;
    static auto& made = *new std::deque<Communicator>(kMade);
    const std::size_t held = ::mallinfo2().uordblks;
    for (std::uint32_t i = 0; i < kMade; ++i) {
        Communicator& next = made[i];
        next.table = &fake_table();
        next.serial = i + 2;
        next.nranks = kRanks;
        next.pins = i == 0 ? 1 : 0;  // a hook is still at work with the first
        introduce(next, &scene_[1]);
        ASSERT_NE(next.director.load(), nullptr);
        next.director.load()->end(false);
    }
    clean_up();
    EXPECT_LT(::mallinfo2().uordblks, held + 200 * sizeof(Director))
        << "those that have ended are freed";
    EXPECT_TRUE(made[0].director.load()->over()) << "but for one that a hook may know";
    made[0].pins = 0;
    deft_stats_t stats{};
    add_up(stats);
    EXPECT_EQ(stats.switched, before.switched + 1);
    EXPECT_EQ(stats.executed_calls, before.executed_calls + 4);
}

// It may know the director for as long as the process lives.
TEST_F(Follower, ACallAfterTheEndIsForwarded) {
    stage();
    order(Kind::Arm, ordinal_);
    Job job;
    job.iteration(*director_, ordinal_);
    director_->end(false);
    job.forwarded(*director_, ordinal_);
    director_->end(false);
    job.forwarded(*director_, ordinal_);
    EXPECT_EQ(director_->facts().executed, 2U);
}

}  // namespace
}  // namespace deft::director::test
