// SPDX-License-Identifier: Apache-2.0
// New lanes are tried at a call of the job's that all ranks have agreed on, by the thread that
// makes it. A thread of its own could launch on one rank before, and on another behind, a call that
// waits for the whole device: the two would wait for each other.
#include "tests/component/shim/control/follower.h"

namespace deft::director::test {
namespace {

class Untried : public Follower {
protected:
    void SetUp() override {
        ASSERT_NO_FATAL_FAILURE(Follower::SetUp());
        ASSERT_NO_FATAL_FAILURE(open_untried());
    }
    // The background thread looks often enough that what must not happen would be seen.
    void linger() {
        for (int i = 0; i < 50; ++i) {
            director_->tick(track_);
        }
    }
    static int called() { return g_lanes.called; }
};

TEST_F(Untried, LanesAreConnectedBeforeTheyAreTriedWhereNothingIsLaunched) {
    const int simulated = g_lanes.simulated;
    EXPECT_GT(simulated, 3);
    EXPECT_EQ(called(), 0);
    order(Kind::Rehearse, ordinal_);
    Job job;
    job.forwarded(*director_, ordinal_);
    EXPECT_EQ(called(), simulated - 1) << "but for what ranks ask each other: the same calls";
    EXPECT_TRUE(answers(Step::Ready)) << answer().reason;
}

TEST_F(Untried, LanesSendNothingBeforeTheCallThatIsAgreedOn) {
    linger();
    EXPECT_EQ(called(), 0) << "no rank has agreed to anything";
    order(Kind::Rehearse, ordinal_ + 1);
    linger();
    EXPECT_EQ(called(), 0) << "the job has not come to the call";
    Job job;
    EXPECT_FALSE(job.make(*director_, ordinal_++, kCounts[0]));
    linger();
    EXPECT_EQ(called(), 0) << "this is the call before it";
    g_lanes.caller = {};
    EXPECT_FALSE(job.make(*director_, ordinal_++, kCounts[1]));
    EXPECT_GT(called(), 3) << "before the hook returns";
    EXPECT_EQ(g_lanes.caller, std::this_thread::get_id());
    EXPECT_TRUE(answers(Step::Ready)) << answer().reason;
}

TEST_F(Untried, LanesAreTriedOnce) {
    order(Kind::Rehearse, ordinal_);
    Job job;
    job.forwarded(*director_, ordinal_);
    const int tried = called();
    job.forwarded(*director_, ordinal_);
    EXPECT_EQ(called(), tried);
    EXPECT_TRUE(answers(Step::Ready)) << answer().reason;
}

TEST_F(Untried, ACallInAGroupIsPassedOver) {
    order(Kind::Rehearse, ordinal_);
    Call call;
    call.count = kCounts[0];
    int result = DEFT_NCCL_SUCCESS;
    EXPECT_FALSE(director_->all_reduce(call, ordinal_++, true, nullptr, result));
    EXPECT_EQ(called(), 0) << "NCCL would take it into the job's group";
    Job job;
    EXPECT_FALSE(job.make(*director_, ordinal_++, kCounts[1]));
    EXPECT_GT(called(), 0);
    EXPECT_TRUE(answers(Step::Ready)) << answer().reason;
}

TEST_F(Untried, ACallThatIsPastIsRefused) {
    Job job;
    job.forwarded(*director_, ordinal_);
    order(Kind::Rehearse, ordinal_ - 1, agreement::Decision::Cancel);
    job.forwarded(*director_, ordinal_);
    EXPECT_EQ(called(), 0);
    order(Kind::Rehearse, ordinal_);
    job.forwarded(*director_, ordinal_);
    EXPECT_TRUE(answers(Step::Ready)) << answer().reason;
}

// A rank that has refused takes no part.
TEST_F(Untried, WhatIsGivenUpIsNotTried) {
    order(Kind::Rehearse, ordinal_);
    order(Kind::Drop);
    Job job;
    job.forwarded(*director_, ordinal_);
    EXPECT_EQ(called(), 0);
    director_->tick(track_);
    EXPECT_TRUE(lanes_aborted(1));
}

// The other rank never comes. No call of the job's waits for it.
TEST_F(Follower, ALaneThatDoesNotConnectIsGivenUpInTheBackground) {
    order(Kind::Stage);
    ASSERT_TRUE(answers(Step::Learned)) << answer().reason;
    g_lanes.connecting_apart = true;
    order(Kind::Open);
    std::thread background([this] { director_->tick(track_); });
    EXPECT_TRUE(eventually([] { return g_lanes.simulated > 0; }));
    Job job;
    job.forwarded(*director_, ordinal_);
    order(Kind::Drop);
    background.join();
    EXPECT_TRUE(answers(Step::Refused)) << answer().reason;
    EXPECT_TRUE(lanes_aborted(1));
    EXPECT_FALSE(g_lanes.waited_in_vain);
    EXPECT_EQ(g_lanes.called, 0);
}

// A rank never comes, though it has agreed.
TEST_F(Untried, TheJobIsNotHeldUpForLongerThanTheLeaderSays) {
    patience_ms_ = 10;
    order(Kind::Rehearse, ordinal_);
    g_lanes.connecting = true;
    std::thread application([this] {
        CUcontext context = nullptr;
        EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
        EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
        Job job;
        job.forwarded(*director_, ordinal_);
    });
    EXPECT_TRUE(answers(Step::Refused)) << answer().reason;
    application.join();
    EXPECT_FALSE(g_lanes.waited_in_vain) << "nothing has released the call";
    EXPECT_TRUE(answer().timed_out);
    EXPECT_TRUE(answer().may_pass);
    EXPECT_TRUE(lanes_aborted(1));
    Job job;
    job.forwarded(*director_, ordinal_);
}

// The job ends its communicator before it comes to the call.
TEST_F(Untried, ADestroyWaitsForNoCall) {
    order(Kind::Rehearse, ordinal_);
    director_->end(false);
    EXPECT_EQ(called(), 0);
    EXPECT_EQ(g_lanes.destroyed, 1);
    EXPECT_EQ(g_lanes.aborted, 0);
}

// Their network stands still.
TEST_F(Untried, ADestroyGivesUpTrialsThatDoNotEnd) {
    order(Kind::Rehearse, ordinal_);
    g_lanes.held_transfers = true;
    make_next_calls();
    director_->end(false);
    EXPECT_EQ(g_lanes.aborted, 1);
}

// The others may never launch theirs.
TEST_F(Untried, AnAbortReleasesWhatWasLaunched) {
    order(Kind::Rehearse, ordinal_);
    g_lanes.held_transfers = true;
    make_next_calls();
    EXPECT_GT(called(), 0);
    director_->end(true);
    EXPECT_TRUE(lanes_aborted(1));
}

}  // namespace
}  // namespace deft::director::test
