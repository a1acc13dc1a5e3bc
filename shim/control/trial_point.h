// SPDX-License-Identifier: Apache-2.0
// The call of the job at which every rank launches the trials of its new lanes. The hooks' side: it
// has no lock, and waits only at a call that was named and whose decision is not known yet.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "shim/agreement/council.h"
#include "shim/nccl/series.h"

namespace deft::director {

// Threads: as PlanSwitch, of which it is a part.
class TrialPoint {
public:
    static constexpr std::uint64_t kNever = ~std::uint64_t{0};
    using WaitDecision =
        std::function<agreement::Decision(std::uint64_t serial, agreement::Clock::time_point)>;

    enum class State : std::uint8_t {
        None,       // no call is named
        Named,      // proposed
        Committed,  // all ranks launch at that call
        Launching,  // a hook is at it
        Launched,
        Cancelled,  // nothing is launched on this rank
    };

    // Before hooks know of it.
    void attach(std::function<void()> launch) { launch_ = std::move(launch); }

    // Hooks: this call is that call, or comes behind it.
    bool due(Series series, std::uint64_t ordinal) const noexcept {
        return ordinal >= call_.load(std::memory_order_seq_cst) &&
               series == series_.load(std::memory_order_relaxed);
    }
    // Hooks, where it is due. In a group that is about to be launched nothing is: the next call
    // that is in none takes its place, on all ranks alike.
    void reached(Series series, std::uint64_t ordinal, bool grouped,
                 const WaitDecision& wait) noexcept;

    // Agreement. `made`: tells the ordinal of the next call of the series. False: it is past.
    bool name(std::uint64_t serial, Series series, std::uint64_t call,
              const std::atomic<std::uint64_t>& made) noexcept;
    void commit(std::uint64_t serial) noexcept;
    void cancel(std::uint64_t serial) noexcept;

    // Any thread: nothing is launched here from now on. False: it has been, or is just being.
    bool drop() noexcept;
    // Background: what was launched is another staging's.
    void forget_launched() noexcept;
    State state() const noexcept { return state_of(word_.load(std::memory_order_acquire)); }
    // Hooks have yet to come to the call.
    bool ahead() const noexcept { return is_ahead(state()); }

private:
    // Serial of the proposal and what has become of it, in one word: a hook may have found a
    // proposal that is cancelled, and another one named, before it goes on.
    static std::uint64_t word(std::uint64_t serial, State state) noexcept {
        return serial << 3U | static_cast<std::uint64_t>(state);
    }
    static State state_of(std::uint64_t word) noexcept { return static_cast<State>(word & 7U); }
    static std::uint64_t serial_of(std::uint64_t word) noexcept { return word >> 3U; }
    static bool is_ahead(State state) noexcept {
        return state == State::Named || state == State::Committed;
    }
    bool become(std::uint64_t serial, State from, State to) noexcept {
        std::uint64_t expected = word(serial, from);
        return word_.compare_exchange_strong(expected, word(serial, to), std::memory_order_seq_cst);
    }

    std::function<void()> launch_;
    std::atomic<std::uint64_t> call_{kNever};
    std::atomic<Series> series_{Series::Sums};
    std::atomic<std::uint64_t> word_{0};
};

}  // namespace deft::director
