// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace deft {

// What was planned for a communicator, and what came of it.
struct PlannedTransfer {
    std::uint32_t bucket = 0;
    std::uint32_t link = 0;
    double start_ms = 0;  // predicted, from the start of the period
    double finish_ms = 0;
};

// What became of tuning NCCL for a communicator.
struct TuningFacts {
    struct Call {
        std::string call;    // "ncclAllReduce of 4096 float32"
        std::string choice;  // "Tree/Simple", "NCCL's own choice"
        double own_ms = 0;   // with NCCL's own choice; 0: not known
        double chosen_ms = 0;
    };
    std::string state;   // "watching", "trying", "comparing", "settled"; empty: not on this rank
    std::string reason;  // why NCCL's own choices stand; empty: some do not
    double ratio = 1;    // of an iteration's time to the time before
    std::vector<Call> calls;
};

// What the accuracy guard has decided.
struct GuardEvent {
    std::uint64_t iteration = 0;  // of the communicator, as the plans count them
    std::string action;           // "tighten", "fall back", "resume": guard::to_string()
    std::string reason;
    bool acted = false;  // false: DEFT_GUARD=warn, it was only said
    // Of a plan that has fallen. Iterations under it, the first and the last: of the training,
    // where the companion tells of it, else as above.
    std::uint64_t from = 0, to = 0;
    std::uint32_t late_by = 0;  // so many iterations its gradients were late, at most
    std::uint64_t dropped = 0;  // generations that were under way then
    double loss_expected = 0;   // by the trend before the plan, and what it was; NaN: not known
    double loss_seen = 0;
    static constexpr std::size_t kListed = 64;
};

struct PlanFacts {
    std::string state;        // "agreeing", "watching", "running", ...: docs/observe.md
    std::string reason;       // why nothing is planned; empty if something is
    std::string policy;       // of the plan in force, else of the latest; empty: none on this rank
    double predicted_ms = 0;  // per iteration
    double baseline_ms = 0;   // of the job as it was, predicted
    double bound_ms = 0;      // no plan of this kind can be faster
    double updates = 1;       // per iteration
    double late = 0;          // of all bytes, as a part
    double progress = 1;      // synchronous updates that an iteration is worth
    std::uint32_t max_delay = 0;
    std::uint32_t max_merge = 1;
    std::uint64_t switched = 0;  // plans that came into force
    std::uint64_t ended = 0;     // of them by a change of the job's iteration
    std::uint64_t iterations = 0, executed = 0, forwarded = 0, launched_bytes = 0;
    std::vector<std::uint64_t> lane_bytes;  // of launched_bytes, by lane
    std::uint64_t delivered = 0, predicted_deliveries = 0, zeroed = 0, dropped = 0;
    std::uint64_t shadow_bytes = 0;
    std::uint64_t guard_decisions = 0;
    std::vector<GuardEvent> guard_history;  // the first kListed of them
    // Of the training, as the companions tell it: the mean of the latest losses under plans, and
    // what they may be by the trend before. NaN: not known.
    double loss = std::numeric_limits<double>::quiet_NaN();
    double loss_expected = std::numeric_limits<double>::quiet_NaN();
    // Iteration before the plan, as measured: the median (0: unknown), and its spread.
    double before_ms = 0, before_p10_ms = 0, before_p90_ms = 0;
    std::uint64_t before_n = 0;
    std::uint32_t period = 1;
    TuningFacts tuning;
    std::vector<double> cycles_ms;           // predicted start of backward of each iteration
    std::vector<PlannedTransfer> transfers;  // of one period, the first kListed of them
    static constexpr std::size_t kListed = 512;
};

}  // namespace deft
