// SPDX-License-Identifier: Apache-2.0
// What the operator allows, read from the configuration once for each communicator.
#pragma once

#include <cstdint>
#include <string>

#include "shim/executor/executor.h"
#include "shim/guard/guard.h"
#include "shim/interpose/mode.h"
#include "shim/planner/plan.h"
#include "shim/planner/profile.h"

namespace deft::director {

struct Settings {
    ShimMode mode = ShimMode::Off;
    std::uint32_t max_delay = 0;  // iterations
    std::uint32_t max_merge = 1;  // gradients in one update
    std::uint32_t merge_cap = 1;  // DEFT_MAX_MERGE itself: what another rank's plan may ask for
    bool unmerged = false;        // max_merge is 1 because the optimizer is plain SGD
    std::uint64_t warm_up = 0;    // synchronous iterations before the first plan
    std::uint64_t max_shadow_bytes = 0;
    // A plan the operator insists on, whatever the prediction says; 0, 0: none.
    std::uint32_t forced_delay = 0;
    std::uint32_t forced_merge = 0;  // 0: the planner decides

    static Settings process();
    // Everything that has to be equal on all ranks, in words.
    static std::string terms();
};

// The plan for this job, its prediction and verdict. `note` says in one line what was decided and
// why. Throws std::invalid_argument where nothing can be planned.
planner::Plan choose_plan(const planner::Profile& profile, const Settings& settings,
                          std::string& note);

// The accuracy guard as DEFT_GUARD and DEFT_OPTIMIZER set it.
guard::Settings guard_settings();

// How a plan's late gradients are delivered, by DEFT_PREDICT and the optimizer. The leader's choice
// is every rank's: replicas stay equal though a rank may have been told of another optimizer.
executor::Prediction choose_prediction(const planner::Plan& plan);

}  // namespace deft::director
