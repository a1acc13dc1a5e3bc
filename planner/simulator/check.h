// SPDX-License-Identifier: Apache-2.0
// Whether a plan may be executed.
#pragma once

#include <string>
#include <vector>

#include "planner/model/plan.h"

namespace deft::planner {

// Everything wrong with the plan, each naming what it is about; empty: it may run. Checks
//  - form: indices, ranges, a launch order that is the same on every rank, whole messages;
//  - every byte of every iteration's gradient is delivered exactly once, by transfers that cover
//    it exactly once (or reduce-scatter then all-gather), after it exists and before it is used;
//  - the caps of `options` on delay, merging and period;
//  - predicted times: no link carries more than it can, nothing starts before its gradient, and
//    execution in the simulator gives the same times.
std::vector<std::string> check_plan(const Plan& plan, const Profile& profile, const Fabric& fabric,
                                    const Options& options);

}  // namespace deft::planner
