// SPDX-License-Identifier: Apache-2.0
// The sums of a plan under which each layer of the job waits for its own (Barrier::Layer): who has
// called for one gets it by this, and not by the stream of the call.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "shim/cuda/execution.h"

namespace deft::executor {

// Of one executor. It outlives it for as long as somebody has yet to wait for a sum.
class LayerSums {
public:
    // `lanes_of`, for each bucket: bit l: lane l carries some of it. Null: the driver refuses.
    static LayerSums* create(const cuda::Execution& driver, cuda::Context context,
                             std::vector<std::uint64_t> lanes_of, std::uint32_t lanes);
    LayerSums(const LayerSums&) = delete;

    // Any thread. The last that releases it frees its events.
    void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
    void release() noexcept;

    // The thread of the gradient calls.

    // Happens when what the lane has been given of the bucket has been summed.
    cuda::Event summed(std::uint32_t bucket, std::uint32_t lane) const {
        return events_[bucket * lanes_ + lane];
    }
    // All lanes have been given all of it, of the iteration with this number, from 1, and the
    // events stand behind that.
    void sent(std::uint32_t bucket, std::uint64_t iteration) noexcept {
        sent_[bucket].store(iteration, std::memory_order_release);
    }
    bool is_sent(std::uint32_t bucket, std::uint64_t iteration) const noexcept {
        return sent_[bucket].load(std::memory_order_acquire) >= iteration;
    }
    // What is not sent by now never will be. Any thread.
    void lose() noexcept { lost_.store(true, std::memory_order_release); }

    // Any thread: the stream waits for the sum.
    enum class Wait : std::uint8_t { Waits, NotSent, Lost };
    Wait wait(std::uint32_t bucket, std::uint64_t iteration, cuda::Stream stream) noexcept;
    // This thread waits, where what was sent arrives or its communicator is aborted.
    Wait wait_here(std::uint32_t bucket, std::uint64_t iteration) noexcept;

private:
    LayerSums(const cuda::Execution& driver, cuda::Context context,
              std::vector<std::uint64_t> lanes_of, std::uint32_t lanes);
    ~LayerSums();
    Wait standing(std::uint32_t bucket, std::uint64_t iteration) const noexcept;

    const cuda::Execution& driver_;
    const cuda::Context context_;
    const std::uint32_t lanes_;
    const std::vector<std::uint64_t> lanes_of_;
    std::vector<cuda::Event> events_;
    std::unique_ptr<std::atomic<std::uint64_t>[]> sent_;  // by bucket: iteration
    std::atomic<std::uint32_t> references_{1};
    std::atomic<bool> lost_{false};
};

// A sum that a call has left to its caller to wait for.
struct LeftSum {
    LayerSums* sums = nullptr;  // null: none; else a reference of its own
    std::uint32_t bucket = 0;
    std::uint64_t iteration = 0;
};

// Of this thread: what its last call left, in the place of what nobody has taken.
void leave_sum(LayerSums& sums, std::uint32_t bucket, std::uint64_t iteration) noexcept;
// The caller's from then on, with its reference.
LeftSum take_left_sum() noexcept;

}  // namespace deft::executor
