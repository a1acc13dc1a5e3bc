// SPDX-License-Identifier: Apache-2.0
// Plans for layers that wait for their own gradients, in mode exact: none without the companion's
// word, and none for longer than that holds.
#include "shim/executor/layer_sums.h"
#include "shim/settings/companion.h"
#include "tests/component/shim/control/follower.h"

namespace deft::director::test {
namespace {

class WaitingLayers : public Follower {
protected:
    void SetUp() override {
        static std::uint32_t modules = 0;  // what is said of one stays said
        module_ = ++modules;
        ASSERT_EQ(companion_begin(DEFT_COMPANION_INTERFACE, "a test's"), DEFT_COMPANION_LAYERS);
        ASSERT_NO_FATAL_FAILURE(Follower::SetUp());
        barrier_ = planner::Barrier::Layer;
        delay_ = 0;
    }
    // The module is proven, and no more.
    void prove_it() const {
        while (!prove_iteration(module_)) {
        }
    }
    // Under the plan, or no more. Whoever has a sum left waits for it.
    bool iterate(Job& job) {
        bool taken = true;
        for (const std::uint64_t count : kCounts) {
            taken = job.make(*director_, ordinal_++, count) && taken;
            const executor::LeftSum left = executor::take_left_sum();
            EXPECT_EQ(left.sums != nullptr, taken);
            if (left.sums != nullptr) {
                EXPECT_EQ(left.sums->wait_here(left.bucket, left.iteration),
                          executor::LayerSums::Wait::Waits);
                left.sums->release();
            }
        }
        return taken;
    }
    void in_force(Job& job) {
        job.mark(module_);
        layers_wait(module_);
        ASSERT_NO_FATAL_FAILURE(stage());
        order(Kind::Arm, ordinal_);
        ASSERT_TRUE(iterate(job));
        director_->tick(track_);
        ASSERT_EQ(director_->facts().state, "running");
    }
};

TEST_F(WaitingLayers, ARankWhoseLayersDoNotWaitRefusesThePlan) {
    prove_it();
    order(Kind::Stage);
    EXPECT_TRUE(answers(Step::Refused));
    EXPECT_NE(answer().reason.find("layers do not wait"), std::string::npos) << answer().reason;
    EXPECT_TRUE(answer().may_pass);
}

TEST_F(WaitingLayers, ThePlanGoesOnForAsLongAsTheyDo) {
    Job job;
    ASSERT_NO_FATAL_FAILURE(in_force(job));
    for (int i = 0; i < 40; ++i) {
        EXPECT_TRUE(iterate(job)) << i;
        director_->tick(track_);
    }
    EXPECT_EQ(director_->facts().ended, 0U);
}

// The lease ends it, on all ranks at one call: no rank's caller is left with a sum it does not
// take.
TEST_F(WaitingLayers, ThePlanEndsSoonAfterTheirModuleIsRefused) {
    Job job;
    ASSERT_NO_FATAL_FAILURE(in_force(job));
    refuse_proof(module_, "a parameter is read (a test)");
    int more = 0;
    for (; more < 20; ++more) {
        director_->tick(track_);
        if (!iterate(job)) {
            break;
        }
    }
    EXPECT_LE(more, 12 + 1);
    director_->tick(track_);
    EXPECT_EQ(director_->facts().ended, 1U);
}

}  // namespace
}  // namespace deft::director::test
