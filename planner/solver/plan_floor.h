// SPDX-License-Identifier: Apache-2.0
// What a given plan takes at least, without simulating it: a search drops plans that cannot win.
#pragma once

#include "planner/model/plan.h"

namespace deft::planner {

// Seconds per iteration, in the long run, by the busiest resource, shared pipe or disturbing link.
double held_at_least(const Plan& plan, const Profile& profile, const Fabric& fabric);

// No simulation of this plan gives fewer seconds per iteration. Exact where links share nothing and
// compute and transfers do not disturb each other, if nothing is late and no latencies overlap.
// The plan's transfers stand in launch order, as evaluate() and arrange() leave them.
double plan_floor(const Plan& plan, const Profile& profile, const Fabric& fabric);

}  // namespace deft::planner
