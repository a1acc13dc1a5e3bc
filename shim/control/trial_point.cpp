// SPDX-License-Identifier: Apache-2.0
#include "shim/control/trial_point.h"

namespace deft::director {
namespace {

// As that of a switch between plans. A rank that does not know takes no part: the others end their
// lanes when they hear that it has left the council.
constexpr std::chrono::seconds kDecisionDeadline{30};

}  // namespace

void TrialPoint::reached(Series series, std::uint64_t ordinal, bool grouped,
                         const WaitDecision& wait) noexcept {
    const std::uint64_t found = word_.load(std::memory_order_seq_cst);
    const std::uint64_t serial = serial_of(found);
    // Looked at again: the call is the one of the proposal that was found, or of a later one, which
    // changes the word too.
    if (grouped || !is_ahead(state_of(found)) || !due(series, ordinal)) {
        return;
    }
    if (state_of(found) == State::Named) {
        switch (wait(serial, agreement::Clock::now() + kDecisionDeadline)) {
            case agreement::Decision::Commit:
                commit(serial);  // whoever comes first
                break;
            case agreement::Decision::Cancel:
            case agreement::Decision::Lost:
                cancel(serial);
                break;
        }
    }
    if (become(serial, State::Committed, State::Launching)) {
        call_.store(kNever, std::memory_order_seq_cst);
        launch_();
        become(serial, State::Launching, State::Launched);
    }
}

// The call is stored last: a hook that finds it finds the rest.
bool TrialPoint::name(std::uint64_t serial, Series series, std::uint64_t call,
                      const std::atomic<std::uint64_t>& made) noexcept {
    std::uint64_t before = word_.load(std::memory_order_seq_cst);
    do {
        if (state_of(before) == State::Launching) {
            return false;  // a hook is still inside NCCL with lanes that were given up
        }
        call_.store(kNever, std::memory_order_seq_cst);
        series_.store(series, std::memory_order_relaxed);
    } while (!word_.compare_exchange_weak(before, word(serial, State::Named),
                                          std::memory_order_seq_cst));
    call_.store(call, std::memory_order_seq_cst);
    // Sequentially consistent, as the hooks count: they see the call, or are seen to be past it.
    if (made.load(std::memory_order_seq_cst) > call) {
        cancel(serial);  // one that has seen it is told by the decision
        return false;
    }
    return true;
}

void TrialPoint::commit(std::uint64_t serial) noexcept {
    become(serial, State::Named, State::Committed);
}

void TrialPoint::cancel(std::uint64_t serial) noexcept {
    if (!become(serial, State::Named, State::Cancelled)) {
        become(serial, State::Committed, State::Cancelled);
    }
}

// The call stays: to take it away could take that of another proposal.
bool TrialPoint::drop() noexcept {
    std::uint64_t now = word_.load(std::memory_order_seq_cst);
    while (is_ahead(state_of(now)) &&
           !word_.compare_exchange_weak(now, word(serial_of(now), State::Cancelled),
                                        std::memory_order_seq_cst)) {
    }
    return state_of(now) != State::Launching && state_of(now) != State::Launched;
}

void TrialPoint::forget_launched() noexcept {
    std::uint64_t now = word_.load(std::memory_order_seq_cst);
    if (state_of(now) == State::Launched) {
        word_.compare_exchange_strong(now, word(serial_of(now), State::None),
                                      std::memory_order_seq_cst);
    }
}

}  // namespace deft::director
