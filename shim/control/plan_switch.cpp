// SPDX-License-Identifier: Apache-2.0
#include "shim/control/plan_switch.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace deft::director {
namespace {

// A decision takes milliseconds, and the leader cancels after Proposal::patience (10 s). A leader
// that is stopped (SIGSTOP, a machine that swaps) may come back, and so may the network between the
// two. The job stands still for so long, and then goes on without a plan.
constexpr std::chrono::seconds kDecisionDeadline{30};

}  // namespace

bool PlanSwitch::all_reduce(const Call& call, std::uint64_t ordinal, bool grouped,
                            deft_cuda_stream_t stream, int& result) noexcept {
    const HookRef reference(references_);
    // Sequentially consistent, as name() is: either name() sees that this call has been made, or
    // this call sees the switch.
    const Series series = series_of(call.function);
    ordinals_[static_cast<std::size_t>(series)].store(ordinal + 1, std::memory_order_seq_cst);
    if (trials_.due(series, ordinal)) {
        trials_.reached(series, ordinal, grouped, wait_);
    }
    if (ordinal == switch_at_.load(std::memory_order_seq_cst) && !passes_by(series) &&
        !switch_over({ordinal, grouped, stream}, result)) {
        return true;
    }
    // Looked at after this call has been counted: end() sees the reference, or this sees the end.
    const bool over = ended_.load(std::memory_order_seq_cst);
    if (!over) {
        // Grouped, it is none of a plan's.
        (*recent_)[static_cast<std::size_t>(series)].note(
            ordinal, {grouped ? 0 : call.count, call.type, call.op, is_in_place(call, rank_),
                      call.function});
    }
    if (failed()) {
        result = DEFT_NCCL_SYSTEM_ERROR;
        return true;
    }
    if (passes_by(series)) {
        if (!priority_known_.load(std::memory_order_relaxed)) {
            learn_priority(stream);
        }
        return false;
    }
    executor::Executor* active = over ? nullptr : active_.load(std::memory_order_seq_cst);
    if (active != nullptr && !grouped) {
        leave_for_group();  // one that NCCL has refused
        active = renew(active, ordinal);
    }
    if (active == nullptr || active->broken()) {
        settle_without_plan(ordinal);
        note_sums();
        if (!priority_known_.load(std::memory_order_relaxed)) {
            learn_priority(stream);
        }
        return false;
    }
    if (grouped) {
        // No plan is made for gradients in groups of several calls, so this is another sequence; on
        // every rank, if all have put something else in the group (docs/director.md). What the plan
        // has yet to send comes behind the group: NCCL only keeps what it is called for before it.
        group_calls_ = true;
        note_sums();
        return false;
    }
    const std::uint64_t before = active->empty();
    const bool taken = active->all_reduce(call, stream, result);
    (active->empty() != before ? got_zeros_ : got_sums_).store(true, std::memory_order_relaxed);
    return taken;
}

// The plan in force, or the next, is for the other calls.
bool PlanSwitch::passes_by(Series series) const noexcept {
    return series != series_.load(std::memory_order_seq_cst);
}

// Once: a stream may be gone when the background thread could ask.
void PlanSwitch::learn_priority(deft_cuda_stream_t stream) noexcept {
    const cuda::Execution* const driver = driver_.load(std::memory_order_acquire);
    int priority = 0;
    if (driver != nullptr && driver->StreamGetPriority(reinterpret_cast<cuda::Stream>(stream),
                                                       &priority) == cuda::kSuccess) {
        priority_.store(priority, std::memory_order_relaxed);
    }
    priority_known_.store(driver != nullptr, std::memory_order_relaxed);
}

// The plan's iteration may have been learned from the middle of the job's: only the job knows.
// Where it has said since when this one goes on, it must be through.
bool PlanSwitch::in_iteration() noexcept {
    const HookRef reference(references_);
    const executor::Executor* const active = active_.load(std::memory_order_seq_cst);
    const std::uint64_t made = ordinal_of(Series::Sums).load(std::memory_order_relaxed);
    const std::uint64_t begun = asked_at_.load(std::memory_order_relaxed);
    return !passes_by(Series::Sums) && active != nullptr && !active->broken() && begun < made &&
           made - begun < active->script().shapes.size();
}

bool PlanSwitch::late() noexcept {
    const HookRef reference(references_);
    const executor::Executor* const active = active_.load(std::memory_order_seq_cst);
    return active != nullptr && !active->broken() && active->measures();
}

// A call that no plan carries out, or none ever does (a bias of less than 1 KiB; before the first
// call of an iteration it may as well be a metric of the one before).
void PlanSwitch::note_sums() noexcept {
    if (got_zeros_.load(std::memory_order_relaxed)) {
        got_sums_.store(true, std::memory_order_relaxed);
    }
}

Update PlanSwitch::take_update() noexcept {
    asked_at_.store(ordinal_of(Series::Sums).load(std::memory_order_relaxed),
                    std::memory_order_relaxed);
    const bool zeros = got_zeros_.exchange(false, std::memory_order_relaxed);
    const bool sums = got_sums_.exchange(false, std::memory_order_relaxed);
    return sums ? Update::Sums : zeros ? Update::Zeros : Update::None;
}

int PlanSwitch::flush() noexcept {
    const HookRef reference(references_);
    executor::Executor* const active = active_.load(std::memory_order_seq_cst);
    // Shards are never late: nothing of theirs is dropped.
    const bool planned = active != nullptr && !active->broken() && !passes_by(Series::Sums);
    const std::uint64_t made = ordinal_of(Series::Sums).load(std::memory_order_relaxed);
    if (in_iteration() || (planned && active->sums_unsent())) {
        return -1;
    }
    asked_at_.store(made, std::memory_order_relaxed);
    flushed_.store(made + 1, std::memory_order_relaxed);
    if (!planned) {
        return 0;
    }
    active->end(executor::BreakReason::Stopped);
    return static_cast<int>(active->in_flight());
}

// At the call where a proposal takes effect. False: it cannot be known what the others do, and the
// communicator has to fail.
bool PlanSwitch::switch_over(const At& at, int& result) noexcept {
    const std::uint64_t ordinal = at.ordinal;
    State state = state_.load(std::memory_order_seq_cst);
    const std::uint64_t serial = serial_.load(std::memory_order_acquire);
    // A proposal is cancelled before the next one is named, and may be while this thread is not
    // running: state and serial are of the proposal for this very call only if that still stands.
    if (switch_at_.load(std::memory_order_seq_cst) != ordinal) {
        return true;
    }
    return state == State::Asked ? hear_others(ordinal, serial, result)
                                 : ask_others(at, state, serial, result);
}

// Under a plan. What is in force now.
executor::Executor* PlanSwitch::renew(executor::Executor* active, std::uint64_t ordinal) noexcept {
    const bool known = active->asks() && hold_renewal();
    const bool hears = active->hears();
    if (active->renew(known)) {
        held_ = false;
        put_in_force(ordinal, kAtRenewal);
        return active_.load(std::memory_order_seq_cst);
    }
    if (hears) {
        release_renewal();
    }
    return active;
}

bool PlanSwitch::at_renewal(State state) const noexcept {
    return switch_at_.load(std::memory_order_seq_cst) == kAtRenewal &&
           state_.load(std::memory_order_seq_cst) == state;
}

// From this rank's word to the answer drop_renewal() leaves the switch alone: the others may make
// it. True: it is decided, and this rank may say so.
bool PlanSwitch::hold_renewal() noexcept {
    State committed = State::Committed;
    if (!at_renewal(State::Committed) ||
        !state_.compare_exchange_strong(committed, State::Asked, std::memory_order_seq_cst)) {
        return false;
    }
    // Between the two looks it may have been cancelled, and a call named for another one.
    held_ = true;
    if (switch_at_.load(std::memory_order_seq_cst) == kAtRenewal) {
        return true;
    }
    release_renewal();
    return false;
}

void PlanSwitch::release_renewal() noexcept {
    State asked = State::Asked;
    if (std::exchange(held_, false)) {
        state_.compare_exchange_strong(asked, State::Committed, std::memory_order_seq_cst);
    }
}

void PlanSwitch::drop_renewal() noexcept {
    if (switch_at_.load(std::memory_order_seq_cst) != kAtRenewal) {
        return;
    }
    for (State state : {State::Prepared, State::Committed}) {
        if (state_.compare_exchange_strong(state, State::Cancelled, std::memory_order_seq_cst)) {
            void_switch(kAtRenewal, serial_.load(std::memory_order_acquire));
            return;
        }
    }
}

// The plan has ended, on all ranks alike, under which a switch was to be made.
void PlanSwitch::settle_without_plan(std::uint64_t ordinal) noexcept {
    held_ = false;
    if (!at_renewal(State::Committed) && !at_renewal(State::Asked)) {
        return;
    }
    if (next_.load(std::memory_order_seq_cst) == nullptr) {
        put_in_force(ordinal, kAtRenewal);  // nothing is: that was meant
    } else {
        void_switch(kAtRenewal, serial_.load(std::memory_order_acquire));
    }
}

// None: it has not come.
PlanSwitch::State PlanSwitch::await_decision(std::uint64_t serial,
                                             std::chrono::nanoseconds most) noexcept {
    switch (wait_(serial, agreement::Clock::now() + most)) {
        case agreement::Decision::Commit:
            return State::Committed;
        case agreement::Decision::Cancel:
            return State::Cancelled;
        case agreement::Decision::Lost:
            break;
    }
    return State::None;
}

// No plan is in force, and one is to be. Every rank that knows this says yes, and goes on without
// the plan until the answer is there. A rank that does not know what was decided says no. So nobody
// switches who has not heard from all, and nobody has to know more than that.
bool PlanSwitch::ask_others(const At& at, State state, std::uint64_t serial, int& result) noexcept {
    const bool cleared = next_.load(std::memory_order_seq_cst) == nullptr;
    if (cleared && ended()) {
        return lost(result);
    }
    if (at.grouped || cleared || captured(at.stream)) {
        void_switch(at.ordinal, serial);  // by what the job does: the same on all ranks
        return true;
    }
    if (state == State::Prepared) {
        state = await_decision(serial, kDecisionDeadline);
        if (state == State::None && ended()) {
            return lost(result);
        }
    }
    if (state == State::Cancelled) {
        return true;
    }
    // Not before: an end may have come while this thread waited.
    executor::Lane* const lane = asking_lane();
    if (lane == nullptr) {
        if (ended()) {
            return lost(result);
        }
        void_switch(at.ordinal, serial);  // the plan has none
        return true;
    }
    const bool known = state == State::Committed;
    const bool sound = lanes_sound();
    if (known && !sound) {
        DEFT_WARN("rank %d: a network has failed; the plan that needs it does not begin", rank_);
    }
    // Those that know wait for this rank's word: one that cannot be given fails the communicator
    // as one that cannot be heard does.
    if (lane->cast(executor::Question::Switches,
                   known && sound ? executor::Ballot::Word::Yes : executor::Ballot::Word::No) !=
        DEFT_NCCL_SUCCESS) {
        return lost(result);
    }
    if (!known) {
        lane->doubt_cast();
        blind_ = lane;
        DEFT_WARN(
            "rank %d: the leader's decision about a plan has not come; no rank carries it out, and "
            "no other is made for this communicator",
            rank_);
        void_switch(at.ordinal, serial);
        return true;
    }
    const std::uint64_t begin = begin_.load(std::memory_order_relaxed);
    state_.store(State::Asked, std::memory_order_seq_cst);
    if (begin <= at.ordinal) {
        return hear_others(at.ordinal, serial, result);
    }
    switch_at_.store(begin, std::memory_order_seq_cst);
    return true;
}

// An iteration or two after the ranks have asked each other: the device has been through, and all
// hosts have come past that call.
bool PlanSwitch::hear_others(std::uint64_t ordinal, std::uint64_t serial, int& result) noexcept {
    using Answer = executor::Ballot::Answer;
    executor::Lane* const lane = asking_lane();
    if (lane == nullptr) {
        return true;  // the communicator ends
    }
    const auto until = agreement::Clock::now() + answer_deadline_;
    Answer answer = lane->answer(executor::Question::Switches);
    while (answer == Answer::Pending && !ended() && agreement::Clock::now() < until) {
        const timespec pause{0, 100'000};
        ::nanosleep(&pause, nullptr);
        answer = lane->answer(executor::Question::Switches);
    }
    switch (answer) {
        case Answer::Yes:
        case Answer::Switch:
            put_in_force(ordinal, ordinal);
            return true;
        case Answer::No:
            void_switch(ordinal, serial);
            return true;
        case Answer::Pending:
        case Answer::Failed:
            break;
    }
    return lost(result);
}

// The last that is done about it: from here on the executor may be freed. The proposal may have
// been cancelled meanwhile, and another one named.
void PlanSwitch::void_switch(std::uint64_t named, std::uint64_t serial) noexcept {
    voided_.store(serial, std::memory_order_release);
    switch_at_.compare_exchange_strong(named, kNever, std::memory_order_seq_cst);
}

// Null: it has none, or clear() has come.
executor::Lane* PlanSwitch::asking_lane() const noexcept {
    const executor::Executor* const next = next_.load(std::memory_order_seq_cst);
    return next != nullptr ? next->first_lane() : nullptr;
}

// Those of the plan that is to begin.
bool PlanSwitch::lanes_sound() const noexcept {
    const executor::Executor* const next = next_.load(std::memory_order_seq_cst);
    return next == nullptr || std::all_of(next->all_lanes().begin(), next->all_lanes().end(),
                                          [](executor::Lane* lane) { return lane->sound(); });
}

bool PlanSwitch::captured(deft_cuda_stream_t stream) const noexcept {
    const cuda::Execution* const driver = driver_.load(std::memory_order_acquire);
    bool captured = false;
    return driver != nullptr && !cuda::recordable(*driver->driver, stream, captured) && captured;
}

void PlanSwitch::forwarded(deft_cuda_stream_t stream) noexcept {
    if (blind_ != nullptr) {
        std::exchange(blind_, nullptr)->mark_cast(stream);
    }
    leave_for_group();
}

// The plan in force ends behind a group with other calls than its own.
void PlanSwitch::leave_for_group() noexcept {
    if (!std::exchange(group_calls_, false)) {
        return;
    }
    const HookRef reference(references_);
    executor::Executor* const active = active_.load(std::memory_order_seq_cst);
    if (active != nullptr && !active->broken()) {
        active->break_off(executor::BreakReason::Sequence);
    }
}

bool PlanSwitch::lost(int& result) noexcept {
    if (!ended()) {  // else it was let go, and errors are NCCL's to tell
        failed_.store(true, std::memory_order_relaxed);
        DEFT_WARN(
            "rank %d: NCCL does not tell whether a plan begins; the communicator fails, because "
            "going on alone would mix different plans",
            rank_);
    }
    result = DEFT_NCCL_SYSTEM_ERROR;
    return false;
}

// named: what it was named for.
void PlanSwitch::put_in_force(std::uint64_t ordinal, std::uint64_t named) noexcept {
    executor::Executor* const old = active_.load(std::memory_order_relaxed);
    executor::Executor* const next = next_.load(std::memory_order_seq_cst);
    if (next != nullptr) {
        end_if_misplaced(*next, ordinal);
    }
    active_.store(next, std::memory_order_seq_cst);
    if (ended_.load(std::memory_order_seq_cst)) {  // clear() may have come before it
        active_.store(nullptr, std::memory_order_seq_cst);
    }
    // After it: one that is active and has ended was ended by the job. One that has ended keeps its
    // reason.
    if (old != nullptr && !old->broken()) {
        old->end(executor::BreakReason::Stopped);
    }
    DEFT_DEBUG("rank %d: switched at gradient call %llu", rank_,
               static_cast<unsigned long long>(ordinal));
    // From active_ on the next switch may be named: that one is not taken back.
    switch_at_.compare_exchange_strong(named, kNever, std::memory_order_seq_cst);
}

// A plan that does not begin where an iteration does ends before its first call.
void PlanSwitch::end_if_misplaced(executor::Executor& next, std::uint64_t ordinal) noexcept {
    const std::uint64_t named_at = named_at_.load(std::memory_order_relaxed);
    const bool sums = next.script().series() == Series::Sums;
    if (sums && flushed_.load(std::memory_order_relaxed) > named_at) {
        // What the job does behind it may look like an iteration. By calls alone: when the
        // others heard of the switch, and whether before this flush, differs between ranks.
        next.end(executor::BreakReason::Stopped);
    } else if (!(*recent_)[static_cast<std::size_t>(next.script().series())].iteration_before(
                   ordinal, next.script().shapes, named_at)) {
        // Calls that are none of its iteration's have come since this one was named. Where
        // gradients are alike it would take some of one iteration and some of another.
        next.end(executor::BreakReason::Misplaced);
    } else {
        used_lanes_.store(std::max(used_lanes_.load(), next.lanes()), std::memory_order_seq_cst);
    }
}

bool PlanSwitch::committed_ahead() const noexcept {
    if (switch_at_.load(std::memory_order_seq_cst) == kNever) {
        return false;
    }
    const State state = state_.load(std::memory_order_seq_cst);
    return state == State::Committed || state == State::Asked;
}

bool PlanSwitch::name(const NamedSwitch& named) noexcept {
    // While no switch is ahead. What is forwarded again is what the plan in force took.
    const Series series = named.next != nullptr ? named.next->script().series()
                                                : series_.load(std::memory_order_relaxed);
    if (active_.load(std::memory_order_seq_cst) != nullptr && passes_by(series)) {
        return false;  // the leader has yet to end a plan for the other calls
    }
    series_.store(series, std::memory_order_seq_cst);
    next_.store(named.next, std::memory_order_release);
    begin_.store(named.begin, std::memory_order_release);
    named_at_.store(named.named_at, std::memory_order_release);
    serial_.store(named.serial, std::memory_order_release);
    state_.store(State::Prepared, std::memory_order_seq_cst);
    switch_at_.store(named.call, std::memory_order_seq_cst);
    if (ordinal_of(series).load(std::memory_order_seq_cst) > named.call) {
        // The call has been made. Should it be waiting, the No that follows makes the leader
        // cancel, and that decision releases it.
        state_.store(State::Cancelled, std::memory_order_seq_cst);
        return false;
    }
    return true;
}

// Unless it has been dropped.
void PlanSwitch::commit() noexcept {
    State prepared = State::Prepared;
    state_.compare_exchange_strong(prepared, State::Committed, std::memory_order_seq_cst);
}

void PlanSwitch::cancel(std::uint64_t serial) noexcept {
    if (serial_.load(std::memory_order_relaxed) == serial) {
        switch_at_.store(kNever, std::memory_order_seq_cst);
        state_.store(State::Cancelled, std::memory_order_seq_cst);
    }
}

// A rank's host may be iterations behind the leader's, where a plan that is staged here is already
// over.
bool PlanSwitch::uses(const executor::Executor* executor) const noexcept {
    // In this order: a switch sets active_ first.
    const bool next = ahead() && next_.load(std::memory_order_seq_cst) == executor;
    return executor != nullptr && (next || active() == executor);
}

std::size_t PlanSwitch::active_lanes() const noexcept {
    const executor::Executor* const active = active_.load(std::memory_order_seq_cst);
    return active != nullptr && !active->broken() ? active->lanes() : 0;
}

bool PlanSwitch::withdraw(executor::Executor* executor) noexcept {
    executor::Executor* expected = executor;
    return active_.compare_exchange_strong(expected, nullptr, std::memory_order_seq_cst);
}

void PlanSwitch::keep_lanes(std::size_t lanes) noexcept {
    used_lanes_.store(std::min(used_lanes_.load(), lanes), std::memory_order_seq_cst);
}

void PlanSwitch::end() noexcept {
    ended_.store(true, std::memory_order_seq_cst);
    trials_.drop();
    const HookRef reference(references_);  // gone before anybody waits for those that are left
    if (executor::Executor* const active = active_.load(std::memory_order_seq_cst)) {
        active->end(executor::BreakReason::Stopped);
    }
}

// From here on no hook takes the executor: the communicator is ending, so the job makes no call on
// it but those under way.
void PlanSwitch::clear() noexcept {
    active_.store(nullptr, std::memory_order_seq_cst);
    next_.store(nullptr, std::memory_order_seq_cst);
}

}  // namespace deft::director
