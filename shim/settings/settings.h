// SPDX-License-Identifier: Apache-2.0
// What the operator allows, read from the configuration once for each communicator.
#pragma once

#include <cstdint>
#include <string>

#include "planner/model/plan.h"
#include "shim/executor/executor.h"
#include "shim/settings/mode.h"

namespace deft {
class Config;
}

namespace deft::director {

// DEFT_MODE, but exact in the place of deft and covap where nobody can say that the large sums of
// the job are gradients, neither the operator (DEFT_GRADIENTS) nor a companion: a sum that is none
// must not come late.
ShimMode planning_mode();
// That is so. In words, for people; null: it is not.
const char* untrusted();

// Mode exact, and DEFT_LAYERWISE allows that layers wait for their own gradients.
bool layers_may_wait();

// The operator says that this job's learning rate bears late or merged gradients: by a cap that
// allows some, or a plan by its name.
bool cap_named(const Config& config);

// DEFT_TUNER: how NCCL carries out calls may be chosen; also where a sum's order changes with it.
bool tuner_allowed();
bool tuner_may_reorder();

struct Settings {
    ShimMode mode = ShimMode::Off;  // planning_mode()
    std::uint32_t max_delay = 0;    // iterations
    std::uint32_t max_merge = 1;    // gradients in one update
    // DEFT_MAX_DELAY and DEFT_MAX_MERGE themselves: what the leader's plan may ask for, which may
    // know the optimizer better.
    std::uint32_t delay_cap = 0;
    std::uint32_t merge_cap = 1;
    bool combined = false;     // one plan may delay and merge
    bool turns = false;        // buckets may get their merged sums in different updates
    const char* limited = "";  // why the caps are lower than those set by default; for people
    // Nobody has said that this job's learning rate bears late or merged gradients: neither the
    // operator, by a cap, nor by trust.
    bool rate_unknown = false;
    bool unmeasured = false;    // because nothing is known of what this job does with sums
    std::uint64_t warm_up = 0;  // synchronous iterations before the first plan
    std::uint64_t max_shadow_bytes = 0;
    // Of each lane at most; 0: NCCL chooses. The lane that carries everything where there is no
    // other network is only limited where the operator says so.
    int lane_ctas = 0;
    int own_lane_ctas = 0;
    // A plan the operator insists on, whatever the prediction says; 0, 0: none.
    std::uint32_t forced_delay = 0;
    bool forced_tail = false;        // only what backward ends with is late
    bool forced_queues = false;      // DeFT's two queues, within forced_delay and forced_merge
    bool mixed_ages = false;         // such plans are offered
    std::uint32_t forced_merge = 0;  // 0: the planner decides
    // Mode exact: the planner's policy for layers that wait for their own, where the operator names
    // one, and whether they do.
    std::string policy;
    bool layers = false;
    // And one is tried though nothing is predicted of it, to see how long backward takes.
    bool trial = false;
    // What an all-reduce takes on a lane over the job's own network, in seconds: to start, and for
    // each byte. 0: that was not measured.
    double lane_start = 0;
    double lane_per_byte = 0;
    // Sums may be cut: two ranks add the same in any order.
    bool cuts = true;
    // What merged and late gradients cost this job (planner/model/progress.h).
    double noise_scale = planner::kNoiseScale;
    double age_price = planner::kAgePrice;
    bool age_price_named = false;  // by the operator

    // Of layers that wait for their own: sums may go as reduce-scatters and all-gathers.
    bool halves() const { return cuts && policy == "dear"; }

    static Settings process();
    // Everything that has to be equal on all ranks, in words.
    static std::string terms();
    static std::string terms(const Config& config);
};

// Lowers the caps that are set by default to what the optimizer bears (measured: docs/accuracy.md).
// What has not been measured, an optimizer or that gradients are clipped, bears nothing.
// A cap that the operator has set (own_...) stays as it is; with both set, one plan may delay and
// merge.
void limit_by_optimizer(const executor::Optimizer& optimizer, bool own_delay, bool own_merge,
                        Settings& settings);

// How a plan is compiled under these settings, but for its lanes.
executor::CompileOptions compile_options(const Settings& settings,
                                         const executor::Prediction& prediction);

// How a plan's late gradients are delivered, by DEFT_PREDICT and the optimizer. The leader's choice
// is every rank's: replicas stay equal though a rank may have been told of another optimizer.
executor::Prediction choose_prediction(const planner::Plan& plan);

}  // namespace deft::director
