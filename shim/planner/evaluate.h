// SPDX-License-Identifier: Apache-2.0
// Completes a plan: launch order, predicted times, staleness, bound.
#pragma once

#include "shim/planner/plan.h"

namespace deft::planner {

// A policy fills in transfers (in launch order), deliveries, period and barrier; this sets the
// rest. Throws std::invalid_argument if the profile or the fabric has a problem.
void evaluate(Plan& plan, const Profile& profile, const Fabric& fabric);

}  // namespace deft::planner
