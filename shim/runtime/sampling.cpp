// SPDX-License-Identifier: Apache-2.0
// The background thread's part that times calls: which are given a pair of events, and what those
// say.
#include <algorithm>
#include <memory>

#include "base/log.h"
#include "shim/control/directors.h"
#include "shim/cuda/event_pool.h"
#include "shim/runtime/background_thread.h"
#include "shim/settings/mode.h"
#include "shim/settings/settings.h"

namespace deft {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kClockRetry = 1'000 * kMillisecond;  // the first; each is twice the last
constexpr std::uint32_t kClockDoublings = 6;
constexpr std::int64_t kGiveUp = 60'000 * kMillisecond;  // on events that never happen

// Sampling: the first iterations are all timed, so that a short job has figures; then three of
// about 32, so that the median call pays nothing.
constexpr std::uint64_t kEarlyIterations = 24;
constexpr std::uint64_t kWindowEvery = 32;
constexpr std::size_t kEarlyWindow = 8;
constexpr std::size_t kLateWindow = 3;
constexpr std::size_t kMinPairs = 256;
constexpr std::size_t kMaxPairs = 4096;
// Calls of trials that have been made and not looked at yet; of more no time is known.
constexpr std::size_t kTrialPairs = 256;

}  // namespace

int BackgroundThread::sample(int device, cuda::EventPool*& pool) noexcept {
    if (device < 0 || device >= kMaxDevices) {
        return cuda::EventPool::kNone;
    }
    Sampling& sampling = sampling_[static_cast<std::size_t>(device)];
    if (sampling.calls_left.load(std::memory_order_relaxed) <= 0 ||
        sampling.calls_left.fetch_sub(1, std::memory_order_acq_rel) <= 0) {
        return cuda::EventPool::kNone;
    }
    pool = sampling.pool.load(std::memory_order_acquire);
    return pool != nullptr ? pool->take() : cuda::EventPool::kNone;
}

int BackgroundThread::trial_pair(int device, cuda::EventPool*& pool) noexcept {
    if (device < 0 || device >= kMaxDevices) {
        return cuda::EventPool::kNone;
    }
    pool = sampling_[static_cast<std::size_t>(device)].trials.load(std::memory_order_acquire);
    return pool != nullptr ? pool->take() : cuda::EventPool::kNone;
}

// True while times of trials are outstanding.
bool BackgroundThread::resolve_trials(int device, Rank& rank) {
    while (!rank.trials.empty()) {
        auto& [seen, events] = rank.trials.front();
        cuda::EventPool* const pool = sampling_[static_cast<std::size_t>(device)].trials.load();
        std::int64_t elapsed = 0;
        const auto state = pool->resolve(events, elapsed);
        if (state == cuda::EventPool::State::Pending) {
            if (cuda::host_now() - seen.issued_ns <= kGiveUp) {
                return true;
            }
            pool->abandon();
        } else {
            pool->give_back(events);
            seen.elapsed_ns = state == cuda::EventPool::State::Done ? elapsed : -1;
        }
        rank.seen.push_back(seen);
        rank.trials.pop_front();
    }
    return false;
}

// Fills in the times that have become known; true while some are outstanding.
bool BackgroundThread::resolve(int device, Rank& rank) {
    bool outstanding = false;
    int pending = 0;
    for (Track::Waiting& waiting : rank.track.waiting()) {
        if (waiting.events < 0) {
            continue;
        }
        cuda::EventPool* const pool = sampling_[static_cast<std::size_t>(device)].pool.load();
        const auto state = pool->resolve(waiting.events, waiting.call.start, waiting.call.end);
        if (state == cuda::EventPool::State::Pending) {
            outstanding = true;
            if (cuda::host_now() - waiting.seen_ns > kGiveUp) {
                waiting.events = -1;
                pool->abandon();
            } else if (++pending == 8) {
                break;
            }
            continue;
        }
        waiting.call.timed = state == cuda::EventPool::State::Done;
        rank.timed += waiting.call.timed ? 1 : 0;
        pool->give_back(waiting.events);
        waiting.events = -1;
    }
    rank.track.settle();
    return outstanding;
}

bool BackgroundThread::prepare_pool(int device, Rank& rank) {
    Sampling& sampling = sampling_[static_cast<std::size_t>(device)];
    const std::size_t cycle = rank.track.cycle_length();
    cuda::EventPool* const pool = sampling.pool.load();
    if (pool != nullptr && (2 * cycle <= pool->size() || pool->size() == kMaxPairs)) {
        return 2 * cycle <= pool->size();
    }
    const cuda::Driver* const driver = cuda::Driver::get();
    std::unique_ptr<cuda::EventPool> made;
    if (driver != nullptr) {
        made =
            cuda::EventPool::create(*driver, device, std::clamp(8 * cycle, kMinPairs, kMaxPairs));
    }
    if (made == nullptr) {
        rank.no_events = true;
        DEFT_WARN("no CUDA events on device %d (%s): the report has no transfer times", device,
                  driver == nullptr ? "libcuda.so.1 is not loaded" : "the driver refuses them");
        return false;
    }
    if (pool != nullptr) {
        rank.outgrown.push_back(pool);  // or leak checkers take it for lost
    } else if (plans(shim_mode()) && director::tuner_allowed()) {
        // Without it nothing is found out of the tuner's trials, and NCCL's own choices stand.
        sampling.trials.store(cuda::EventPool::create(*driver, device, kTrialPairs).release(),
                              std::memory_order_release);
    }
    sampling.pool.store(made.release(), std::memory_order_release);
    return true;
}

void BackgroundThread::open_window(int device, Rank& rank) {
    if (!rank.track.stable() || device < 0 || device >= kMaxDevices || rank.no_events) {
        if (device >= 0 && device < kMaxDevices && !rank.track.stable()) {
            sampling_[static_cast<std::size_t>(device)].calls_left = 0;
        }
        return;
    }
    Sampling& sampling = sampling_[static_cast<std::size_t>(device)];
    const cuda::EventPool* const used = sampling.pool.load();
    if (cuda::host_now() < rank.clock_retry_ns || sampling.calls_left.load() > 0 ||
        (used != nullptr && used->in_use() > 0)) {
        return;
    }
    const CallTimes& profile = *rank.track.current_profile();
    const bool early = profile.exposed_ms().count() < kEarlyIterations;
    const bool same_cycle = profile.iterations() >= rank.iterations_at_window;
    if (!early && same_cycle && profile.iterations() < rank.iterations_at_window + kWindowEvery) {
        return;
    }
    if (!prepare_pool(device, rank) || !set_clock(device, rank)) {
        return;
    }
    // One iteration more than wanted: the window opens anywhere in the cycle, and an iteration is
    // measured from the end of the one before.
    const std::size_t cycle = rank.track.cycle_length();
    const std::size_t calls = ((early ? kEarlyWindow : kLateWindow) + 1) * cycle;
    rank.iterations_at_window = profile.iterations();
    sampling.calls_left.store(static_cast<int>(std::min(calls, sampling.pool.load()->size())),
                              std::memory_order_release);
}

// False: events of this device have no times, now or at all.
bool BackgroundThread::set_clock(int device, Rank& rank) {
    const cuda::EventPool::Clock clock =
        sampling_[static_cast<std::size_t>(device)].pool.load()->set_clock();
    if (clock == cuda::EventPool::Clock::Late) {
        rank.clock_retry_ns = cuda::host_now() + (kClockRetry << rank.clocks_late);
        rank.clocks_late = std::min(rank.clocks_late + 1, kClockDoublings);
        return false;
    }
    rank.clocks_late = 0;
    if (clock == cuda::EventPool::Clock::Refused) {
        rank.no_events = true;
        DEFT_WARN("CUDA events on device %d do not work: the report has no transfer times", device);
        return false;
    }
    return true;
}

}  // namespace deft
