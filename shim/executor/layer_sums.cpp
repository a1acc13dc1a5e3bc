// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/layer_sums.h"

#include <time.h>

#include <utility>

namespace deft::executor {
namespace {

thread_local constinit LeftSum t_left;

}  // namespace

LayerSums::LayerSums(const cuda::Execution& driver, cuda::Context context,
                     std::vector<std::uint64_t> lanes_of, std::uint32_t lanes)
    : driver_(driver),
      context_(context),
      lanes_(lanes),
      lanes_of_(std::move(lanes_of)),
      events_(lanes_of_.size() * lanes, nullptr),
      sent_(std::make_unique<std::atomic<std::uint64_t>[]>(lanes_of_.size())) {}

LayerSums* LayerSums::create(const cuda::Execution& driver, cuda::Context context,
                             std::vector<std::uint64_t> lanes_of, std::uint32_t lanes) {
    const cuda::Current current(*driver.driver, context);
    if (!current) {
        return nullptr;
    }
    auto* const sums = new LayerSums(driver, context, std::move(lanes_of), lanes);
    for (cuda::Event& event : sums->events_) {
        if (driver.driver->EventCreate(&event, cuda::kEventDisableTiming) != cuda::kSuccess) {
            event = nullptr;
            sums->release();
            return nullptr;
        }
    }
    return sums;
}

LayerSums::~LayerSums() {
    const cuda::Current current(*driver_.driver, context_);
    for (const cuda::Event event : events_) {
        if (event != nullptr && current) {
            driver_.EventDestroy(event);
        }
    }
}

void LayerSums::release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        delete this;
    }
}

LayerSums::Wait LayerSums::standing(std::uint32_t bucket, std::uint64_t iteration) const noexcept {
    return is_sent(bucket, iteration)              ? Wait::Waits
           : lost_.load(std::memory_order_acquire) ? Wait::Lost
                                                   : Wait::NotSent;
}

LayerSums::Wait LayerSums::wait(std::uint32_t bucket, std::uint64_t iteration,
                                cuda::Stream stream) noexcept {
    const Wait state = standing(bucket, iteration);
    const cuda::Current current(*driver_.driver, context_);
    for (std::uint32_t l = 0; l < lanes_ && state == Wait::Waits; ++l) {
        if (((lanes_of_[bucket] >> l) & 1) != 0 &&
            (!current || driver_.StreamWaitEvent(stream, summed(bucket, l), 0) != cuda::kSuccess)) {
            return Wait::Lost;
        }
    }
    return state;
}

// Kernels of a communicator that is aborted end, so the event comes.
LayerSums::Wait LayerSums::wait_here(std::uint32_t bucket, std::uint64_t iteration) noexcept {
    const Wait state = standing(bucket, iteration);
    const cuda::Current current(*driver_.driver, context_);
    for (std::uint32_t l = 0; l < lanes_ && state == Wait::Waits; ++l) {
        if (((lanes_of_[bucket] >> l) & 1) == 0) {
            continue;
        }
        int now = cuda::kNotReady;
        while (current &&
               (now = driver_.driver->EventQuery(summed(bucket, l))) == cuda::kNotReady) {
            const timespec pause{0, 50'000};
            ::nanosleep(&pause, nullptr);
        }
        if (now != cuda::kSuccess) {
            return Wait::Lost;
        }
    }
    return state;
}

void leave_sum(LayerSums& sums, std::uint32_t bucket, std::uint64_t iteration) noexcept {
    sums.retain();
    if (LayerSums* const before = std::exchange(t_left, {&sums, bucket, iteration}).sums) {
        before->release();
    }
}

LeftSum take_left_sum() noexcept {
    return std::exchange(t_left, {});
}

}  // namespace deft::executor
