// SPDX-License-Identifier: Apache-2.0
// What the report says of plans.
#pragma once

#include "planner/model/plan.h"
#include "shim/control/plan_report.h"
#include "shim/executor/executor.h"

namespace deft::director {

// Adds what the executor has counted.
void add_counters(const executor::Executor& executor, PlanFacts& facts);

// The plan itself, and what it predicts.
void describe(const planner::Plan& plan, PlanFacts& facts);

}  // namespace deft::director
