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

// A job as it is taken to be. `lanes` as for choose_plan().
struct KnownJob {
    const planner::Profile& profile;
    const std::vector<planner::Link>& lanes;
};

// `took`: seconds per iteration under `plan`, which was made for the job as it was `guessed`;
// `seen`: the same with what shows under the plan: when calls start, what lanes take. Throws as
// choose_plan() does.
Reestimate reestimate(const planner::Plan& plan, double took, const KnownJob& guessed,
                      const KnownJob& seen, const Settings& settings);

}  // namespace deft::director
