// SPDX-License-Identifier: Apache-2.0
// Pairs of timing events of one device, made ahead so that a hook allocates nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "shim/cuda/driver.h"

namespace deft::cuda {

// Hooks take pairs and record them; one background thread resolves them and gives them back. Events
// are never destroyed: at exit the driver may be gone before us.
class EventPool {
public:
    static constexpr int kNone = -1;

    // Makes the pairs and a stream for the clock in the device's primary context. Background thread
    // only, and in relaxed capture mode: creating things must not break a capture of the job. Null
    // if the driver refuses.
    static std::unique_ptr<EventPool> create(const Driver& driver, int ordinal, std::size_t pairs);

    // A free pair, or kNone when there is none or another thread is at it: a sample is not worth
    // waiting for. Any thread.
    int take() noexcept;
    void give_back(int pair) noexcept;
    // Gives up on a pair whose events may yet happen: it is out of the pool for good.
    void abandon() noexcept { in_use_.fetch_sub(1, std::memory_order_relaxed); }

    // Records the pair's first or second event on the job's stream. Any thread; false if refused.
    bool record_start(int pair, Stream stream) noexcept { return record(2 * pair, stream); }
    bool record_end(int pair, Stream stream) noexcept { return record(2 * pair + 1, stream); }

    // Late: the device is busy, and did not answer in time; it may the next time.
    enum class Clock { Set, Late, Refused };
    // Background thread: ties the device's clock to the host's with a fresh event on an idle
    // stream, the quickest of a few. Call it when no pair is out, then every later pair is measured
    // from it. Waits a quarter of a second at most for one.
    Clock set_clock() noexcept;

    enum class State { Pending, Done, Failed };
    // Background thread: the pair's times on the host's clock (CLOCK_MONOTONIC, ns), once both
    // events have happened.
    State resolve(int pair, std::int64_t& start_ns, std::int64_t& end_ns) noexcept;
    // The same of the time between the two alone, for which no clock has to be set.
    State resolve(int pair, std::int64_t& elapsed_ns) noexcept;

    int in_use() const noexcept { return in_use_.load(std::memory_order_relaxed); }
    std::size_t size() const noexcept { return size_; }

private:
    EventPool(const Driver& driver, Context context, std::size_t pairs);
    bool record(int event, Stream stream) noexcept;
    Clock read_clock(std::int64_t& host_ns, std::int64_t& took_ns) noexcept;
    State elapsed_between(int pair, std::int64_t& elapsed_ns) noexcept;
    State ended(int pair) noexcept;
    bool elapsed_since_clock(Event event, std::int64_t& host_ns) noexcept;

    const Driver& driver_;
    Context context_;
    std::size_t size_;
    std::unique_ptr<Event[]> events_;
    std::unique_ptr<int[]> free_;  // a stack
    std::size_t free_count_ = 0;
    std::atomic_flag free_busy_ = ATOMIC_FLAG_INIT;
    std::atomic<int> in_use_{0};
    Stream clock_stream_ = nullptr;
    Event clock_ = nullptr;
    Event next_clock_ = nullptr;
    std::int64_t clock_host_ns_ = 0;
};

// CLOCK_MONOTONIC in nanoseconds.
std::int64_t host_now() noexcept;

}  // namespace deft::cuda
