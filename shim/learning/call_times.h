// SPDX-License-Identifier: Apache-2.0
// What one cycle costs: when each of its calls is ready, how long its transfer takes, and the
// iteration around it. Pure arithmetic on times; docs/observe.md defines every quantity.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "shim/learning/samples.h"

namespace deft {

// One call at its place in the cycle. Times in nanoseconds of the host's monotonic clock.
struct TimedCall {
    std::size_t position = 0;
    std::int64_t issued = 0;  // the job called
    bool timed = false;       // start and end are known
    std::int64_t start = 0;   // the caller's stream reached the call
    std::int64_t end = 0;     // the caller's stream had done it
    std::uint64_t stream = 0;
    std::uint64_t bytes = 0;
    std::uint64_t group = 0;  // calls of one NCCL group share a number; 0: not in a group
    std::uint32_t comm = 0;   // which communicator's it is
};

// One measured iteration as it was, for who wants to look at it. Times as above.
struct TracedIteration {
    struct Call {
        std::size_t position = 0;
        std::int64_t issued = 0, ready = 0, start = 0, end = 0;
    };
    std::int64_t origin = 0;  // the end of the iteration before
    std::vector<Call> calls;
};

// Whether two communicators are likely to use the same links, by how fast each is: bytes, in a
// time.
bool meet(double bytes, double time, double other_bytes, double other_time);

class CallTimes {
public:
    // The latest measured iterations are kept: as many as have this many calls, 8 at most, 1 at
    // least.
    static constexpr std::size_t kTracedCalls = 512;
    static constexpr std::size_t kTracedIterations = 8;

    explicit CallTimes(std::size_t length);

    struct Place {
        Samples ready_ms;   // from the end of the previous iteration's last transfer
        Samples issued_ms;  // the same for the host's call: the earliest it can have been ready
        // Start to end on the caller's stream, less what it waited for the call before it on the
        // same communicator, whatever stream that was on: NCCL carries them out in their order.
        Samples transfer_ms;
        // The same, less what it lost to calls of other communicators over the same links.
        Samples alone_ms;
        Samples start_ms;  // when the stream came to it: ready_ms or later
        Samples idle_ms;   // nothing was transferred for so long before it started
    };

    // Calls in the order of the job. A gap (the cycle was interrupted) starts afresh.
    void add(const TimedCall& call);
    void interrupted();

    std::size_t length() const { return places_.size(); }
    const std::vector<Place>& places() const { return places_; }
    const Samples& iteration_ms() const { return iteration_ms_; }  // first call to first call
    const Samples& compute_ms() const { return compute_ms_; }
    // When the last call started: what compute takes at the most, as no call starts before its data
    // are ready.
    const Samples& latest_start_ms() const { return latest_start_ms_; }
    const Samples& exposed_ms() const { return exposed_ms_; }
    const Samples& coverage_rate() const { return coverage_rate_; }
    const std::deque<TracedIteration>& traced() const { return traced_; }  // oldest first
    std::uint64_t iterations() const { return iterations_; }
    void count_iterations(std::uint64_t more) { iterations_ += more; }
    // Calls that belonged to this cycle: what decides which of several cycles is the job's.
    std::uint64_t calls() const { return calls_; }
    void count_calls(std::uint64_t more) { calls_ += more; }

private:
    std::vector<Place> places_;
    Samples iteration_ms_;
    Samples compute_ms_;
    Samples latest_start_ms_;
    Samples exposed_ms_;
    Samples coverage_rate_;
    std::deque<TracedIteration> traced_;
    std::uint64_t iterations_ = 0;
    std::uint64_t calls_ = 0;

    std::vector<TimedCall> current_;   // this iteration so far
    std::vector<TimedCall> previous_;  // the one before, if nothing came between

    void finish_iteration();
    void measure(std::int64_t origin);
    void trace(std::int64_t origin, const std::vector<std::int64_t>& ready);
    std::vector<std::int64_t> ready_times() const;
    std::vector<std::int64_t> began_times() const;
    std::vector<double> parts_of_links(const std::vector<std::int64_t>& began) const;
};

}  // namespace deft
