// SPDX-License-Identifier: Apache-2.0
// What DEFT_MAX_SHADOW_BYTES bounds. Run with room for one plan and not for two.
#include "tests/component/shim/control/follower.h"

namespace deft::director::test {
namespace {

TEST_F(Follower, APlanInForceAndTheOneThatIsToReplaceItShareTheMemory) {
    stage();
    order(Kind::Arm, ordinal_);
    Job job;
    job.iteration(*director_, ordinal_);
    director_->tick(track_);
    const std::uint64_t held = free_memory();

    order(Kind::Stage);
    ASSERT_TRUE(answers(Step::Learned)) << answer().reason;
    order(Kind::Open);
    ASSERT_TRUE(answers(Step::Unfit)) << "twice the memory is taken";
    EXPECT_NE(answer().reason.find("DEFT_MAX_SHADOW_BYTES"), std::string::npos) << answer().reason;
    EXPECT_GE(free_memory(), held);
    job.iteration(*director_, ordinal_);
    EXPECT_EQ(director_->facts().state, "running") << "the old plan goes on";

    // Its memory is there for another one when it has ended.
    EXPECT_GE(director_->flush(), 0);
    director_->tick(track_);
    stage();
}

}  // namespace
}  // namespace deft::director::test
