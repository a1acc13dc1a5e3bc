// SPDX-License-Identifier: Apache-2.0
// What a lane is asked for before a plan uses it. All of it is launched at one place among the
// job's calls, the same on all ranks: a thread of its own may launch on one rank before, and on
// another behind, a call that waits for the whole device (cudaFree), and the two would wait for
// each other.
#include <time.h>

#include <algorithm>
#include <utility>

#include "shim/cuda/pinned_pool.h"
#include "shim/executor/lanes.h"

namespace deft::executor {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kSmallest = 64 * 1024;         // of a rehearsal, but for one element
constexpr std::size_t kMost = 64 * 1024 * 1024;      // bytes of all ranks
constexpr std::size_t kChecked[] = {4, 256 * 1024};  // at most, and the configured size
constexpr std::size_t kTimedSmall = 256 * 1024;
constexpr std::size_t kTimedLarge = 4 * 1024 * 1024;

}  // namespace

bool Lane::prepare_trials(const Trials& trials, std::string& problem) noexcept {
    if (!ready() || run_ != nullptr) {
        return failed(problem, "a lane that is not open", DEFT_NCCL_INVALID_USAGE);
    }
    try {
        run_ = std::make_unique<TrialRun>();
        run_->trials = trials;
        plan_trials(*run_);
    } catch (...) {
        return failed(problem, "its trials", DEFT_NCCL_SYSTEM_ERROR);
    }
    TrialRun& run = *run_;
    const std::size_t timed = trials.timed ? kTimedLarge : 0;
    const std::size_t bytes = std::max({run.largest, run.checked.back(), timed});
    const cuda::Current current(*driver_.driver, context_);
    const cuda::Relaxed relaxed(*driver_.driver);
    run.pooled = current && driver_.MemAllocAsync != nullptr && driver_.MemFreeAsync != nullptr &&
                 driver_.MemAllocAsync(&run.memory, bytes, stream_) == cuda::kSuccess;
    bool good = current && (run.pooled || driver_.MemAlloc(&run.memory, bytes) == cuda::kSuccess);
    void* words = nullptr;
    good = good && cuda::PinnedPool::process().take(driver_, context_, kTrialSums * 4, words) ==
                       cuda::kSuccess;
    run.words = static_cast<std::uint32_t*>(words);
    for (cuda::Event& mark : run.marks) {
        good = good && driver_.driver->EventCreate(&mark, 0) == cuda::kSuccess;
    }
    good =
        good && driver_.driver->EventCreate(&run.over, cuda::kEventDisableTiming) == cuda::kSuccess;
    if (!good) {
        drop_trials(true);
        return failed(problem, "its trials", DEFT_NCCL_UNHANDLED_CUDA_ERROR);
    }
    trial_state_.store(TrialState::Prepared, std::memory_order_release);
    return true;
}

void Lane::plan_trials(TrialRun& run) const {
    const std::size_t checked = std::max<std::size_t>(config_.warm_up_bytes / 4 * 4, 4);
    run.checked = {std::min(kChecked[0], checked), std::min(kChecked[1], checked), checked};
    // One number of each rank, at least.
    constexpr std::size_t kWidest = 8;
    run.largest = std::max(std::clamp(run.trials.largest, kSmallest / 64, kMost),
                           kWidest * static_cast<std::size_t>(nranks_));
    // What the ranks ask each other is rehearsed, too.
    run.rehearsal.push_back({{DEFT_NCCL_UINT8, DEFT_NCCL_MIN, 1}, 1});
    for (const Reduction& kind : run.trials.kinds) {
        run.rehearsal.push_back({kind, kind.element});
        for (std::size_t bytes = kSmallest; bytes < run.largest; bytes *= 4) {
            run.rehearsal.push_back({kind, bytes});
        }
        run.rehearsal.push_back({kind, run.largest});
    }
}

// In place. `bytes`: of all ranks.
int Lane::make_call(const TrialRun& run, const Reduction& kind, std::size_t bytes) noexcept {
    auto* const all = reinterpret_cast<void*>(run.memory);
    const std::size_t count =
        std::max<std::size_t>(bytes / kind.element / static_cast<std::size_t>(nranks_), 1);
    auto* const own = reinterpret_cast<void*>(run.memory + static_cast<std::size_t>(rank_) * count *
                                                               kind.element);
    switch (kind.function) {
        case Function::ReduceScatter:
            return nccl_.ReduceScatter(all, own, count, kind.type, kind.op, run.comm, stream_);
        case Function::AllGather:
            return nccl_.AllGather(own, all, count, kind.type, run.comm, stream_);
        default:
            return nccl_.AllReduce(all, all, bytes / kind.element, kind.type, kind.op, run.comm,
                                   stream_);
    }
}

// Which step it was that failed; the first of them counts.
bool Lane::note(const char* step, int result) noexcept {
    if (run_->result == DEFT_NCCL_SUCCESS) {
        run_->step = step;
        run_->result = stop_.load() ? DEFT_NCCL_INVALID_USAGE : result;
    }
    return run_->result == DEFT_NCCL_SUCCESS;
}

// Ones of every rank: the sum tells how many ranks took part. NCCL connects for an algorithm and
// protocol when a size first needs them.
bool Lane::launch_checked(TrialRun& run) noexcept {
    constexpr const char* kStep = "its first all-reduce";
    auto* const buffer = reinterpret_cast<void*>(run.memory);
    bool good = true;
    for (std::size_t i = 0; good && i < kTrialSums; ++i) {
        const std::size_t bytes = run.checked[i];
        good = note(kStep, driver_.MemsetD8Async(run.memory, 1, bytes, stream_) == cuda::kSuccess
                               ? DEFT_NCCL_SUCCESS
                               : DEFT_NCCL_UNHANDLED_CUDA_ERROR) &&
               note(kStep, nccl_.AllReduce(buffer, buffer, bytes / 4, DEFT_NCCL_UINT32,
                                           DEFT_NCCL_SUM, run.comm, stream_)) &&
               note(kStep, driver_.MemcpyDtoHAsync(run.words + i, run.memory + bytes - 4, 4,
                                                   stream_) == cuda::kSuccess
                               ? DEFT_NCCL_SUCCESS
                               : DEFT_NCCL_UNHANDLED_CUDA_ERROR);
    }
    return good;
}

bool Lane::launch_rehearsal(TrialRun& run) noexcept {
    constexpr const char* kStep = "its rehearsal";
    const bool zeroed =
        driver_.MemsetD8Async(run.memory, 0, run.largest, stream_) == cuda::kSuccess;
    return note(kStep, zeroed ? DEFT_NCCL_SUCCESS : DEFT_NCCL_UNHANDLED_CUDA_ERROR) &&
           std::all_of(run.rehearsal.begin(), run.rehearsal.end(), [&](const TrialCall& call) {
               return note(kStep, make_call(run, call.kind, call.bytes));
           });
}

// One behind the other: from the end of the first on all ranks are there. Sizes take turns, so that
// calls of each lie all over the time that it takes.
bool Lane::launch_timed(TrialRun& run) noexcept {
    constexpr const char* kStep = "measuring it";
    auto* const buffer = reinterpret_cast<void*>(run.memory);
    const auto mark = [&](std::size_t i) {
        return note(kStep, driver_.driver->EventRecord(run.marks[i], stream_) == cuda::kSuccess
                               ? DEFT_NCCL_SUCCESS
                               : DEFT_NCCL_UNHANDLED_CUDA_ERROR);
    };
    bool good = mark(0);
    for (std::size_t i = 0; good && i < kTimed; ++i) {
        const std::size_t bytes = is_large(i) ? kTimedLarge : kTimedSmall;
        good = note(kStep, nccl_.AllReduce(buffer, buffer, bytes / 4, DEFT_NCCL_UINT32,
                                           DEFT_NCCL_SUM, run.comm, stream_)) &&
               mark(i + 1);
    }
    return good;
}

// The last of each round.
bool Lane::is_large(std::size_t timed) noexcept {
    return timed % (kSmall + 1) == kSmall;
}

cuda::Event Lane::launch_trials(cuda::Event after) noexcept {
    cuda::Event over = nullptr;
    users_.fetch_add(1);  // for all of it: what is launched must not be freed meanwhile
    TrialState prepared = TrialState::Prepared;
    const deft_nccl_comm_t comm =
        this->comm();  // once: an abort takes it away, then waits for this
    if (comm != nullptr && !stop_.load() &&
        trial_state_.compare_exchange_strong(prepared, TrialState::Launching)) {
        TrialRun& run = *run_;
        run.comm = comm;
        const cuda::Current current(*driver_.driver, context_);
        const cuda::Relaxed relaxed(*driver_.driver);
        const bool good =
            note("its context", current ? DEFT_NCCL_SUCCESS : DEFT_NCCL_UNHANDLED_CUDA_ERROR) &&
            note("its turn",
                 after == nullptr || driver_.StreamWaitEvent(stream_, after, 0) == cuda::kSuccess
                     ? DEFT_NCCL_SUCCESS
                     : DEFT_NCCL_UNHANDLED_CUDA_ERROR) &&
            launch_checked(run) && launch_rehearsal(run) &&
            (!run.trials.timed || launch_timed(run));
        if (good && driver_.driver->EventRecord(run.over, stream_) == cuda::kSuccess) {
            over = run.over;
        }
        run.launched = Clock::now();
        trial_state_.store(good ? TrialState::Launched : TrialState::Refused,
                           std::memory_order_release);
    }
    users_.fetch_sub(1);
    return over;
}

TrialState Lane::look_at_trials(LaneSpeed& speed, std::string& problem) noexcept {
    const TrialState state = trials();
    const auto refuse = [&](const char* step, int result) {
        failed(problem, step, result);
        trial_state_.store(TrialState::Refused, std::memory_order_release);
        return TrialState::Refused;
    };
    if (state == TrialState::Refused) {
        return refuse(run_->step, run_->result);
    }
    if (state != TrialState::Launched) {
        return state;
    }
    const cuda::Current current(*driver_.driver, context_);
    const cuda::Relaxed relaxed(*driver_.driver);
    const int idle = current ? driver_.StreamQuery(stream_) : cuda::kNotReady + 1;
    if (idle == cuda::kNotReady) {
        // NCCL leaves a transfer that cannot go on where it is until its communicator is aborted.
        const bool over = stop_.load() || error() != DEFT_NCCL_SUCCESS ||
                          Clock::now() >= run_->launched + config_.deadline;
        return over ? refuse("its trials", DEFT_NCCL_SUCCESS) : TrialState::Launched;
    }
    if (idle != cuda::kSuccess) {
        return refuse("its trials", DEFT_NCCL_UNHANDLED_CUDA_ERROR);
    }
    const std::uint32_t right = 0x01010101U * static_cast<std::uint32_t>(nranks_);
    if (!std::all_of(run_->words, run_->words + kTrialSums,
                     [right](std::uint32_t word) { return word == right; })) {
        return refuse("its first all-reduce", DEFT_NCCL_INTERNAL_ERROR);
    }
    if (run_->trials.timed && !take_times(speed)) {
        return refuse("measuring it", DEFT_NCCL_UNHANDLED_CUDA_ERROR);
    }
    drop_trials(true);
    trial_state_.store(TrialState::Good, std::memory_order_release);
    return TrialState::Good;
}

// The shortest of each size counts.
bool Lane::take_times(LaneSpeed& speed) noexcept {
    const TrialRun& run = *run_;
    double small = 1e30;  // seconds
    double large = 1e30;
    for (std::size_t i = 0; i < kTimed; ++i) {
        float ms = 0;
        if (driver_.driver->EventElapsedTime(&ms, run.marks[i], run.marks[i + 1]) !=
            cuda::kSuccess) {
            return false;
        }
        double& least = is_large(i) ? large : small;
        least = std::min(least, static_cast<double>(ms) / 1e3);
    }
    speed = speed_from(kTimedSmall, small, kTimedLarge, large);
    return true;
}

bool Lane::try_now(const Trials& trials, LaneSpeed& speed, std::string& problem) noexcept {
    if (!prepare_trials(trials, problem)) {
        return false;
    }
    launch_trials();
    TrialState state = look_at_trials(speed, problem);
    while (state == TrialState::Launched) {
        const timespec pause{0, 100'000};
        ::nanosleep(&pause, nullptr);
        state = look_at_trials(speed, problem);
    }
    return state == TrialState::Good;
}

// The context is current. Idle: nothing is in flight that may still use the memory. Else what is
// not of the pool stays: to free it would wait for that, and a copy may yet write into the words.
void Lane::drop_trials(bool idle) noexcept {
    // No hook begins to launch them from here on.
    TrialState prepared = TrialState::Prepared;
    trial_state_.compare_exchange_strong(prepared, TrialState::None);
    while (users_.load() > 0) {
        const timespec pause{0, 500'000};
        ::nanosleep(&pause, nullptr);  // they are being launched, or were released by an abort
    }
    const std::unique_ptr<TrialRun> run = std::move(run_);
    if (run == nullptr) {
        return;
    }
    if (run->pooled) {
        driver_.MemFreeAsync(run->memory, stream_);
    } else if (idle && run->memory != 0) {
        driver_.MemFree(run->memory);
    }
    if (idle && run->words != nullptr) {
        cuda::PinnedPool::process().give_back(run->words);
    }
    for (cuda::Event& mark : run->marks) {
        if (mark != nullptr) {
            driver_.EventDestroy(mark);
        }
    }
    if (run->over != nullptr) {
        driver_.EventDestroy(run->over);
    }
}

void Lane::free_trials() noexcept {
    if (run_ == nullptr || comm() != nullptr || aborting_.load() > 0 || users_.load() > 0) {
        return;
    }
    const cuda::Current current(*driver_.driver, context_);
    const cuda::Relaxed relaxed(*driver_.driver);
    if (current && stream_ != nullptr && driver_.StreamQuery(stream_) == cuda::kSuccess) {
        drop_trials(true);
    }
}

LaneSpeed speed_from(std::size_t small_bytes, double small_seconds, std::size_t large_bytes,
                     double large_seconds) noexcept {
    // Of the time of the large one its bytes take so much, whatever the noise says.
    constexpr double kLeast = 0.1;
    LaneSpeed speed;
    speed.per_byte = std::max(large_seconds - small_seconds, large_seconds * kLeast) /
                     static_cast<double>(large_bytes - small_bytes);
    speed.start = std::max(small_seconds - speed.per_byte * static_cast<double>(small_bytes), 0.0);
    return speed;
}

}  // namespace deft::executor
