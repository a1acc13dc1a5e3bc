// SPDX-License-Identifier: Apache-2.0
// Whether a plan that was made from guesses is the right one, once it is in force.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/model/plan.h"
#include "shim/settings/settings.h"

namespace deft::director {

struct Reestimate {
    double thought = 0;     // seconds per iteration of the plan in force, by the profile it is from
    double as_started = 0;  // and by the profile that the starts of the calls tell
    bool believed = false;  // the latter explains better how long an iteration takes
    // Than the plan in force, by the profile believed: sooner at the same loss, or as fast with
    // less that is late or more updates.
    std::optional<planner::Plan> better;
    std::string note;  // what is said of it
};

// `took`: seconds per iteration under `plan`, which was made for `profile`; `started`: that profile
// with the times at which calls started under it; `lanes` as for choose_plan(). Throws as that
// does.
Reestimate reestimate(const planner::Plan& plan, double took, const planner::Profile& profile,
                      const planner::Profile& started, const std::vector<planner::Link>& lanes,
                      const Settings& settings);

}  // namespace deft::director
