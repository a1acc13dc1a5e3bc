// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/shadow.h"

#include <time.h>

#include "base/log.h"
#include "shim/cuda/event_pool.h"

namespace deft::executor {
namespace {

constexpr std::int64_t kMemoryDeadline = 10'000'000'000;  // ns
// Of the card's memory: left to the job, whose own need may grow. An allocation of its that fails
// ends it; without shadow memory it only goes on unplanned.
constexpr std::size_t kHeadroom = 20;  // one part of so many
constexpr std::int64_t kFreeDeadline = 5'000'000'000;

void nap() {
    const timespec pause{0, 200'000};
    ::nanosleep(&pause, nullptr);
}

}  // namespace

Shadow::Shadow(const cuda::Execution& driver, const Script& script, std::uint32_t extra_events)
    : driver_(driver), extra_at_(script.shadow_bytes) {
    lanes_ = script.lanes;
    const auto buckets = static_cast<std::uint32_t>(script.shapes.size());
    contents_.resize(script.slots.size());
    for (const Slot& slot : script.slots) {
        offsets_.push_back(slot.offset);
    }
    for (const Staging& staging : script.staging) {
        staging_.push_back(staging.offset);
    }
    ready_ = arrived_ + slots() * lanes_;
    done_ = ready_ + buckets;
    passed_ = done_ + buckets;
    extra_ = passed_ + lanes_;
    events_.resize(extra_ + extra_events, nullptr);
}

std::unique_ptr<Shadow> Shadow::create(const cuda::Execution& driver, int device,
                                       const Script& script, std::uint64_t most_bytes,
                                       std::uint64_t extra_bytes, std::uint32_t extra_events,
                                       std::string& problem) {
    if (script.shadow_bytes > most_bytes) {
        problem = "it needs " + std::to_string(script.shadow_bytes) +
                  " bytes of device memory, DEFT_MAX_SHADOW_BYTES allows " +
                  std::to_string(most_bytes);
        return nullptr;
    }
    std::unique_ptr<Shadow> shadow(new Shadow(driver, script, extra_events));
    shadow->context_ = cuda::primary_context(*driver.driver, device);
    const cuda::Current current(*driver.driver, shadow->context_);
    if (shadow->context_ == nullptr || !current) {
        problem = "device " + std::to_string(device) + " has no context";
        return nullptr;
    }
    // Making things must not break a capture of the job.
    const cuda::Relaxed relaxed(*driver.driver);
    const bool made = shadow->make_events(problem) &&
                      shadow->make_memory(script.shadow_bytes + extra_bytes, problem) &&
                      ((script.slots.empty() && extra_bytes == 0) ||
                       shadow->kernels_.load(driver, shadow->context_, shadow->stream_, problem));
    return made ? std::move(shadow) : nullptr;
}

bool Shadow::make_events(std::string& problem) {
    int result = driver_.driver->StreamCreate(&stream_, cuda::kStreamNonBlocking);
    for (cuda::Event& event : events_) {
        if (result == cuda::kSuccess) {
            result = driver_.driver->EventCreate(&event, cuda::kEventDisableTiming);
        }
    }
    if (result != cuda::kSuccess) {
        problem = "the driver refuses an event (CUDA error " + std::to_string(result) + ")";
    }
    return result == cuda::kSuccess;
}

bool Shadow::make_memory(std::uint64_t bytes, std::string& problem) {
    if (bytes == 0) {
        return true;
    }
    std::size_t free = 0;
    std::size_t total = 0;
    if (driver_.MemGetInfo != nullptr && driver_.MemGetInfo(&free, &total) == cuda::kSuccess &&
        (bytes > free || free - bytes < total / kHeadroom)) {
        problem = "it needs " + std::to_string(bytes) + " bytes of device memory, of which " +
                  std::to_string(free) + " are free and " + std::to_string(total / kHeadroom) +
                  " (5 % of the card) are left to the job";
        return false;
    }
    // From the stream-ordered pool: cuMemAlloc and cuMemFree may synchronise the device, and a
    // collective's kernel that waits for another rank would then hold up the job's own launches.
    int result = -1;
    if (driver_.MemAllocAsync != nullptr && driver_.MemFreeAsync != nullptr) {
        result = driver_.MemAllocAsync(&memory_, bytes, stream_);
        pooled_ = result == cuda::kSuccess;
    }
    if (!pooled_) {
        memory_ = 0;
        result = driver_.MemAlloc(&memory_, bytes);
    }
    if (result == cuda::kSuccess && pooled_) {
        const std::int64_t until = cuda::host_now() + kMemoryDeadline;
        while ((result = driver_.StreamQuery(stream_)) == cuda::kNotReady &&
               cuda::host_now() < until) {
            nap();
        }
    }
    if (result != cuda::kSuccess) {
        problem = "no " + std::to_string(bytes) + " bytes of device memory (CUDA error " +
                  std::to_string(result) + ")";
    }
    return result == cuda::kSuccess;
}

// `ordered`: the stream is behind everything that uses the memory.
bool Shadow::free_memory(bool ordered) noexcept {
    if (pooled_) {
        return ordered && driver_.MemFreeAsync(memory_, stream_) == cuda::kSuccess;
    }
    const std::int64_t until = cuda::host_now() + kFreeDeadline;
    int result = cuda::kNotReady;
    while (ordered && (result = driver_.StreamQuery(stream_)) == cuda::kNotReady &&
           cuda::host_now() < until) {
        nap();
    }
    return result == cuda::kSuccess && driver_.MemFree(memory_) == cuda::kSuccess;
}

Shadow::~Shadow() {
    const cuda::Current current(*driver_.driver, context_);
    if (context_ == nullptr || !current) {
        return;  // the driver is on its way out: the process' memory goes with it
    }
    const cuda::Relaxed relaxed(*driver_.driver);
    bool idle = stream_ != nullptr;
    for (const cuda::Event event : events_) {
        idle = idle && event != nullptr &&
               driver_.StreamWaitEvent(stream_, event, 0) == cuda::kSuccess;
    }
    if (memory_ != 0 && !free_memory(idle)) {
        DEFT_WARN("shadow memory cannot be given back");
    }
    for (const cuda::Event event : events_) {
        if (event != nullptr) {
            driver_.EventDestroy(event);
        }
    }
    if (stream_ != nullptr) {
        driver_.StreamDestroy(stream_);
    }
}

}  // namespace deft::executor
