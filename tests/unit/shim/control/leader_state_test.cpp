// SPDX-License-Identifier: Apache-2.0
#include "shim/control/leader_state.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "shim/control/backoff.h"

namespace deft::director {
namespace {

constexpr LeaderState kStates[] = {LeaderState::Watching, LeaderState::Staging,
                                   LeaderState::Arming,   LeaderState::Running,
                                   LeaderState::Fallen,   LeaderState::Resting};

TEST(LeaderState, HasANameForEachState) {
    std::set<std::string> names;
    for (const LeaderState state : kStates) {
        names.insert(to_string(state));
    }
    EXPECT_EQ(names, (std::set<std::string>{"watching", "staging", "arming", "running", "fallen",
                                            "resting"}));
}

TEST(LeaderState, TheCourseOfAPlan) {
    LeaderState state = LeaderState::Watching;
    state = next_state(state, LeaderEvent::StageProposed, false);
    EXPECT_EQ(state, LeaderState::Staging);
    state = next_state(state, LeaderEvent::AllReady, false);
    EXPECT_EQ(state, LeaderState::Arming);
    state = next_state(state, LeaderEvent::CameIntoForce, true);
    EXPECT_EQ(state, LeaderState::Running);
    state = next_state(state, LeaderEvent::PlanFell, false);
    EXPECT_EQ(state, LeaderState::Fallen);
    state = next_state(state, LeaderEvent::GuardResumed, false);
    EXPECT_EQ(state, LeaderState::Watching);
}

// What comes of no staging leaves the plan in force as it is.
TEST(LeaderState, GoesOnWithThePlanInForce) {
    for (const LeaderState state : kStates) {
        for (const LeaderEvent event : {LeaderEvent::StageRefused, LeaderEvent::Lost}) {
            EXPECT_EQ(next_state(state, event, true), LeaderState::Running);
        }
        EXPECT_EQ(next_state(state, LeaderEvent::StageRefused, false), LeaderState::Watching);
        EXPECT_EQ(next_state(state, LeaderEvent::Lost, false), LeaderState::Resting);
    }
}

TEST(LeaderState, RestsWhereThereWillBeNoOtherPlan) {
    for (const LeaderState state : kStates) {
        for (const LeaderEvent event :
             {LeaderEvent::RefusedForGood, LeaderEvent::PlanOverForGood}) {
            EXPECT_EQ(next_state(state, event, false), LeaderState::Resting);
        }
        EXPECT_EQ(next_state(state, LeaderEvent::PlanOver, false), LeaderState::Watching);
        EXPECT_EQ(next_state(state, LeaderEvent::NetworksDone, false), LeaderState::Watching);
    }
}

TEST(Backoff, DoublesUpToTheMostAndForgetsWithASuccess) {
    Backoff backoff(3, 10);
    EXPECT_EQ(backoff.failed(), 3U);
    EXPECT_EQ(backoff.failed(), 6U);
    EXPECT_EQ(backoff.failed(), 10U);
    EXPECT_EQ(backoff.failed(), 10U);
    EXPECT_EQ(backoff.failures(), 4U);
    backoff.succeeded();
    EXPECT_EQ(backoff.failures(), 0U);
    EXPECT_EQ(backoff.failed(), 3U);
}

TEST(Backoff, LetsTheFirstOnesPass) {
    Backoff backoff(3, 10, 3);
    EXPECT_EQ(backoff.failed(), 0U);
    EXPECT_EQ(backoff.failed(), 0U);
    EXPECT_EQ(backoff.failed(), 3U);
}

}  // namespace
}  // namespace deft::director
