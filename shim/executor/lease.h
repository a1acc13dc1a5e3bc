// SPDX-License-Identifier: Apache-2.0
// A plan goes on only as long as every rank wants it to. The ranks ask each other through NCCL
// itself, with one byte next to the gradients. NCCL's answer is the same on all ranks, so they end
// the plan, or change to another one, at the same call without another word. docs/director.md.
#pragma once

#include <atomic>
#include <cstdint>

#include "shim/executor/ballot.h"

namespace deft::executor {

// The hook's thread asks and hears, any thread vouches. All ranks ask in the same iterations.
class Lease {
public:
    // The answer to a question counts so many iterations later. Till then the device has long been
    // through.
    static constexpr std::uint64_t kAfter = 4;
    // The ranks hear each other every so many iterations, counted anew from the beginning of each
    // period (or of the fewest periods that are as long). What is left at its end is added to the
    // last of these intervals, so none is twice as long. More than kAfter: one question at a time.
    static constexpr std::uint64_t kEvery = 5;

    // `period`: of the plan, in iterations. Where one begins no sum is half made. `needed`: the
    // plan ends where a rank does not vouch for it. Else the ranks ask each other only whether it
    // is to end, or to change.
    Lease(std::uint32_t period, bool needed)
        : period_(period), round_((kEvery + period - 1) / period * period), needed_(needed) {}

    // This rank vouches for the plan until then, in nanoseconds of CLOCK_MONOTONIC; 0: it does not.
    void vouch(std::int64_t until_ns) noexcept {
        until_ns_.store(until_ns, std::memory_order_relaxed);
    }
    // It does not any more, whatever is said from now on. Any thread.
    void withhold() noexcept { withheld_.store(true, std::memory_order_relaxed); }
    bool withheld() const noexcept { return withheld_.load(std::memory_order_relaxed); }
    // What this rank has said last.
    bool vouched() const noexcept { return vouched_.load(std::memory_order_relaxed); }

    // The ranks hear each other again after so many iterations, at most.
    std::uint64_t interval() const { return kEvery + round_ % kEvery; }
    // A plan ends so many iterations after a rank has stopped vouching, at most.
    std::uint64_t most_late() const { return interval() + kAfter; }
    bool asks(std::uint64_t iteration) const { return hears(iteration + kAfter); }
    bool hears(std::uint64_t iteration) const {
        const std::uint64_t into = iteration % round_;
        return iteration > 0 && into % kEvery == 0 && (into == 0 || round_ - into >= kEvery);
    }

    // What this rank says now, in an iteration in which the ranks ask each other. `switches`: it
    // knows that the plan is to end, or to change. It says so only where the answer counts at the
    // beginning of a period.
    Ballot::Word word(std::uint64_t iteration, bool switches) noexcept;

private:
    const std::uint64_t period_;
    const std::uint64_t round_;  // iterations, whole periods; its end is heard
    const bool needed_;
    std::atomic<std::int64_t> until_ns_{0};
    std::atomic<bool> vouched_{true};
    std::atomic<bool> withheld_{false};
};

}  // namespace deft::executor
