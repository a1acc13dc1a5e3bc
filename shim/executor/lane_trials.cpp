// SPDX-License-Identifier: Apache-2.0
// A lane's own all-reduces: it is warmed up and measured with them.
#include <algorithm>
#include <thread>

#include "shim/cuda/pinned_pool.h"
#include "shim/executor/lanes.h"

namespace deft::executor {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

bool Lane::sum_is_right(cuda::DevicePointer memory, std::size_t bytes, std::uint32_t* last,
                        std::string& problem) noexcept {
    // Ones of every rank: the sum tells how many ranks took part.
    const auto until = Clock::now() + config_.deadline;
    users_.fetch_add(1);
    int result = stop_.load() ? DEFT_NCCL_INVALID_USAGE : DEFT_NCCL_SUCCESS;
    if (result == DEFT_NCCL_SUCCESS &&
        driver_.MemsetD8Async(memory, 1, bytes, stream_) != cuda::kSuccess) {
        result = DEFT_NCCL_UNHANDLED_CUDA_ERROR;
    }
    if (result == DEFT_NCCL_SUCCESS) {
        auto* const buffer = reinterpret_cast<void*>(memory);
        result = nccl_.AllReduce(buffer, buffer, bytes / 4, DEFT_NCCL_UINT32, DEFT_NCCL_SUM, comm(),
                                 stream_);
    }
    users_.fetch_sub(1);
    if (result != DEFT_NCCL_SUCCESS) {
        return failed(problem, "its first all-reduce", result);
    }
    if (driver_.MemcpyDtoHAsync(last, memory + bytes - 4, 4, stream_) != cuda::kSuccess ||
        !idle_by(until)) {
        return failed(problem, "its first all-reduce", 0);
    }
    if (*last != 0x01010101U * static_cast<std::uint32_t>(nranks_)) {
        return failed(problem, "its first all-reduce", DEFT_NCCL_INTERNAL_ERROR);
    }
    return true;
}

// The context is the lane's, and a capture elsewhere is not disturbed, while one lives.
class Lane::Scratch {
public:
    Scratch(const cuda::Execution& driver, cuda::Context context, cuda::Stream stream,
            std::size_t bytes)
        : driver_(driver),
          current_(*driver.driver, context),
          relaxed_(*driver.driver),
          stream_(stream) {
        pooled_ = current_ && driver_.MemAllocAsync != nullptr && driver_.MemFreeAsync != nullptr &&
                  driver_.MemAllocAsync(&memory_, bytes, stream_) == cuda::kSuccess;
        good_ = current_ && (pooled_ || driver_.MemAlloc(&memory_, bytes) == cuda::kSuccess);
    }
    ~Scratch() {
        if (pooled_) {
            driver_.MemFreeAsync(memory_, stream_);
        } else if (good_ && idle_) {
            driver_.MemFree(memory_);
        }
    }
    Scratch(const Scratch&) = delete;
    explicit operator bool() const { return good_; }
    cuda::DevicePointer memory() const { return memory_; }
    // Something may still use it, and freeing it outside the pool would wait for that.
    void keep() { idle_ = false; }

private:
    const cuda::Execution& driver_;
    const cuda::Current current_;
    const cuda::Relaxed relaxed_;
    const cuda::Stream stream_;
    cuda::DevicePointer memory_ = 0;
    bool pooled_ = false;
    bool good_ = false;
    bool idle_ = true;
};

bool Lane::warm_up(std::string& problem) noexcept {
    if (!ready()) {
        return failed(problem, "a lane that is not open", DEFT_NCCL_INVALID_USAGE);
    }
    const std::size_t largest = std::max<std::size_t>(config_.warm_up_bytes / 4 * 4, 4);
    Scratch scratch(driver_, context_, stream_, largest);
    bool good =
        scratch && (word_ != nullptr || cuda::PinnedPool::process().take(driver_, context_, kWord,
                                                                         word_) == cuda::kSuccess);
    if (!good) {
        return failed(problem, "its first all-reduce", DEFT_NCCL_UNHANDLED_CUDA_ERROR);
    }
    // NCCL connects for an algorithm and protocol when a size first needs them.
    for (const std::size_t bytes : {std::size_t{4}, std::size_t{256} * 1024, largest}) {
        good = good && sum_is_right(scratch.memory(), std::min(bytes, largest),
                                    static_cast<std::uint32_t*>(word_), problem);
    }
    if (!good) {
        scratch.keep();
    }
    return good;
}

// In place. `bytes`: of all ranks.
int Lane::make_call(cuda::DevicePointer memory, const Reduction& kind, std::size_t bytes) noexcept {
    auto* const all = reinterpret_cast<void*>(memory);
    const std::size_t count =
        std::max<std::size_t>(bytes / kind.element / static_cast<std::size_t>(nranks_), 1);
    auto* const own =
        reinterpret_cast<void*>(memory + static_cast<std::size_t>(rank_) * count * kind.element);
    switch (kind.function) {
        case Function::ReduceScatter:
            return nccl_.ReduceScatter(all, own, count, kind.type, kind.op, comm(), stream_);
        case Function::AllGather:
            return nccl_.AllGather(own, all, count, kind.type, comm(), stream_);
        default:
            return nccl_.AllReduce(all, all, bytes / kind.element, kind.type, kind.op, comm(),
                                   stream_);
    }
}

bool Lane::ends(cuda::DevicePointer memory, const Reduction& kind, std::size_t bytes,
                std::string& problem) noexcept {
    const auto until = Clock::now() + config_.deadline;
    users_.fetch_add(1);
    const int result = stop_.load() ? DEFT_NCCL_INVALID_USAGE : make_call(memory, kind, bytes);
    users_.fetch_sub(1);
    return (result == DEFT_NCCL_SUCCESS && idle_by(until)) ||
           failed(problem, "its rehearsal", result);
}

bool Lane::rehearse(std::span<const Reduction> kinds, std::size_t largest,
                    std::string& problem) noexcept {
    constexpr std::size_t kSmall = 64 * 1024;
    constexpr std::size_t kMost = 64 * 1024 * 1024;
    if (!ready()) {
        return failed(problem, "a lane that is not open", DEFT_NCCL_INVALID_USAGE);
    }
    // One number of each rank, at least.
    constexpr std::size_t kWidest = 8;
    largest = std::max(std::clamp(largest, kSmall / 64, kMost),
                       kWidest * static_cast<std::size_t>(nranks_));
    Scratch scratch(driver_, context_, stream_, largest);
    if (!scratch ||
        driver_.MemsetD8Async(scratch.memory(), 0, largest, stream_) != cuda::kSuccess) {
        return failed(problem, "its rehearsal", DEFT_NCCL_UNHANDLED_CUDA_ERROR);
    }
    // And what the ranks ask each other.
    bool good = ends(scratch.memory(), {DEFT_NCCL_UINT8, DEFT_NCCL_MIN, 1}, 1, problem);
    for (const Reduction& kind : kinds) {
        good = good && ends(scratch.memory(), kind, kind.element, problem);
        for (std::size_t bytes = kSmall; good && bytes < largest; bytes *= 4) {
            good = ends(scratch.memory(), kind, bytes, problem);
        }
        good = good && ends(scratch.memory(), kind, largest, problem);
    }
    if (!good) {
        scratch.keep();
    }
    return good;
}

// Seconds the shortest of some all-reduces takes; below 0: `problem` says why not. One at a time:
// with several in flight and NCCL_LAUNCH_ORDER_IMPLICIT, a transfer of the job between them on one
// rank and before them on another would close a circle.
double Lane::seconds_of(cuda::DevicePointer memory, std::size_t bytes, int times,
                        std::chrono::milliseconds pause, std::string& problem) noexcept {
    auto* const buffer = reinterpret_cast<void*>(memory);
    double least = -1;
    for (int i = 0; i < times; ++i) {
        const auto start = Clock::now();
        users_.fetch_add(1);
        const int result = stop_.load()
                               ? DEFT_NCCL_INVALID_USAGE
                               : nccl_.AllReduce(buffer, buffer, bytes / 4, DEFT_NCCL_UINT32,
                                                 DEFT_NCCL_SUM, comm(), stream_);
        users_.fetch_sub(1);
        if (result != DEFT_NCCL_SUCCESS || !idle_by(start + config_.deadline)) {
            failed(problem, "measuring it", result);
            return -1;
        }
        const double took = std::chrono::duration<double>(Clock::now() - start).count();
        least = least < 0 ? took : std::min(least, took);
        std::this_thread::sleep_for(pause);
    }
    return least;
}

bool Lane::measure(LaneSpeed& speed, std::string& problem,
                   std::chrono::milliseconds pause) noexcept {
    constexpr std::size_t kSmall = 256 * 1024;
    constexpr std::size_t kLarge = 4 * 1024 * 1024;
    constexpr int kTimes = 4;  // the first may find other ranks not yet here
    const int times = pause.count() > 0 ? 4 * kTimes : kTimes;
    if (!ready()) {
        return failed(problem, "a lane that is not open", DEFT_NCCL_INVALID_USAGE);
    }
    Scratch scratch(driver_, context_, stream_, kLarge);
    if (!scratch || driver_.MemsetD8Async(scratch.memory(), 0, kLarge, stream_) != cuda::kSuccess) {
        return failed(problem, "measuring it", DEFT_NCCL_UNHANDLED_CUDA_ERROR);
    }
    const double small = seconds_of(scratch.memory(), kSmall, times, pause, problem);
    const double large =
        small < 0 ? -1 : seconds_of(scratch.memory(), kLarge, kTimes, pause, problem);
    if (large < 0) {
        scratch.keep();
        return false;
    }
    speed = speed_from(kSmall, small, kLarge, large);
    return true;
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
