// SPDX-License-Identifier: Apache-2.0
// Which plan calls get that can't wait, or of which nothing is known but their sizes.
#pragma once

#include <string>
#include <vector>

#include "planner/model/fabric.h"
#include "planner/model/plan.h"
#include "planner/model/profile.h"
#include "shim/nccl/series.h"

namespace deft::director {

// Every call cut over the networks, so that its parts end together: for reduce-scatters and
// all-gathers, each of which is needed at once, and for calls that were not timed. `profile`: with
// the bytes that one rank has of each shard. `lanes` and `note` as in choose_plan(). Where there is
// no other network there is nothing to gain. The prediction is the best that may come of it, as
// nobody knows which transfers compute hides: what it is worth is measured (PlanReview). `named`:
// the operator insists on a plan (DEFT_PLAN): then every call is cut, by rates alone, whatever
// comes of it. Throws std::invalid_argument where nothing can be planned.
planner::Plan choose_split_plan(Series series, const planner::Profile& profile,
                                const std::vector<planner::Link>& lanes, bool named,
                                std::string& note);
// The networks that such a plan is made for.
planner::Fabric split_fabric(Series series, const planner::Profile& profile,
                             const std::vector<planner::Link>& lanes);

}  // namespace deft::director
