// SPDX-License-Identifier: Apache-2.0
// The observe report of one rank. Its form is part of the interface: docs/observe.md.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "shim/iteration/track.h"

namespace deft {

// What is known about a communicator, as plain data.
struct CommunicatorFacts {
    std::uint32_t serial = 0;
    std::uint64_t hash = 0;
    int rank = -1;
    int nranks = -1;
    int device = -1;
};

// What was planned for a communicator, and what came of it.
struct PlannedTransfer {
    std::uint32_t bucket = 0;
    std::uint32_t link = 0;
    double start_ms = 0;  // predicted, from the start of the period
    double finish_ms = 0;
};

struct PlanFacts {
    std::string state;        // "agreeing", "watching", "running", ...: docs/observe.md
    std::string reason;       // why nothing is planned; empty if something is
    std::string policy;       // of the plan in force, else of the latest; empty: none on this rank
    double predicted_ms = 0;  // per iteration
    double baseline_ms = 0;   // of the job as it was, predicted
    double bound_ms = 0;      // no plan of this kind can be faster
    double updates = 1;       // per iteration
    std::uint32_t max_delay = 0;
    std::uint32_t max_merge = 1;
    std::uint64_t switched = 0;  // plans that came into force
    std::uint64_t ended = 0;     // of them by a change of the job's iteration
    std::uint64_t iterations = 0, executed = 0, forwarded = 0, launched_bytes = 0;
    std::vector<std::uint64_t> lane_bytes;  // of launched_bytes, by lane
    std::uint64_t delivered = 0, predicted_deliveries = 0, zeroed = 0, dropped = 0;
    std::uint64_t shadow_bytes = 0;
    std::uint64_t guard_decisions = 0;
    double before_ms = 0;  // median iteration before the plan, as measured; 0 unknown
    std::uint32_t period = 1;
    std::vector<double> cycles_ms;           // predicted start of backward of each iteration
    std::vector<PlannedTransfer> transfers;  // of one period, the first kListed of them
    static constexpr std::size_t kListed = 512;
};

// Everything that goes into a report and is not in the track.
struct ReportFacts {
    std::string library_path;
    int nccl_version = 0;
    std::string nccl_path;
    std::string host;
    int rank = 0;
    int ranks = 0;
    int pid = 0;
    std::string mode;
    std::string gradients;  // DEFT_GRADIENTS
    std::array<std::uint64_t, kFunctions> calls{};
    bool plugin_loaded = false;
    int plugin_abi = 0;
    std::uint64_t plugin_calls = 0;
    std::vector<CommunicatorFacts> communicators;  // of this rank
    std::uint64_t timed_calls = 0;                 // with events around them
    std::uint64_t captured_calls = 0;              // in a CUDA graph: passed by
    std::uint64_t lost_calls = 0;
    std::string events_note;       // why there are no times; empty if there are or will be
    std::vector<PlanFacts> plans;  // of this rank's communicators that may be planned for
    bool final_report = false;
};

// Facts of this process that any rank's report has: library, host, links, plugin.
ReportFacts process_facts();

// The report's text. `track` may be null: a rank that made communicators and no call. Includes the
// link counters of the process as they are now.
std::string make_report(const ReportFacts& facts, const Track* track);

constexpr int kNotAFile = -1;

// Replaces the file `named`, or the one that this link leads to, by `text` in one step (a temporary
// file beside it, then rename). /dev/null takes all. Returns 0, errno, or kNotAFile where something
// else is there.
int write_atomically(const std::string& named, const std::string& text);

}  // namespace deft
