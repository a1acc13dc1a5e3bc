// SPDX-License-Identifier: Apache-2.0
// The leader's states, and the one function that says which follows which.
#pragma once

#include <cstdint>

namespace deft::director {

enum class LeaderState : std::uint8_t {
    Watching,  // until a cycle has been learned that is worth a plan
    Staging,   // every rank makes a plan ready, or lanes to be measured
    Arming,    // every rank is ready: a call is named
    Running,   // a plan is in force
    Fallen,    // the accuracy guard has ended the plan; it may come back
    Resting    // nothing is planned any more
};
// "watching", ...: in the report (docs/observe.md).
const char* to_string(LeaderState state);

// What happens to the leader.
enum class LeaderEvent : std::uint8_t {
    StageProposed,    // a staging is on its way
    AllReady,         // every rank has made the plan ready
    NetworksDone,     // the other networks were measured, or cannot be had
    StageRefused,     // nothing comes of the staging
    RefusedForGood,   // nor will it of another one
    CameIntoForce,    // what was staged
    PlanOver,         // calls are forwarded; there may be another plan
    PlanOverForGood,  // and there will be none
    PlanFell,         // and the guard has asked for it
    GuardResumed,     // the guard lets the plan come back
    Lost              // a step failed, or the council has closed under a staging
};

// `in_force`: a plan is in force now.
LeaderState next_state(LeaderState state, LeaderEvent event, bool in_force);

// Why the leader has proposed that the plan in force ends.
enum class Ending : std::uint8_t {
    None,      // it has not
    Guard,     // the accuracy guard has decided it
    NoGain,    // the plan was slower than none
    Killed,    // the operator's kill switch is there
    Pressed,   // its lanes hold device memory that the job needs
    Outdated,  // it was made for another optimizer, or the job's doubts are new
};

}  // namespace deft::director
