// SPDX-License-Identifier: Apache-2.0
// Modes deft and covap without DEFT_GRADIENTS=trust: what mode exact does, whatever plan is named.
#include "shim/settings/settings.h"
#include "tests/component/shim/control/leader.h"

namespace deft::director::test {
namespace {

// With trust this job gets a plan that merges: Leader::bring_into_force().
TEST_F(Leader, NothingIsPlannedForSumsThatNobodyVouchesFor) {
    iterate(kHidden, false, 40);
    ::testing::internal::CaptureStderr();
    linger();
    iterate(kHidden, false, 40);
    linger();
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(asked(), 0U) << "a plan";
    EXPECT_EQ(director_->facts().switched, 0U);
    EXPECT_NE(director_->facts().reason.find("gradients"), std::string::npos)
        << director_->facts().reason;
    EXPECT_NE(said.find("DEFT_GRADIENTS=trust"), std::string::npos) << said;
    EXPECT_NE(said.find("docs/accuracy.md"), std::string::npos) << said;
    EXPECT_EQ(said.find("WARN"), said.rfind("WARN")) << "more than once: " << said;
    EXPECT_EQ(planning_mode(), ShimMode::Exact);
    EXPECT_EQ(Settings::process().forced_merge, 0U) << "DEFT_PLAN";
    EXPECT_EQ(Settings::process().max_delay, 0U);
    EXPECT_EQ(Settings::process().max_merge, 1U);
}

}  // namespace
}  // namespace deft::director::test
