// SPDX-License-Identifier: Apache-2.0
#include "shim/cuda/event_pool.h"

#include <sched.h>
#include <time.h>
#include <utility>

#include "base/hot_path.h"

namespace deft::cuda {
namespace {

constexpr std::int64_t kClockDeadline = 250'000'000;
// The device's time lies somewhere in the round trip: a good one is no longer than this. An event
// behind the job's kernels, where streams share a queue, may take as long as they do.
constexpr std::int64_t kGoodClock = 1'000'000;
constexpr int kClockReadings = 5;

}  // namespace

DEFT_NO_ARRAYS std::int64_t host_now() noexcept {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

EventPool::EventPool(const Driver& driver, Context context, std::size_t pairs)
    : driver_(driver),
      context_(context),
      size_(pairs),
      events_(std::make_unique<Event[]>(2 * pairs)),
      free_(std::make_unique<int[]>(pairs)) {}

std::unique_ptr<EventPool> EventPool::create(const Driver& driver, int ordinal, std::size_t pairs) {
    int device = 0;
    Context context = nullptr;
    // The retained reference is never released: the job's communicators live as long as the
    // process.
    if (driver.DeviceGet(&device, ordinal) != kSuccess ||
        driver.DevicePrimaryCtxRetain(&context, device) != kSuccess) {
        return nullptr;
    }
    const Current current(driver, context);
    if (!current) {
        return nullptr;
    }
    std::unique_ptr<EventPool> pool(new EventPool(driver, context, pairs));
    if (driver.StreamCreate(&pool->clock_stream_, kStreamNonBlocking) != kSuccess ||
        driver.EventCreate(&pool->clock_, 0) != kSuccess ||
        driver.EventCreate(&pool->next_clock_, 0) != kSuccess) {
        return nullptr;
    }
    for (std::size_t i = 0; i < 2 * pairs; ++i) {
        if (driver.EventCreate(&pool->events_[i], 0) != kSuccess) {
            return nullptr;
        }
    }
    for (std::size_t i = 0; i < pairs; ++i) {
        pool->free_[pool->free_count_++] = static_cast<int>(pairs - 1 - i);
    }
    return pool;
}

int EventPool::take() noexcept {
    if (free_busy_.test_and_set(std::memory_order_acquire)) {
        return kNone;
    }
    const int pair = free_count_ > 0 ? free_[--free_count_] : kNone;
    free_busy_.clear(std::memory_order_release);
    if (pair != kNone) {
        in_use_.fetch_add(1, std::memory_order_relaxed);
    }
    return pair;
}

void EventPool::give_back(int pair) noexcept {
    while (free_busy_.test_and_set(std::memory_order_acquire)) {
        ::sched_yield();
    }
    free_[free_count_++] = pair;
    free_busy_.clear(std::memory_order_release);
    in_use_.fetch_sub(1, std::memory_order_relaxed);
}

bool EventPool::record(int event, Stream stream) noexcept {
    // A thread that has only used the runtime API may have no current context.
    const Current current(driver_, context_);
    return current &&
           driver_.EventRecord(events_[static_cast<std::size_t>(event)], stream) == kSuccess;
}

EventPool::Clock EventPool::set_clock() noexcept {
    const Current current(driver_, context_);
    if (!current) {
        return Clock::Refused;
    }
    std::int64_t best = -1;
    for (int i = 0; i < kClockReadings && (best < 0 || best > kGoodClock); ++i) {
        std::int64_t host = 0;
        std::int64_t took = 0;
        const Clock reading = read_clock(host, took);
        if (reading == Clock::Refused || (reading == Clock::Late && best < 0)) {
            return reading;
        }
        if (reading == Clock::Late) {
            break;  // the better of those before is good enough
        }
        if (best < 0 || took < best) {
            best = took;
            clock_host_ns_ = host;
            std::swap(clock_, next_clock_);
        }
    }
    return Clock::Set;
}

// With the other event: the pairs are measured from the one that was the quickest so far.
EventPool::Clock EventPool::read_clock(std::int64_t& host_ns, std::int64_t& took_ns) noexcept {
    const std::int64_t before = host_now();
    if (driver_.EventRecord(next_clock_, clock_stream_) != kSuccess) {
        return Clock::Refused;
    }
    for (;;) {
        const int state = driver_.EventQuery(next_clock_);
        const std::int64_t now = host_now();
        if (state == kSuccess) {
            took_ns = now - before;
            host_ns = before + took_ns / 2;
            return Clock::Set;
        }
        if (state != kNotReady) {
            return Clock::Refused;
        }
        if (now - before > kClockDeadline) {
            return Clock::Late;
        }
        if (now - before < kGoodClock) {
            ::sched_yield();
        } else {  // no good reading any more, and the core may be wanted
            const timespec pause{0, 100'000};
            ::nanosleep(&pause, nullptr);
        }
    }
}

bool EventPool::elapsed_since_clock(Event event, std::int64_t& host_ns) noexcept {
    float milliseconds = 0;
    if (driver_.EventElapsedTime(&milliseconds, clock_, event) != kSuccess) {
        return false;
    }
    host_ns = clock_host_ns_ + static_cast<std::int64_t>(static_cast<double>(milliseconds) * 1e6);
    return true;
}

EventPool::State EventPool::ended(int pair) noexcept {
    const int state = driver_.EventQuery(events_[2 * static_cast<std::size_t>(pair) + 1]);
    return state == kNotReady ? State::Pending : state == kSuccess ? State::Done : State::Failed;
}

// Of one that has ended.
EventPool::State EventPool::elapsed_between(int pair, std::int64_t& elapsed_ns) noexcept {
    const Event* const events = &events_[2 * static_cast<std::size_t>(pair)];
    float milliseconds = 0;
    if (driver_.EventElapsedTime(&milliseconds, events[0], events[1]) != kSuccess) {
        return State::Failed;
    }
    elapsed_ns = static_cast<std::int64_t>(static_cast<double>(milliseconds) * 1e6);
    return State::Done;
}

EventPool::State EventPool::resolve(int pair, std::int64_t& elapsed_ns) noexcept {
    const Current current(driver_, context_);
    const State state = current ? ended(pair) : State::Failed;
    return state == State::Done ? elapsed_between(pair, elapsed_ns) : state;
}

EventPool::State EventPool::resolve(int pair, std::int64_t& start_ns,
                                    std::int64_t& end_ns) noexcept {
    const Current current(driver_, context_);
    const State state = current ? ended(pair) : State::Failed;
    if (state != State::Done) {
        return state;
    }
    if (!elapsed_since_clock(events_[2 * static_cast<std::size_t>(pair)], start_ns)) {
        return State::Failed;
    }
    // Float milliseconds since the clock lose microseconds after minutes; the pair itself does not.
    std::int64_t elapsed_ns = 0;
    const State taken = elapsed_between(pair, elapsed_ns);
    end_ns = start_ns + elapsed_ns;
    return taken;
}

}  // namespace deft::cuda
