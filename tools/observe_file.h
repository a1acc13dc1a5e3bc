// SPDX-License-Identifier: Apache-2.0
// The records of ranks (docs/observe.md), read and checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deft::tools {

// Counts of files nobody vouches for: the sum stays at the largest number it can be.
inline std::int64_t add_counts(std::int64_t a, std::int64_t b) {
    return a > INT64_MAX - b ? INT64_MAX : a + b;
}

// A distribution; `n` 0 or no median: not measured.
struct Quantiles {
    std::optional<double> median, p10, p90;
    std::int64_t n = 0;
};

struct ObservedBucket {
    std::int64_t position = 0;
    std::string communicator, type, op;
    std::int64_t bytes = 0, count = 0;
    bool in_place = false;
    Quantiles ready_ms, transfer_ms;
};

struct ObservedLink {
    std::string name, kind;
    std::int64_t bytes_sent = 0, bytes_received = 0, chunks_sent = 0, resent_bytes = 0;
    std::int64_t transitions = 0;
    std::optional<double> busy_ms, speed_mbps;
    // How often a path was silent or lost for at most stall_bounds_s[i] until it was back; last, of
    // one more: for longer. Empty: of a writer that did not know it.
    std::vector<double> stall_bounds_s;
    std::vector<std::int64_t> stalls;
    std::optional<double> stall_ms;  // in all

    std::int64_t all_stalls() const;
};

// The latest measured iterations as they were, and what the links had carried by when. Times in
// microseconds of UTC; those of a call from its iteration's origin.
struct ObservedTrace {
    struct Call {
        std::int64_t position = 0, issued = 0, ready = 0, start = 0, end = 0;
    };
    struct Iteration {
        std::int64_t origin = 0;
        std::vector<Call> calls;
    };
    struct LinkSample {
        std::int64_t at = 0;
        std::vector<std::int64_t> sent;  // bytes, by link as in `links`
    };
    std::vector<Iteration> iterations;
    std::vector<LinkSample> links;
};

// A decision of the accuracy guard. `acted` false: it was only said.
struct ObservedDecision {
    std::int64_t iteration = 0;
    std::string action, reason;
    bool acted = true;
    // Of a plan that has fallen: the first iteration under it and the last (0: not written), how
    // many iterations its gradients were late, what was dropped at its end, and the loss.
    std::int64_t from = 0, to = 0, late_by = 0, dropped = 0;
    std::optional<double> loss_expected{}, loss_seen{};
};

// What became of tuning NCCL for a communicator (docs/tuner.md).
struct ObservedTuning {
    struct Call {
        std::string call, choice;
        std::optional<double> own_ms, chosen_ms;
    };
    std::string state, reason;  // empty state: this rank tells nothing of it
    std::optional<double> ratio;
    std::vector<Call> calls;
};

// What became of one communicator that could be planned for (docs/director.md).
struct ObservedPlan {
    std::string state, reason, policy;  // policy: of the plan in force, else of the latest
    std::optional<double> predicted_ms, baseline_ms, before_ms, bound_ms;
    Quantiles before;  // spread of before_ms, where the writer knew it
    std::optional<double> updates_per_iteration;
    std::optional<double> progress;  // synchronous updates that an iteration is worth
    struct Transfer {
        std::int64_t bucket = 0, lane = 0;  // lane 0: the job's own network
        double start_ms = 0, finish_ms = 0;
    };
    std::vector<Transfer> transfers;       // of one period of the plan, as computed
    std::int64_t switched = 0, ended = 0;  // plans that came into force, and that a change ended
    ObservedTuning tuning;
    std::int64_t max_delay = 0, max_merge = 0, guard_decisions = 0;
    std::vector<ObservedDecision> guard_history;  // the first of them
};

// Which job it was; of writers that did not know it, empty.
struct ObservedJob {
    std::string id;                // the scheduler's
    std::string command;           // of this rank
    std::string started, written;  // UTC, "2026-11-26T15:07:50Z"
};

struct ObserveFile {
    std::string path;  // of the file; with the line, where others are in it
    ObservedJob job;
    std::string library_version, nccl_path, host, mode;
    std::string gradients;  // DEFT_GRADIENTS; empty: of a writer that did not know it
    std::int64_t nccl_version = 0, rank = 0, ranks = 0, pid = 0;
    std::vector<std::pair<std::string, std::int64_t>> calls;  // by name, as counted
    bool plugin_loaded = false;
    std::int64_t plugin_abi = 0, plugin_calls = 0;
    std::int64_t iterations_seen = 0, cycle_length = 0;
    bool stable = false;
    Quantiles time_ms, coverage_rate;
    std::vector<std::string> communicators;  // their names, which are equal on all their ranks
    std::vector<ObservedBucket> buckets;
    std::vector<ObservedLink> links;
    // Function and bytes of each other call of the cycle, by its position.
    struct OtherCall {
        std::int64_t position = 0, bytes = 0;
        std::string function;
    };
    std::vector<OtherCall> other_calls;
    ObservedTrace traced;

    // Added by writers after the first; absent: final, nothing to note.
    bool final_report = true;
    std::string events_note;  // why there are no times, if there are none
    std::int64_t captured_calls = 0, lost_calls = 0;
    Quantiles compute_ms, exposed_ms, latest_start_ms;
    std::vector<ObservedPlan> plans;

    std::int64_t all_calls() const;
};

// The records in a file that can be read. Of each that cannot, and of a file that cannot, one line
// in `problems`: file, place in it, what is wrong, what to do.
std::vector<ObserveFile> read_observe_files(const std::string& path,
                                            std::vector<std::string>& problems);

// One record from text already read; `path` is for messages only. Throws std::runtime_error with
// such a line.
ObserveFile parse_observe_file(const std::string& path, const std::string& text);

// The records of a text: its lines where one of them is a record of a host's, else the whole.
std::vector<std::string_view> records_in(std::string_view text);

}  // namespace deft::tools
