// SPDX-License-Identifier: Apache-2.0
// What the job's threads wait for while the leader is about to bring a plan into force.
#include "tests/component/shim/control/leader.h"

namespace deft::director::test {
namespace {

// A job may ask in every iteration, whatever the background thread is held up in.
TEST_F(Leader, WhatIsKnownIsToldThoughALookTakesLong) {
    iterate(kHidden, false, 20);
    staged();
    g_lanes.held_ids = true;
    answer(Step::Learned);
    std::atomic<bool> over{false};
    std::thread background([&] {
        while (!over) {
            director_->tick(track_);
        }
    });
    EXPECT_TRUE(eventually([] { return g_lanes.asking == 1; }));
    const auto until = agreement::Clock::now() + agreement::test::kPatience;
    int told = 0;
    while (told < 300 && agreement::Clock::now() < until) {
        EXPECT_EQ(director_->facts().state, "staging");
        ++told;
    }
    EXPECT_EQ(told, 300);
    over = true;
    g_lanes.held_ids = false;
    background.join();
}

// ncclCommRevoke from another thread.
TEST_F(Leader, ACutReleasesACallThatWaitsForADecision) {
    using agreement::Answer;
    // Stage, Open, Rehearse, Arm
    scene_.member(1).answer_with({Answer::Yes, Answer::Yes, Answer::Yes, Answer::Later});
    iterate(kHidden, false, 20);
    staged();
    answer(Step::Learned);
    opened();
    answer_from(0, Step::Ready);
    ASSERT_TRUE(ticks_until([&] { return asked() == 3; }));
    reach(scene_.member(1).asked().back().switch_call, false);
    int result = DEFT_NCCL_SUCCESS;
    std::thread job([&] {
        Call call;
        call.count = kGradients[0];
        call.type = DEFT_NCCL_FLOAT32;
        call.op = DEFT_NCCL_SUM;
        EXPECT_TRUE(director_->all_reduce(call, ordinal_, false, nullptr, result));
    });
    director_->cut();
    job.join();
    EXPECT_EQ(result, DEFT_NCCL_SYSTEM_ERROR) << "it has waited for the decision";
    EXPECT_TRUE(scene_[0].open());
    EXPECT_EQ(director_->merge_async_error(DEFT_NCCL_SUCCESS), DEFT_NCCL_SUCCESS)
        << "a communicator that is revoked has not failed";
    scene_[1].answer(scene_.member(1).asked().back().serial, true);
    EXPECT_TRUE(eventually([&] { return scene_.member(1).decisions().size() == 4; }));
}

}  // namespace
}  // namespace deft::director::test
