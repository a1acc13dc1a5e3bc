// SPDX-License-Identifier: Apache-2.0
// A plan that delays or merges goes on only as long as every rank vouches for it, and ends where no
// rank makes the calls that it is for. The ranks ask each other through NCCL itself, with one byte
// next to the gradients. NCCL's answer is the same on all ranks, so they end the plan at the same
// call without another word. docs/director.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "shim/cuda/execution.h"
#include "shim/executor/nccl.h"

namespace deft::executor {

// What the ranks ask each other.
enum class Question : std::uint8_t {
    Vouches,  // does every rank vouch for the plan?
    Fits,     // does the first call of any rank fit the plan?
};

// The hook's thread asks and hears, any thread vouches. All ranks ask in the same iterations.
class Lease {
public:
    // Every so many iterations the ranks are asked; so many later their answer counts. Till then
    // the device has long been through.
    static constexpr std::uint64_t kEvery = 16;
    static constexpr std::uint64_t kAfter = 8;
    // A plan ends so many iterations after a rank has stopped vouching, at most.
    static constexpr std::uint64_t kMostLate = kEvery + kAfter;

    // What it needs of the device's memory, and of events.
    static constexpr std::uint64_t kDeviceBytes = 32;
    static constexpr std::uint32_t kEvents = 2;
    struct Events {
        cuda::Event told;   // behind the latest copy of either answer
        cuda::Event asked;  // behind the latest question that is not copied: it writes the memory
    };

    static std::unique_ptr<Lease> create(const cuda::Execution& driver, cuda::Context context,
                                         cuda::DevicePointer memory, const Events& events,
                                         std::string& problem);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    // This rank vouches for the plan until then, in nanoseconds of CLOCK_MONOTONIC; 0: it does not.
    void vouch(std::int64_t until_ns) noexcept {
        until_ns_.store(until_ns, std::memory_order_relaxed);
    }
    // It does not any more, whatever is said from now on. Any thread.
    void withhold() noexcept { withheld_.store(true, std::memory_order_relaxed); }
    bool withheld() const noexcept { return withheld_.load(std::memory_order_relaxed); }
    // What this rank has answered last.
    bool vouched() const noexcept { return vouched_.load(std::memory_order_relaxed); }

    static bool asks(std::uint64_t iteration) { return iteration % kEvery == 0 && iteration > 0; }
    static bool hears(std::uint64_t iteration) {
        return iteration % kEvery == kAfter && iteration > kEvery;
    }
    // Puts "does every rank vouch?" on a lane, and has the answer copied to this rank. NCCL's
    // result.
    int ask(const Nccl& nccl, deft_nccl_comm_t comm, cuda::Stream stream) noexcept;
    // Puts "does any rank's call fit?" on a lane; `fits`: this rank's does. The answer is copied
    // only for a rank that waits for it with arrived(). NCCL's result.
    int ask_for_fit(bool fits, const Nccl& nccl, deft_nccl_comm_t comm,
                    cuda::Stream stream) noexcept;
    // CUDA's word on whether the answer is there. The answer itself is the same on all ranks, so a
    // copy of it that CUDA refused is asked for again.
    int arrived(Question question, cuda::Stream stream) noexcept;
    // The answer, once it has arrived.
    bool yes(Question question) const noexcept { return answer_[index(question)] != 0; }

private:
    Lease(const cuda::Execution& driver, cuda::Context context, cuda::DevicePointer memory,
          const Events& events)
        : driver_(driver), context_(context), memory_(memory), events_(events) {}
    static constexpr std::size_t index(Question question) {
        return static_cast<std::size_t>(question);
    }
    int put(Question question, bool yes, const Nccl& nccl, deft_nccl_comm_t comm,
            cuda::Stream stream) noexcept;
    int tell(Question question, cuda::Stream stream) noexcept;

    const cuda::Execution& driver_;
    const cuda::Context context_;
    const cuda::DevicePointer memory_;
    const Events events_;
    volatile std::uint8_t* answer_ = nullptr;  // pinned; by question
    bool told_[2] = {true, true};              // the copy of the answer is on its way
    std::atomic<std::int64_t> until_ns_{0};
    std::atomic<bool> vouched_{true};
    std::atomic<bool> withheld_{false};
};

}  // namespace deft::executor
