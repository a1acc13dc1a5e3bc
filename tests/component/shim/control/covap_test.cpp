// SPDX-License-Identifier: Apache-2.0
// Mode covap under a leader that the test plays.
#include <bit>

#include "planner/convergence.h"
#include "tests/component/shim/control/follower.h"

namespace deft::director::test {
namespace {

// A job that has run plans before, this one or another: it was interrupted by an evaluation.
TEST_F(Follower, TheCoefficientGoesOnWhereTheLastPlanEnded) {
    constexpr std::uint32_t kInterval = 3;
    constexpr unsigned char kByte = 0x3f;
    constexpr auto kGradient = std::bit_cast<float>(0x3f3f3f3fU);
    delay_ = 0;
    merge_ = kInterval;
    for (const std::uint64_t run : {0U, 120U}) {
        iterations_run_ = run;
        stage();
        order(Kind::Arm, ordinal_);
        g_lanes.noting = true;
        g_lanes.sent.clear();
        Job job;
        for (std::uint32_t i = 0; i < kInterval; ++i) {
            for (const std::uint64_t count : kCounts) {
                job.fill(kByte);
                job.call(*director_, ordinal_++, count);
            }
        }
        EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
        g_lanes.noting = false;
        const auto kept = static_cast<float>(planner::covap_coefficient(kInterval, run + 1));
        ASSERT_EQ(g_lanes.sent.size(), 2U);
        EXPECT_FLOAT_EQ(g_lanes.sent[0] / kGradient, kept + 2) << run;
        director_->tick(track_);
        EXPECT_GE(director_->flush(), 0);
        director_->tick(track_);
        job.forwarded(*director_, ordinal_);
    }
}

}  // namespace
}  // namespace deft::director::test
