// SPDX-License-Identifier: Apache-2.0
// One rank's stream of calls: its cycles and their profiles. Pure; the background thread feeds it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "shim/learning/call_ring.h"
#include "shim/learning/call_times.h"
#include "shim/learning/cycle_learner.h"
#include "shim/nccl/gradient_call.h"
#include "shim/nccl/series.h"

namespace deft {

class Track {
public:
    // A call whose time is not known yet waits, and the calls behind it too.
    struct Waiting {
        TimedCall call;
        std::size_t cycle = CycleLearner::kNone;
        int events = -1;
        std::int64_t seen_ns = 0;
        bool gap_before = false;  // the cycle was interrupted between this call and the one before
    };

    // The next call of this rank, in order.
    void feed(const CallRecord& record);
    // Calls were lost: what was learned stands, but the sequence starts afresh.
    void lost_calls();

    // Calls that wait for their times, oldest first. The caller fills in the times of those with
    // events, sets events to -1, and calls settle().
    std::deque<Waiting>& waiting() { return waiting_; }
    void settle();

    const CycleLearner& learner() const { return learner_; }
    bool stable() const { return learner_.stable(); }
    // Length of the cycle in force, 0 while learning.
    std::size_t cycle_length() const;

    // The profile of the cycle in force, null while learning.
    const CallTimes* current_profile() const;

    // The calls of the cycle in force, one for each position; empty while learning.
    const std::vector<CallRecord>& current_shape() const;
    // False where buffers leave it open whether the cycle in force is an iteration or one of
    // several equal parts of it: all its gradients may have one size.
    bool whole() const;
    // Of the calls that a communicator numbers in a series.
    struct Numbered {
        // The first in the latest iteration of the cycle in force; kNoOrdinal until one has begun.
        std::uint64_t iteration_start = CallRecord::kNoOrdinal;
        // The latest; since one that began an iteration, of the cycle's.
        std::uint64_t latest = CallRecord::kNoOrdinal;
    };
    Numbered numbered(std::uint32_t comm_serial, Series series) const;
    // Forgets the times of the cycle in force, so that what follows is measured by itself.
    void restart_profile();
    // Makes the cycle in force begin at this place of it, and forgets its times.
    void rotate(std::size_t position);

    // The cycle that most of the job's calls belong to, as one record for each position; empty if
    // none was found yet.
    const std::vector<CallRecord>& main_shape() const;
    const CallTimes* main_profile() const;

    std::uint64_t calls() const { return calls_; }
    // Of all cycles; unlike those of a profile they are never forgotten.
    std::uint64_t iterations() const { return iterations_; }
    std::uint64_t changes() const { return changes_; }
    // Different calls that are remembered.
    std::size_t shapes() const { return shapes_.size(); }

private:
    struct Cycle {
        std::vector<CallRecord> shape;
        std::unique_ptr<CallTimes> profile;
        std::size_t gradients = 0;
        bool whole = false;  // its buffers have shown it since it came into force
    };
    CycleLearner learner_;
    struct Known {
        CallRecord record;
        std::uint64_t call = 0;  // when it was made last, or broke a cycle
    };
    std::unordered_map<std::uint64_t, Known> shapes_;  // by key
    std::size_t most_shapes_ = 0;
    std::vector<Cycle> cycles_;  // as in the learner
    std::deque<Waiting> waiting_;
    std::vector<std::uint64_t> buffers_;  // of the latest gradients, a ring
    std::uint64_t gradients_ = 0;
    std::uint64_t calls_ = 0;
    std::uint64_t iterations_ = 0;
    std::uint64_t changes_ = 0;  // times a cycle was broken
    std::size_t settled_cycle_ = CycleLearner::kNone;
    bool gap_ = false;
    struct Numbers {
        Numbered calls;
        std::uint64_t iteration = 0;  // as iteration_, when it began for them
    };
    std::unordered_map<std::uint64_t, Numbers> numbers_;  // by communicator and series
    std::uint64_t iteration_ = 0;        // counts on with each that begins; 0: none has
    std::uint64_t first_iteration_ = 1;  // of the cycle in force, by that count

    const Cycle* main_cycle() const;
    void adopt(std::size_t index);
    bool returns_to_buffers(std::size_t gradients) const;
    void forget_times(const CallRecord& record);
    void forget_shapes();
    void number(const CallRecord& record, const CycleLearner::Step& step);
    void forget_iterations();
    void count(const CycleLearner::Step& step);
};

// What must be equal in two calls of the same bucket.
std::uint64_t key_of(const CallRecord& record);

}  // namespace deft
