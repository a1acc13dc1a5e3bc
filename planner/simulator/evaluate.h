// SPDX-License-Identifier: Apache-2.0
// Completes a plan: launch order, predicted times, staleness, bound.
#pragma once

#include "planner/model/plan.h"

namespace deft::planner {

// A policy fills in transfers (in launch order), deliveries, period and barrier; this sets the
// rest. Throws std::invalid_argument if the profile or the fabric has a problem.
void evaluate(Plan& plan, const Profile& profile, const Fabric& fabric);

// The same without the simulation: everything but the predicted times and the bound.
void arrange(Plan& plan, const Profile& profile, const Fabric& fabric);

// What the deliveries alone say: updates, delay, ages, merge and late part; the rest as by default.
// They stand by iteration, bucket, begin, end, as arrange() leaves them.
Prediction counted(const Plan& plan, const Profile& profile);

// How much longer than the bound, as a fraction of it.
double gap_to(double bound, double seconds);

}  // namespace deft::planner
