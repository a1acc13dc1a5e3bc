// SPDX-License-Identifier: Apache-2.0
// What lanes took under a plan, against what the plan was made with. Networks are measured beside
// the job's other traffic, of which another part travels elsewhere under a plan, and in calls with
// rests between them, which a plan fills. Pure.
#pragma once

#include <string>
#include <vector>

#include "planner/model/fabric.h"
#include "planner/model/plan.h"
#include "planner/model/profile.h"
#include "shim/executor/lane_times.h"

namespace deft::director {

// By lane: how many times as long as `fabric` says it took for what it was given. 1: of that lane
// too little was measured. Empty: of all lanes. A rank that comes late to calls enlarges all
// factors.
std::vector<double> lane_factors(const std::vector<executor::LaneUse>& uses,
                                 const planner::Fabric& fabric);

// The same for cutting calls anew, so that their parts end together: by the difference between the
// parts of calls that were cut, since a rank that comes late is waited for by all lanes alike. The
// lane that did best is taken to be as thought (its factor is 1), and half of the difference is
// believed, so the new cut seldom goes beyond the right one. Of each action only the half of the
// calls that took least counts: other traffic and busy cores lengthen the others, and one lane's
// part more than another's.
std::vector<double> cut_factors(const std::vector<executor::LaneUse>& uses,
                                const planner::Fabric& fabric);

// Makes the job's transfers take so many times as long, and the other networks. `networks` as for
// choose_plan(): empty, or the job's own first.
void apply(const std::vector<double>& factors, planner::Profile& profile,
           std::vector<planner::Link>& networks);
void scale_transfers(planner::Profile& profile, double factor);

// Seconds of all of a plan's calls over these links, where the parts of each are sent at once.
double seconds_of_calls(const planner::Plan& plan, const planner::Fabric& fabric);

// For people.
std::string in_words(const std::vector<double>& factors, const planner::Plan& plan);

}  // namespace deft::director
