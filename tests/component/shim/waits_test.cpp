// SPDX-License-Identifier: Apache-2.0
// What the job's threads wait for while the leader is about to bring a plan into force.
#include "tests/component/shim/leader.h"

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

}  // namespace
}  // namespace deft::director::test
