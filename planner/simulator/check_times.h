// SPDX-License-Identifier: Apache-2.0
// Whether the times that a plan predicts are those of its execution.
#pragma once

#include <string>
#include <vector>

#include "planner/model/plan.h"

namespace deft::planner {

// Everything wrong with the times of a plan whose form is sound: a part of check_plan().
std::vector<std::string> check_times(const Plan& plan, const Profile& profile,
                                     const Fabric& fabric);

}  // namespace deft::planner
