// SPDX-License-Identifier: Apache-2.0
#include "shim/tuning/tuning_switch.h"

#include "base/log.h"

namespace deft::tuning {
namespace {

// Unlike a switch between plans this one has no lane over which the ranks could ask each other, so
// a rank that does not know fails its communicator (docs/tuner.md). It waits long: a decision that
// the network holds up comes when it is back; without one the leader's process has mostly ended,
// and a rank of the communicator with it.
constexpr std::chrono::minutes kDecisionDeadline{5};

}  // namespace

bool TuningSwitch::count(const Counted& counted) noexcept {
    const std::uint64_t ordinal = counted.ordinal;
    history_.note(counted);
    // Sequentially consistent, as name() is: either name() sees this call, or this call the switch.
    ordinal_.store(ordinal + 1, std::memory_order_seq_cst);
    if (ordinal == switch_at_.load(std::memory_order_seq_cst)) {
        return switch_over(ordinal);
    }
    return !failed();
}

bool TuningSwitch::call(const Key& key, const Counted& counted, Pick& pick) noexcept {
    if (!count(counted)) {
        return false;
    }
    if (Table* const table = active_.load(std::memory_order_acquire)) {
        pick = table->pick(key, counted.ordinal);
    }
    return true;
}

bool TuningSwitch::switch_over(std::uint64_t ordinal) noexcept {
    State state = state_.load(std::memory_order_seq_cst);
    const std::uint64_t serial = serial_.load(std::memory_order_acquire);
    // State and serial are of the switch at this very call only if it still stands: it may have
    // been cancelled, and another one named, in between.
    if (switch_at_.load(std::memory_order_seq_cst) != ordinal) {
        return !failed();
    }
    if (state == State::Prepared) {
        const agreement::Decision decision =
            wait_(serial, agreement::Clock::now() + kDecisionDeadline);
        if (decision == agreement::Decision::Lost) {
            return lost();
        }
        state = decision == agreement::Decision::Commit ? State::Committed : State::Cancelled;
    }
    if (state == State::Committed) {
        active_.store(next_.load(std::memory_order_seq_cst), std::memory_order_seq_cst);
        std::uint64_t made = ordinal;
        switch_at_.compare_exchange_strong(made, kNever, std::memory_order_seq_cst);
    }
    return !failed();
}

bool TuningSwitch::lost() noexcept {
    if (!ended_.load(std::memory_order_seq_cst)) {
        failed_.store(true, std::memory_order_relaxed);
        DEFT_WARN(
            "rank %d: the other ranks were lost while NCCL was being tuned; the communicator "
            "fails, because going on alone would mix different algorithms",
            rank_);
    }
    return false;
}

bool TuningSwitch::name(std::uint64_t serial, std::uint64_t call, Table* next) noexcept {
    next_.store(next, std::memory_order_release);
    serial_.store(serial, std::memory_order_release);
    state_.store(State::Prepared, std::memory_order_seq_cst);
    switch_at_.store(call, std::memory_order_seq_cst);
    if (ordinal_.load(std::memory_order_seq_cst) > call) {
        // Should that call be waiting, the No that follows makes the leader cancel, which releases
        // it.
        state_.store(State::Cancelled, std::memory_order_seq_cst);
        return false;
    }
    return true;
}

void TuningSwitch::commit() noexcept {
    state_.store(State::Committed, std::memory_order_seq_cst);
}

void TuningSwitch::cancel(std::uint64_t serial) noexcept {
    if (serial_.load(std::memory_order_relaxed) == serial) {
        switch_at_.store(kNever, std::memory_order_seq_cst);
        state_.store(State::Cancelled, std::memory_order_seq_cst);
    }
}

bool TuningSwitch::committed_ahead() const noexcept {
    return switch_at_.load(std::memory_order_seq_cst) != kNever &&
           state_.load(std::memory_order_seq_cst) == State::Committed;
}

}  // namespace deft::tuning
