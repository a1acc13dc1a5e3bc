// SPDX-License-Identifier: Apache-2.0
#include "shim/control/leader_state.h"

namespace deft::director {

const char* to_string(LeaderState state) {
    switch (state) {
        case LeaderState::Watching:
            return "watching";
        case LeaderState::Staging:
            return "staging";
        case LeaderState::Arming:
            return "arming";
        case LeaderState::Running:
            return "running";
        case LeaderState::Fallen:
            return "fallen";
        case LeaderState::Resting:
            return "resting";
    }
    return "";
}

LeaderState next_state(LeaderState state, LeaderEvent event, bool in_force) {
    switch (event) {
        case LeaderEvent::StageProposed:
            return LeaderState::Staging;
        case LeaderEvent::AllReady:
            return LeaderState::Arming;
        case LeaderEvent::CameIntoForce:
            return LeaderState::Running;
        case LeaderEvent::NetworksDone:
        case LeaderEvent::PlanOver:
        case LeaderEvent::GuardResumed:
            return LeaderState::Watching;
        case LeaderEvent::StageRefused:  // it was to replace a plan, which goes on
            return in_force ? LeaderState::Running : LeaderState::Watching;
        case LeaderEvent::RefusedForGood:
        case LeaderEvent::PlanOverForGood:
            return LeaderState::Resting;
        case LeaderEvent::PlanFell:
            return LeaderState::Fallen;
        case LeaderEvent::Lost:  // what is in force is watched on
            return in_force ? LeaderState::Running : LeaderState::Resting;
    }
    return state;
}

}  // namespace deft::director
