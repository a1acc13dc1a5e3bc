// SPDX-License-Identifier: Apache-2.0
// Mode observe: hooks hand their calls to one background thread, which learns the cycle, resolves
// the timing events and writes the report. docs/threads.md says who runs what.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/monitor.h"
#include "shim/cuda/event_pool.h"
#include "shim/nccl/registry.h"
#include "shim/runtime/link_history.h"
#include "shim/runtime/live_socket.h"
#include "shim/runtime/record_keeper.h"
#include "shim/runtime/report.h"
#include "shim/tuning/job_calls.h"

namespace deft {

class BackgroundThread {
public:
    static constexpr int kMaxDevices = 64;

    // Counts a call of the job by function. Works before start() too. Any thread.
    static void count(Function function) noexcept;
    static void count_captured() noexcept;

    // The background, once started; null before. Any thread; one load.
    static BackgroundThread* running() noexcept;

    // Starts the thread, at the first communicator. False (and a WARN) if that cannot be done. Any
    // thread; later calls return at once.
    static bool start() noexcept;

    // Notes a communicator whose rank, size and device are known.
    void know(const Communicator& communicator) noexcept;

    // Hot path: a pair of events of the device for this call, or EventPool::kNone when it is not to
    // be timed. `pool` is set with the pair.
    int sample(int device, cuda::EventPool*& pool) noexcept;
    // The same for a call of a trial, whose time is wanted whatever else is timed.
    int trial_pair(int device, cuda::EventPool*& pool) noexcept;
    // Hands a call over. `pool` is that of the pair which times it, if one does.
    void submit(const CallRecord& record, cuda::EventPool* pool) noexcept {
        submit(ring_, record, pool);
    }
    // A call that is lost gives its pair back: while one is out no other window is opened.
    static void submit(CallRing& ring, const CallRecord& record, cuda::EventPool* pool) noexcept {
        if (!ring.push(record) && record.events >= 0) {
            pool->give_back(record.events);
        }
    }

    // Asks for a report soon: a communicator is being destroyed.
    void request_report() noexcept;

private:
    // Shared with the hooks, one for each device.
    struct Sampling {
        std::atomic<int> calls_left{0};
        std::atomic<cuda::EventPool*> pool{nullptr};    // never freed
        std::atomic<cuda::EventPool*> trials{nullptr};  // the same; there is never another one
    };
    // The thread's own, one for each device: a device's calls are one rank's.
    struct Rank {
        Track track;
        std::uint64_t iterations_at_window = 0;
        bool no_events = false;
        std::int64_t clock_retry_ns = 0;  // the device was too busy to tell its time: not before
        std::uint32_t clocks_late = 0;    // so many times running, at most kClockDoublings
        std::uint64_t timed = 0;
        // Pools that were too small. Hooks may still hold their pairs: never freed.
        std::vector<cuda::EventPool*> outgrown;
        // Calls that may be tuned, as far as all is known of them; and those whose times are not.
        std::vector<tuning::SeenCall> seen;
        std::deque<std::pair<tuning::SeenCall, int>> trials;  // with its pair of events
        RecordKeeper record;
        std::string metrics_path;
    };

    CallRing ring_;
    std::array<Sampling, kMaxDevices> sampling_;
    std::map<int, Rank> ranks_;  // by device; -1: unknown
    std::uint64_t lost_seen_ = 0;
    LinkHistory links_;
    LiveSocket live_;

    Monitor monitor_;
    std::vector<CommunicatorFacts> communicators_ DEFT_GUARDED_BY(monitor_);
    bool report_wanted_ DEFT_GUARDED_BY(monitor_) = false;
    bool stop_ DEFT_GUARDED_BY(monitor_) = false;
    bool finished_ DEFT_GUARDED_BY(monitor_) = false;

    BackgroundThread() = default;
    static void* thread_main(void* self) noexcept;
    static void at_exit() noexcept;
    void run();
    bool drain();
    static void see(Rank& rank, CallRecord& record);
    bool resolve(int device, Rank& rank);
    bool resolve_trials(int device, Rank& rank);
    void open_window(int device, Rank& rank);
    bool prepare_pool(int device, Rank& rank);
    bool set_clock(int device, Rank& rank);
    std::vector<CommunicatorFacts> communicators();
    void put_metrics();
    void stop() noexcept;
    bool report(bool final_report);
    void show(std::int64_t now);
    bool is_rank(const ReportFacts& facts) const;
    void say_job_line();
    ReportFacts facts_of(int device, const Rank& rank,
                         const std::vector<CommunicatorFacts>& communicators) const;
};

}  // namespace deft
