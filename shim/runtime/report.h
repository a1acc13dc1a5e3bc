// SPDX-License-Identifier: Apache-2.0
// The observe report of one rank. Its form is part of the interface: docs/observe.md.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "shim/control/plan_report.h"
#include "shim/learning/track.h"
#include "shim/runtime/own_job.h"

namespace deft {

// What is known about a communicator, as plain data.
struct CommunicatorFacts {
    std::uint32_t serial = 0;
    std::uint64_t hash = 0;
    int rank = -1;
    int nranks = -1;
    int device = -1;
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
    OwnJob job;
    std::string written;  // when this report was made; of a final one, when the job ended
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

// Where a job that was over before `started` (utc_text()) has left a file of this name, that gets
// the time of its end behind its name: "deft-host-0.json.20261126T150750Z". Nothing else is moved,
// as ranks of one job may take each other's names at first.
void keep_earlier(const std::string& path, const std::string& started);

constexpr int kNotAFile = -1;

// Replaces the file `named`, or the one that this link leads to, by `text` in one step (a temporary
// file beside it, then rename). /dev/null takes all. Returns 0, errno, or kNotAFile where something
// else is there.
int write_atomically(const std::string& named, const std::string& text);

}  // namespace deft
