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
    // The ranks ask each other in so many iterations once, or in the fewest beyond that which are
    // whole periods: where an answer counts, no sum of the plan's is half made.
    static constexpr std::uint64_t kEvery = 8;

    // `needed`: the plan ends where a rank does not vouch for it. Else the ranks ask each other
    // only whether it is to end, or to change.
    Lease(std::uint32_t period, bool needed)
        : every_((kEvery + period - 1) / period * period), needed_(needed) {}

    // This rank vouches for the plan until then, in nanoseconds of CLOCK_MONOTONIC; 0: it does not.
    void vouch(std::int64_t until_ns) noexcept {
        until_ns_.store(until_ns, std::memory_order_relaxed);
    }
    // It does not any more, whatever is said from now on. Any thread.
    void withhold() noexcept { withheld_.store(true, std::memory_order_relaxed); }
    bool withheld() const noexcept { return withheld_.load(std::memory_order_relaxed); }
    // What this rank has said last.
    bool vouched() const noexcept { return vouched_.load(std::memory_order_relaxed); }

    // A plan ends so many iterations after a rank has stopped vouching, at most.
    std::uint64_t most_late() const { return every_ + kAfter; }
    bool asks(std::uint64_t iteration) const { return (iteration + kAfter) % every_ == 0; }
    bool hears(std::uint64_t iteration) const { return iteration > 0 && iteration % every_ == 0; }

    // What this rank says now. `switches`: it knows that the plan is to end, or to change.
    Ballot::Word word(bool switches) noexcept;

private:
    const std::uint64_t every_;
    const bool needed_;
    std::atomic<std::int64_t> until_ns_{0};
    std::atomic<bool> vouched_{true};
    std::atomic<bool> withheld_{false};
};

}  // namespace deft::executor
