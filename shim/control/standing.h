// SPDX-License-Identifier: Apache-2.0
// Where a communicator stands, for the report: what the council, the follower and the leader of
// this rank tell together.
#pragma once

#include "shim/agreement/council.h"
#include "shim/control/follower.h"
#include "shim/control/leader.h"
#include "shim/control/plan_report.h"

namespace deft::director {

// `leader`: NULL on other ranks. `forgotten`: the follower's plans are, and its facts() have what
// is to be told of them.
PlanFacts standing(const agreement::Council& council, const Follower& follower,
                   const Leader* leader, bool forgotten) noexcept;

// Of these the plan in force, else the latest, and what the leader has made of it.
void describe_plan(const Follower& follower, const Leader* leader, PlanFacts& facts);

}  // namespace deft::director
