// SPDX-License-Identifier: Apache-2.0
// From which call on which table holds. The hooks' side: it has no lock, and waits only at a switch
// whose decision is not known yet. The orders are those of control/plan_switch.h, and for the same
// reasons (docs/plan-switch.md); but tables are few, and none is freed while hooks may come.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "shim/agreement/council.h"
#include "shim/tuning/call_history.h"
#include "shim/tuning/table.h"

namespace deft::tuning {

class TuningSwitch {
public:
    static constexpr std::uint64_t kNever = ~std::uint64_t{0};
    using WaitDecision =
        std::function<agreement::Decision(std::uint64_t serial, agreement::Clock::time_point)>;

    // `calls`: the communicator has had so many before.
    TuningSwitch(int rank, WaitDecision wait, std::uint64_t calls)
        : rank_(rank), wait_(std::move(wait)), ordinal_(calls) {}
    TuningSwitch(const TuningSwitch&) = delete;

    // The thread of the communicator's calls. This one may be made, as `pick` says. False: what the
    // others do cannot be known, and the communicator has to fail.
    bool call(const Key& key, const Counted& counted, Pick& pick) noexcept;
    // A call of a group that is about to be launched: it is counted, and left to NCCL.
    bool count(const Counted& counted) noexcept;

    // Agreement. False: the call has been made. One switch at a time; `next` lives on for good.
    bool name(std::uint64_t serial, std::uint64_t call, Table* next) noexcept;
    void commit() noexcept;
    void cancel(std::uint64_t serial) noexcept;
    // A switch has been agreed on, and hooks have yet to come to it.
    bool committed_ahead() const noexcept;
    // None has been named, or hooks have come to it.
    bool clear() const noexcept { return switch_at_.load(std::memory_order_seq_cst) == kNever; }

    // Any thread. How many calls have been made; which table holds; the communicator has failed.
    std::uint64_t calls() const noexcept { return ordinal_.load(std::memory_order_seq_cst); }
    // What they were, up to that one. A rank for which it is known has let every later call through
    // here: so none that a switch is named at has slipped by while this object was being made.
    bool history(std::uint64_t ordinal, std::uint64_t& history) const noexcept {
        return history_.find(ordinal, history);
    }
    const Table* active() const noexcept { return active_.load(std::memory_order_acquire); }
    bool failed() const noexcept { return failed_.load(std::memory_order_relaxed); }
    // The communicator ends: that nothing can be agreed on any more is no news.
    void end() noexcept { ended_.store(true, std::memory_order_seq_cst); }

private:
    enum class State : std::uint8_t { None, Prepared, Committed, Cancelled };

    bool switch_over(std::uint64_t ordinal) noexcept;
    bool lost() noexcept;

    const int rank_;
    const WaitDecision wait_;
    std::atomic<std::uint64_t> ordinal_;
    CallHistory history_;
    std::atomic<std::uint64_t> switch_at_{kNever};
    std::atomic<std::uint64_t> serial_{0};
    std::atomic<Table*> next_{nullptr};
    std::atomic<State> state_{State::None};
    std::atomic<Table*> active_{nullptr};
    std::atomic<bool> failed_{false};
    std::atomic<bool> ended_{false};
};

}  // namespace deft::tuning
