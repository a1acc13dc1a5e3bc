// SPDX-License-Identifier: Apache-2.0
// From which gradient call on which plan is in force. The hooks' side of the director: it has no
// lock, and waits only at a switch whose decision is not known yet. docs/plan-switch.md gives the
// reason for each memory order.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "shim/agreement/council.h"
#include "shim/control/hook_ref.h"
#include "shim/control/recent_calls.h"
#include "shim/control/trial_point.h"
#include "shim/cuda/execution.h"
#include "shim/executor/executor.h"
#include "shim/nccl/call.h"
#include "shim/nccl/series.h"

namespace deft::director {

// What a plan has handed to the job's gradient calls.
enum class Update : std::uint8_t { None, Zeros, Sums };

// A switch that the leader has proposed. It is made where all ranks have said through NCCL that
// they know the decision.
struct NamedSwitch {
    std::uint64_t serial = 0;  // of the proposal
    // Where no plan is in force: the call at which the ranks ask each other, which none passes
    // before it knows the decision, or sees to it that nobody switches. Under a plan they ask each
    // other anyway: PlanSwitch::kAtRenewal.
    std::uint64_t call = 0;
    // Where no plan is in force: ordinal of the first call that finds `next`; 0: it is `call`.
    std::uint64_t begin = 0;
    std::uint64_t named_at = 0;          // the leader's next call when it named the switch
    executor::Executor* next = nullptr;  // in force from there on; null: every call is forwarded
};

// Threads: "hooks" is the one thread that makes the job's gradient calls at a time, "agreement" the
// agreement thread, "background" the shim's background thread. What says nothing is for any thread.
class PlanSwitch {
public:
    static constexpr std::uint64_t kNever = ~std::uint64_t{0};
    static constexpr std::uint64_t kAtRenewal = kNever - 1;  // see NamedSwitch

    // Waits until the decision on the proposal with that serial is known, or the deadline passes.
    using WaitDecision =
        std::function<agreement::Decision(std::uint64_t serial, agreement::Clock::time_point)>;

    // Where the others have not answered for so long, they do not come any more.
    static constexpr std::chrono::minutes kAnswerDeadline{20};

    // `calls`: numbered calls the communicator has had already.
    using Calls = std::array<std::uint64_t, kSeries>;
    PlanSwitch(int rank, WaitDecision wait, const Calls& calls = {},
               std::chrono::nanoseconds answer_deadline = kAnswerDeadline)
        : rank_(rank),
          wait_(std::move(wait)),
          answer_deadline_(answer_deadline),
          ordinals_{calls[0], calls[1]} {}
    PlanSwitch(const PlanSwitch&) = delete;

    // Hooks: a numbered call of the job, of either series. As Director::all_reduce().
    bool all_reduce(const Call& call, std::uint64_t ordinal, bool grouped,
                    deft_cuda_stream_t stream, int& result) noexcept;
    // Hooks: a sum that no plan takes has been delivered. It counts as an update if calls of the
    // same iteration received zeros; a communicator without a plan has no say in that.
    void note_sums() noexcept;
    // Hooks: as the Director's functions of these names.
    Update take_update() noexcept;
    bool in_iteration() noexcept;
    bool late() noexcept;
    int flush() noexcept;
    // A hook that may use executors or lanes holds one for as long.
    HookRef reference() noexcept { return HookRef(references_); }
    // Hooks: a call that no plan took has been handed to NCCL on this stream, with its group.
    void forwarded(deft_cuda_stream_t stream) noexcept;
    // It cannot be known whether the others have switched, so every call fails.
    bool failed() const noexcept { return failed_.load(std::memory_order_relaxed); }

    // Agreement: a switch that all ranks have agreed on is still ahead of this rank's hooks.
    bool committed_ahead() const noexcept;
    // Agreement: no switch is ahead. False if this rank's hooks have passed the call already.
    bool name(const NamedSwitch& named) noexcept;
    // Agreement: the decision on the switch that was named last.
    void commit() noexcept;
    void cancel(std::uint64_t serial) noexcept;

    // The call at which the trials of new lanes are launched.
    TrialPoint& trials() noexcept { return trials_; }
    // Agreement: as TrialPoint's. A call of that series is meant.
    bool name_trials(std::uint64_t serial, Series series, std::uint64_t call) noexcept {
        return trials_.name(serial, series, call, ordinal_of(series));
    }

    // Background, when nothing can be agreed on any more: a switch that was named under a plan is
    // given up, unless this rank has told the others a moment ago that it knows of it. They cannot
    // all know, or never will: no rank switches. voided() tells when that is done.
    void drop_renewal() noexcept;

    // Background: the series that plans are made for from now on.
    void set_series(Series series) noexcept { planned_.store(series, std::memory_order_release); }
    // Its calls made so far: the ordinal of the next one.
    std::uint64_t calls() const noexcept {
        return ordinal_of(planned_.load(std::memory_order_acquire)).load(std::memory_order_seq_cst);
    }
    // The call that begins an iteration, by what the job said last; kNever if it has said nothing.
    std::uint64_t iteration_begin() const noexcept {
        return asked_at_.load(std::memory_order_relaxed);
    }
    // What calls find; null: they are forwarded.
    executor::Executor* active() const noexcept { return active_.load(std::memory_order_seq_cst); }
    // A switch has been named, and hooks have yet to come to it.
    bool ahead() const noexcept { return switch_at_.load(std::memory_order_seq_cst) != kNever; }
    // Serial of the last switch that came to nothing at its call, on all ranks; 0: there was none.
    std::uint64_t voided() const noexcept { return voided_.load(std::memory_order_acquire); }
    // Hooks have this executor, or will have it at a call that is still to come.
    bool uses(const executor::Executor* executor) const noexcept;
    // Background: takes an executor that has ended out of force. False if it is not in force.
    bool withdraw(executor::Executor* executor) noexcept;
    // No hook holds anything that it found in force before.
    bool unreferenced() const noexcept { return references_.load(std::memory_order_seq_cst) == 0; }

    // So many lanes have been in a plan in force: from then on their errors are the communicator's.
    // What becomes of a lane that was never used concerns nobody but its staging.
    std::size_t used_lanes() const noexcept { return used_lanes_.load(std::memory_order_seq_cst); }
    // So many lanes are those of the plan in force. For whoever holds a reference().
    std::size_t active_lanes() const noexcept;
    // Background: of them only the first so many are still there.
    void keep_lanes(std::size_t lanes) noexcept;

    // Background: the driver by which hooks find the priority of the job's stream.
    bool has_driver() const noexcept { return driver_.load(std::memory_order_relaxed) != nullptr; }
    void set_driver(const cuda::Execution* driver) noexcept {
        driver_.store(driver, std::memory_order_release);
    }
    // Of the job's stream, once it is known: the lanes get the same.
    int stream_priority() const noexcept { return priority_.load(std::memory_order_relaxed); }

    // The communicator ends: no executor takes another call. Any number of times. A look of the
    // background thread that began before may be about to free the plan in force.
    void end() noexcept;
    bool ended() const noexcept { return ended_.load(std::memory_order_acquire); }
    // After end(), and once no decision can come: no executor is in force.
    void clear() noexcept;
    // After end(), and unreferenced().
    void forget_calls() noexcept { recent_.reset(); }

private:
    // What the call finds at which a switch was named.
    enum class State : std::uint8_t { None, Prepared, Committed, Cancelled, Asked };

    // Of the call that a switch was named for: how it is made, and what NCCL is told of it.
    struct At {
        std::uint64_t ordinal = 0;
        bool grouped = false;
        deft_cuda_stream_t stream = nullptr;
    };
    bool switch_over(const At& at, int& result) noexcept;
    bool ask_others(const At& at, State state, std::uint64_t serial, int& result) noexcept;
    bool hear_others(std::uint64_t ordinal, std::uint64_t serial, int& result) noexcept;
    State await_decision(std::uint64_t serial, std::chrono::nanoseconds most) noexcept;
    void void_switch(std::uint64_t named, std::uint64_t serial) noexcept;
    executor::Lane* asking_lane() const noexcept;
    bool lanes_sound() const noexcept;
    bool captured(deft_cuda_stream_t stream) const noexcept;
    bool lost(int& result) noexcept;
    executor::Executor* renew(executor::Executor* active, std::uint64_t ordinal) noexcept;
    void leave_for_group() noexcept;
    bool hold_renewal() noexcept;
    void release_renewal() noexcept;
    bool at_renewal(State state) const noexcept;
    void settle_without_plan(std::uint64_t ordinal) noexcept;
    void put_in_force(std::uint64_t ordinal, std::uint64_t named) noexcept;
    void end_if_misplaced(executor::Executor& next, std::uint64_t ordinal) noexcept;
    void learn_priority(deft_cuda_stream_t stream) noexcept;

    const int rank_;
    const WaitDecision wait_;
    const std::chrono::nanoseconds answer_deadline_;

    const std::atomic<std::uint64_t>& ordinal_of(Series series) const noexcept {
        return ordinals_[static_cast<std::size_t>(series)];
    }
    bool passes_by(Series series) const noexcept;

    std::array<std::atomic<std::uint64_t>, kSeries> ordinals_;  // of the next call of a series
    TrialPoint trials_;
    std::atomic<Series> planned_{Series::Sums};
    std::atomic<Series> series_{Series::Sums};      // of the plan in force, or of the next
    std::atomic<std::uint64_t> switch_at_{kNever};  // ordinal
    std::atomic<std::uint64_t> serial_{0};  // of the switch, and what else it was named with
    std::atomic<std::uint64_t> begin_{0};
    std::atomic<std::uint64_t> named_at_{0};
    std::atomic<executor::Executor*> next_{nullptr};
    std::atomic<std::uint64_t> voided_{0};
    std::atomic<State> state_{State::None};
    std::atomic<executor::Executor*> active_{nullptr};
    std::atomic<std::uint32_t> references_{0};
    std::atomic<std::size_t> used_lanes_{0};
    std::atomic<bool> failed_{false};
    std::atomic<bool> ended_{false};

    // By series, until the end.
    std::unique_ptr<std::array<RecentCalls, kSeries>> recent_ =
        std::make_unique<std::array<RecentCalls, kSeries>>();
    std::atomic<std::uint64_t> flushed_{0};  // the call after the last flush()
    // Since take_update() was last asked: there were calls that received nothing but zeros, and
    // calls that received sums. Noted as the job makes its calls, so that it is the same on all
    // ranks: the moment at which the background thread sees the end of a plan is not.
    std::atomic<bool> got_zeros_{false};
    std::atomic<bool> got_sums_{false};
    std::atomic<std::uint64_t> asked_at_{kNever};
    // Hooks': where this rank has cast without knowing whether the others do, until the call that
    // it was cast before has been made.
    executor::Lane* blind_ = nullptr;
    // Hooks': a group of several calls has had some that count, and has not been launched yet.
    bool group_calls_ = false;
    // Hooks': they have set a switch under a plan to asked, and have not heard the answer.
    bool held_ = false;

    std::atomic<const cuda::Execution*> driver_{nullptr};
    std::atomic<bool> priority_known_{false};
    std::atomic<int> priority_{0};
};

}  // namespace deft::director
