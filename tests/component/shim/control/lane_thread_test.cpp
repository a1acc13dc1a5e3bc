// SPDX-License-Identifier: Apache-2.0
// Lanes of a process that has other communicators are made on a thread of their own.
#include "tests/component/shim/control/follower.h"

namespace deft::director::test {
namespace {

class Others : public Follower {
protected:
    void SetUp() override {
        ASSERT_NO_FATAL_FAILURE(Follower::SetUp());
        director_->has_others();
    }
    // To where NCCL is asked for a lane, and does not give it.
    void hold_the_making() {
        order(Kind::Stage);
        ASSERT_TRUE(answers(Step::Learned)) << answer().reason;
        order(Kind::Open);
        g_lanes.held = true;
        ASSERT_TRUE(eventually([this] {
            director_->tick(track_);
            return g_lanes.making == 1;
        }));
    }
};

TEST_F(Others, LooksGoOnWhileALaneIsMade) {
    ASSERT_NO_FATAL_FAILURE(hold_the_making());
    EXPECT_NE(g_lanes.maker, std::this_thread::get_id());
    EXPECT_FALSE(director_->tick(track_)) << "the other communicators have their turn";
    EXPECT_TRUE(director_->aborting()) << "it must not be freed";
    g_lanes.held = false;
    ASSERT_NO_FATAL_FAILURE(rehearse());
    EXPECT_TRUE(answers(Step::Ready)) << answer().reason;
    EXPECT_TRUE(eventually([this] { return !director_->aborting(); }));
    order(Kind::Arm, ordinal_);
    Job job;
    job.iteration(*director_, ordinal_);
    EXPECT_TRUE(eventually([this] {
        director_->tick(track_);
        return director_->facts().state == "running";
    }));
}

TEST_F(Others, NoCaptureOfTheJobEndsByIt) {
    ASSERT_NO_FATAL_FAILURE(hold_the_making());
    EXPECT_FALSE(g_lanes.disturbs);
    g_lanes.held = false;
    ASSERT_NO_FATAL_FAILURE(rehearse());
    EXPECT_TRUE(answers(Step::Ready)) << answer().reason;
}

TEST_F(Others, AnAbortWaitsForNoLane) {
    ASSERT_NO_FATAL_FAILURE(hold_the_making());
    director_->end(true);
    g_lanes.held = false;
    EXPECT_TRUE(eventually([this] { return !director_->aborting(); }));
}

}  // namespace
}  // namespace deft::director::test
