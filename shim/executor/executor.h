// SPDX-License-Identifier: Apache-2.0
// Runs a script inside the hooks of one communicator.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shim/cuda/execution.h"
#include "shim/executor/lanes.h"
#include "shim/executor/lease.h"
#include "shim/executor/prediction.h"
#include "shim/executor/script.h"
#include "shim/executor/statistics.h"
#include "shim/nccl/call.h"

namespace deft::executor {

class LaneTimes;
class LayerSums;
class Shadow;
class Sampler;

struct ExecutorOptions {
    std::uint64_t max_shadow_bytes = ~0ULL;  // create() refuses a script that needs more
    Prediction prediction{};
    std::uint64_t first_iteration = 0;  // where covap's coefficient schedule stands
    bool statistics = false;            // measure norms, for take()
    bool lease = false;                 // the plan ends where not every rank vouch()es for it
    std::uint32_t complete_every = 8;   // iterations between two complete measurements, at least
};

// Counters since create(); any thread.
struct ExecutorStats {
    std::uint64_t iterations = 0;  // begun
    std::uint64_t executed = 0;    // calls
    std::uint64_t forwarded = 0;   // calls left to the hook, not counting those after a break
    std::uint64_t launched = 0;    // transfers
    std::uint64_t launched_bytes = 0;
    static constexpr std::size_t kLanes = 8;
    std::array<std::uint64_t, kLanes> lane_bytes{};  // of them by lane, the first so many
    std::uint64_t delivered = 0;                     // generations
    std::uint64_t predicted = 0;                     // of them extrapolated or damped
    std::uint64_t zeroed = 0;   // calls that delivered zeros, in whole or in part
    std::uint64_t dropped = 0;  // generations that a break or the end left undelivered
    std::uint64_t shadow_bytes = 0;
};

enum class BreakReason : std::uint8_t {
    None,
    Sequence,
    Capture,
    Error,
    Stopped,
    Misplaced,  // the director's: before its first call
    Lease,      // not every rank has vouched for it
    Unproven,   // a call is not the gradient that the plan is for
};
const char* to_string(BreakReason reason);

// Threads: create() and the destructor run on a background thread, all_reduce() on whichever
// thread makes the job's calls on this communicator (one at a time, as NCCL demands), the rest on
// any. The lanes must outlive it.
//
// Under a script for layers that wait for their own sums, a call returns before its sum is there,
// and leaves it to its caller (leave_sum()): its buffers must stay until that has been waited for.
// Only a call with the mark that the script has for it is taken for one whose caller does.
class Executor {
public:
    // Allocates everything the script needs: shadow memory, events, kernels. Null and `problem` if
    // it cannot be had; nothing is left behind then. `lanes` by index; all on `device`.
    static std::unique_ptr<Executor> create(const cuda::Execution& driver, const Nccl& nccl,
                                            int device, std::vector<Lane*> lanes, Script script,
                                            const ExecutorOptions& options,
                                            std::string& problem) noexcept;
    // Does not wait: memory is given back in stream order behind what is in flight.
    ~Executor();
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    // Before the next gradient call. In some iterations the ranks ask each other whether the plan
    // goes on, and some iterations later they hear the answer here. `switches`: this rank knows of
    // a decision to end the plan, or to change to another one. True: all ranks do, and this is the
    // call to do it at. Waits only where the host is that far ahead of the device.
    bool renew(bool switches) noexcept;
    // What renew() will do now.
    bool asks() const noexcept { return renews() && lease_.asks(iteration()); }
    bool hears() const noexcept { return renews() && lease_.hears(iteration()); }
    // The next call of the plan's series. The first one is position 0 of iteration 0, so the
    // director arms the executor between two iterations. True: `result` is what the hook returns.
    // False: the hook forwards the call as it is (by plan, or because the executor is broken).
    // Never allocates or locks, and does not wait: only a call that is not the plan's, the first of
    // an iteration, waits for the other ranks. An error of the executor's own CUDA calls is never
    // the result: the plan ends with one WARN, and the call is forwarded. Only where transfers of
    // the call are under way already, which the others take part in, it is carried through: then
    // this thread waits for them.
    bool all_reduce(const Call& call, cuda::Stream stream, int& result) noexcept;

    // As end(), where the job's calls are not the plan's any more, between two of them: what calls
    // have left to wait for is sent first. The thread of the calls, at the same call on all ranks.
    void break_off(BreakReason reason) noexcept;
    // Calls have left sums that later calls of the iteration are to send. The same thread.
    bool sums_unsent() const noexcept;

    // Nothing is executed any more; what is in flight finishes and is dropped. All ranks must break
    // at the same call; so it is for the director between iterations, and for ends.
    void end(BreakReason reason) noexcept;
    // Also waits until no hook is inside, at most a second: after that the lanes may be aborted.
    // True if nobody is inside any more. Any thread.
    bool stop() noexcept;
    bool broken() const noexcept { return why_.load(std::memory_order_acquire) != 0; }
    BreakReason why() const noexcept {
        return static_cast<BreakReason>(why_.load(std::memory_order_acquire));
    }
    std::uint64_t iteration() const noexcept { return iteration_.load(std::memory_order_relaxed); }

    ExecutorStats stats() const noexcept;
    std::uint64_t empty() const noexcept;  // calls that received zeros and nothing else
    // Generations of regions that have been begun and not delivered. The thread of the calls, or
    // any once it makes none.
    std::uint64_t in_flight() const noexcept;
    // Under a lease: this rank vouches for the plan until then, in nanoseconds of CLOCK_MONOTONIC;
    // 0: it does not. Any thread.
    void vouch(std::int64_t until_ns) noexcept;
    // It does not, and will not: a sum came here that is not the gradient which the plan is for.
    bool withheld() const noexcept;
    // It has, when the ranks asked each other last.
    bool vouched() const noexcept;
    // Takes the statistics of the oldest finished iteration not yet taken. False if there is none.
    // One background thread.
    bool take(Statistics& statistics) noexcept;

    // What lanes take for the plan's calls. Null: that is not measured, because layers wait for
    // their own sums, or the driver refuses an event. One background thread, the same as for
    // take().
    LaneTimes* lane_times() const noexcept { return times_.get(); }

    // It was made with ExecutorOptions::statistics.
    bool measures() const noexcept { return options_.statistics; }
    const Script& script() const noexcept { return script_; }
    std::size_t lanes() const noexcept { return lanes_.size(); }
    // Null: it has none.
    Lane* first_lane() const noexcept { return lanes_.empty() ? nullptr : lanes_.front(); }
    const std::vector<Lane*>& all_lanes() const noexcept { return lanes_; }

private:
    struct Counters;
    Executor(const cuda::Execution& driver, const Nccl& nccl, int device, std::vector<Lane*> lanes,
             Script script, const ExecutorOptions& options) noexcept;
    bool allocate(std::string& problem);
    static constexpr int kForward = -1;  // a result: the call is left to the hook
    // An iteration is about to begin, and there are others to ask.
    bool renews() const noexcept {
        return position_.load(std::memory_order_relaxed) == 0 && !broken() && !lanes_.empty();
    }
    bool ask_or_hear(std::uint64_t iteration, bool switches) noexcept;
    bool any_rank_fits(bool fits) noexcept;
    // Whether the ranks ask each other if this call fits, before it.
    bool asks_of(std::uint32_t position) const noexcept {
        return !script_.marks.empty() &&
               (position == 0 || (script_.layers && held_[position] && !lanes_.empty()));
    }
    int cast(Question question, Ballot::Word word) noexcept;
    Ballot::Answer hear(Question question) noexcept;
    bool fits(std::uint64_t mark, std::uint32_t position) const noexcept;
    // What the script has for this call, which the call now counts as. Null: forward.
    const Action* begin_call(const Call& call, cuda::Stream stream) noexcept;
    // What the hook returns, or kForward.
    int execute(const Action& action, const Call& call, cuda::Stream stream) noexcept;
    int accumulate(const Action& action, const Call& call, cuda::Stream stream) noexcept;
    int launch(const Action& action, const Call& call, cuda::Stream stream) noexcept;
    int launch(const Launch& step, const Call& call, std::uint64_t& direct) noexcept;
    int note_sent(const Launch& step, std::uint32_t bucket) noexcept;
    int leave(const Call& call, std::uint32_t bucket, cuda::Stream stream) noexcept;
    void send_rest() noexcept;
    void note_held();
    struct Transfer {
        const void* from = nullptr;
        void* to = nullptr;
        std::uint32_t merged = 1;
    };
    int reduce(const Launch& step, const Shape& shape, const Transfer& transfer) noexcept;
    int carry_half(const Launch& step, const Shape& shape, const Transfer& transfer) noexcept;
    // shards.cpp
    int carry(const Launch& step, const Call& call) noexcept;
    int not_copied() noexcept;
    int deliver(const Action& action, const Call& call, cuda::Stream stream) noexcept;
    bool wait_for_lanes(std::uint64_t lanes, cuda::Stream stream) noexcept;
    Factors factors_for(const Deliver& step) const noexcept;
    int deliver_slot(const Deliver& step, const Call& call, cuda::Stream stream) noexcept;
    bool takes_events(cuda::Stream stream, cuda::Event event) noexcept;
    std::uint32_t bucket_of(const Action& action) const noexcept;
    int carry_out(const Action& action, const Call& call, cuda::Stream stream) noexcept;
    int carry_through(const Action& action, const Call& call) noexcept;
    template <class Ask>
    bool over(Ask ask) const noexcept;
    bool idle(cuda::Stream stream) const noexcept;
    bool happened(cuda::Event event) const noexcept;
    void end_iteration() noexcept;
    void stop_sampling() noexcept;
    int failed(const char* what, int result) noexcept;
    int refused(const char* what) noexcept;
    void count_dropped() noexcept;

    const cuda::Execution& driver_;
    const Nccl nccl_;
    const int device_;
    const std::vector<Lane*> lanes_;
    const Script script_;
    const ExecutorOptions options_;
    std::unique_ptr<Shadow> shadow_;
    std::unique_ptr<Sampler> sampler_;
    std::unique_ptr<LaneTimes> times_;  // or null
    LayerSums* sums_ = nullptr;         // a reference; null: calls wait for their sums
    std::vector<Call> called_;          // by bucket, where they do not: the latest
    std::vector<bool> held_;  // by bucket: some of it is sent by a later call than its own
    Lease lease_;
    std::atomic<std::uint64_t> iteration_{0};
    std::atomic<std::uint32_t> position_{0};
    std::atomic<std::uint8_t> why_{0};
    std::atomic<std::uint32_t> inside_{0};
    std::uint64_t running_ = 0;  // iteration of the call being run
    // How far that call has come.
    struct Progress {
        bool launched = false;        // a transfer at least, so all must be
        bool untold = false;          // no event tells when one of them is over
        std::uint32_t delivered = 0;  // of its deliveries
        std::uint32_t zeroed = 0;     // of its zeros
        bool sums = false;
        bool zeros = false;
    };
    Progress progress_;
    bool sampling_ = false;
    cuda::Stream stream_ = nullptr;      // of the last call
    bool stream_known_ = false;          // it takes events
    std::vector<cuda::Stream> streams_;  // of the lanes
    std::unique_ptr<Counters> counters_;
};

}  // namespace deft::executor
