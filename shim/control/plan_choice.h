// SPDX-License-Identifier: Apache-2.0
// Which plan a measured job gets.
#pragma once

#include <string>
#include <vector>

#include "planner/model/fabric.h"
#include "planner/model/plan.h"
#include "planner/model/profile.h"
#include "planner/modes.h"
#include "shim/settings/settings.h"

namespace deft::director {

// The plan for this job, its prediction and verdict. `lanes`: what all-reduces
// take on each network, as measured, the job's own first; empty: there is no other. `note` says in
// one line what was decided and why. Throws std::invalid_argument where nothing can be planned.
planner::Plan choose_plan(const planner::Profile& profile, const std::vector<planner::Link>& lanes,
                          const Settings& settings, std::string& note);

// What plans are compared by under these settings: the objective, and what lateness and merging
// cost.
planner::Options prices_of(const Settings& settings);

// The networks: what the job's transfers took on its own, and what lanes take on the others.
// `lanes` as above. Throws as choose_plan() does.
planner::Fabric fabric_of(const planner::Profile& profile, const std::vector<planner::Link>& lanes);
// The same for plans under which layers wait for their own, where a lane was measured.
planner::Fabric fabric_of(const planner::Profile& profile, const std::vector<planner::Link>& lanes,
                          const Settings& settings);

using planner::kLeastPart;

// Lanes that this plan uses, the job's own network first.
std::size_t lanes_of(const planner::Plan& plan);

// Seconds an iteration of this job takes under a plan that was made for the same buckets. Throws as
// choose_plan() does.
double predict(planner::Plan plan, const planner::Profile& profile,
               const std::vector<planner::Link>& lanes);
double predict_over(const planner::Fabric& fabric, planner::Plan plan,
                    const planner::Profile& profile);

}  // namespace deft::director
