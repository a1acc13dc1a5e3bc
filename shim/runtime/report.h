// SPDX-License-Identifier: Apache-2.0
// The observe report of one rank. Its form is part of the interface: docs/observe.md.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "shim/control/plan_report.h"
#include "shim/learning/track.h"
#include "shim/runtime/link_history.h"
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
    std::uint64_t writer = 0;  // of the record (shim/runtime/record_file.h)
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
    std::int64_t utc_offset_ns = 0;             // UTC is so far ahead of the monotonic clock
    const LinkHistory* link_history = nullptr;  // NULL: not kept
};

// Facts of this process that any rank's report has: library, host, links, plugin.
ReportFacts process_facts();

// The report's text, one line with its end. `track` may be null: a rank that made communicators and
// no call. Includes the link counters of the process as they are now.
std::string make_report(const ReportFacts& facts, const Track* track);

}  // namespace deft
