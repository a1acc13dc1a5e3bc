// SPDX-License-Identifier: Apache-2.0
// Plans as text.
#pragma once

#include <string>
#include <string_view>

#include "planner/model/plan.h"

namespace deft::planner {

// One line of JSON; times in seconds, exact: plan_from_json(plan_to_json(p)) == p.
std::string plan_to_json(const Plan& plan);

// Throws JsonError naming the field. Checks form only (kinds, ranges, indices); check_plan() says
// whether the plan makes sense.
Plan plan_from_json(std::string_view text);

}  // namespace deft::planner
