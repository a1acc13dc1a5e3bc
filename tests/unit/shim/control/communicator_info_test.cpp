// SPDX-License-Identifier: Apache-2.0
// How long a lane may take.
#include "shim/control/communicator_info.h"

#include <gtest/gtest.h>

#include <chrono>
#include <utility>

namespace deft::director {
namespace {

TEST(CommunicatorInfo, GivesALaneTwiceTheTimeThatTheCommunicatorTook) {
    using namespace std::chrono_literals;
    constexpr std::int64_t kSecond = 1'000'000'000;
    CommunicatorInfo info;
    EXPECT_EQ(info.lane_deadline(), 1min) << "it was not seen";
    const std::pair<std::int64_t, std::chrono::seconds> cases[] = {
        {5, 1min}, {100, 200s}, {3'600, 10min}};
    for (const auto& [took, deadline] : cases) {
        info.made_in_ns = took * kSecond;
        EXPECT_EQ(info.lane_deadline(), deadline) << took;
        EXPECT_EQ(info.stage_deadline(), 3 * deadline) << took;
    }
}

}  // namespace
}  // namespace deft::director
