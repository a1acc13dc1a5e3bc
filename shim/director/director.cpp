// SPDX-License-Identifier: Apache-2.0
// The hooks' and the council's side of the director; course.cpp has the background thread's.
#include "shim/director/director.h"

#include <algorithm>

#include "shim/director/inside.h"
#include "shim/director/networks.h"
#include "topology/base/log.h"

namespace deft::director {
namespace {

// A decision takes milliseconds, and the leader cancels after Proposal::patience (10 s). A leader
// that is gone is known at once; one that is stopped (SIGSTOP, a machine that swaps) may come back.
// Whoever waits longer than this has lost the others.
constexpr std::chrono::seconds kDecisionDeadline{120};

}  // namespace

Director::Director(const CommunicatorInfo& info, agreement::Council& council)
    : info_(info),
      other_networks_(networks_to_use(info)),
      no_lanes_(why_no_lanes(Surroundings::process(executor::Nccl::from(*info.table).version))),
      council_(council),
      nccl_(executor::Nccl::from(*info.table)) {
    council_.attach(this);
}

bool Director::all_reduce(const Call& call, std::uint64_t ordinal, bool grouped,
                          deft_cuda_stream_t stream, int& result) noexcept {
    const Inside inside(inside_);
    // Sequentially consistent, as prepare() is: either it sees that this call has been made, or
    // this call sees the switch.
    ordinal_.store(ordinal + 1, std::memory_order_seq_cst);
    if (ordinal == switch_at_.load(std::memory_order_seq_cst) && !switch_over(ordinal, result)) {
        return true;
    }
    // Looked at after this call has been counted: end() sees the call inside, or this sees the end.
    const bool over = ended_.load(std::memory_order_seq_cst);
    if (!over) {
        // Grouped, it is none of a plan's.
        recent_->note(ordinal,
                      {grouped ? 0 : call.count, call.type, call.op, call.send == call.receive});
    }
    if (failed_.load(std::memory_order_relaxed)) {
        result = DEFT_NCCL_SYSTEM_ERROR;
        return true;
    }
    executor::Executor* const active = over ? nullptr : active_.load(std::memory_order_seq_cst);
    if (active == nullptr || active->broken()) {
        note_sums();
        if (!priority_known_.load(std::memory_order_relaxed)) {
            learn_priority(stream);
        }
        return false;
    }
    if (grouped) {
        // No plan is made for gradients in groups of several calls, so this is another sequence; on
        // every rank, if all have put something else in the group (docs/director.md).
        active->end(executor::BreakReason::Sequence);
        note_sums();
        return false;
    }
    const std::uint64_t before = active->empty();
    const bool taken = active->all_reduce(call, stream, result);
    (active->empty() != before ? got_zeros_ : got_sums_).store(true, std::memory_order_relaxed);
    return taken;
}

// Once: a stream may be gone when the background thread could ask.
void Director::learn_priority(deft_cuda_stream_t stream) noexcept {
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
bool Director::in_iteration() noexcept {
    const Inside inside(inside_);
    const executor::Executor* const active = active_.load(std::memory_order_seq_cst);
    const std::uint64_t made = ordinal_.load(std::memory_order_relaxed);
    const std::uint64_t begun = asked_at_.load(std::memory_order_relaxed);
    return active != nullptr && !active->broken() && begun < made &&
           made - begun < active->script().shapes.size();
}

// A call that no plan carries out, or none ever does (a bias of less than 1 KiB; before the first
// call of an iteration it may as well be a metric of the one before). It counts beside calls of the
// same iteration that a plan did before it ended; a communicator without a plan has no say in
// whether there is an update.
void Director::note_sums() noexcept {
    if (got_zeros_.load(std::memory_order_relaxed)) {
        got_sums_.store(true, std::memory_order_relaxed);
    }
}

Update Director::take_update() noexcept {
    asked_at_.store(ordinal_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    const bool zeros = got_zeros_.exchange(false, std::memory_order_relaxed);
    const bool sums = got_sums_.exchange(false, std::memory_order_relaxed);
    return sums ? Update::Sums : zeros ? Update::Zeros : Update::None;
}

int Director::flush() noexcept {
    const Inside inside(inside_);
    executor::Executor* const active = active_.load(std::memory_order_seq_cst);
    const bool planned = active != nullptr && !active->broken();
    const std::uint64_t made = ordinal_.load(std::memory_order_relaxed);
    if (in_iteration()) {
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
bool Director::switch_over(std::uint64_t ordinal, int& result) noexcept {
    Switch state = switch_state_.load(std::memory_order_seq_cst);
    const std::uint64_t serial = switch_serial_.load(std::memory_order_acquire);
    // A proposal is cancelled before the next one is prepared, and may be while this thread is not
    // running: state and serial are of the proposal for this very call only if that still stands.
    if (switch_at_.load(std::memory_order_seq_cst) != ordinal) {
        return true;
    }
    if (state == Switch::Prepared) {
        const auto deadline = agreement::Clock::now() + kDecisionDeadline;
        const agreement::Decision decision = council_.wait_decision(serial, deadline);
        if (decision == agreement::Decision::Lost) {
            if (!ended()) {  // else it was let go, and errors are NCCL's to tell
                failed_.store(true, std::memory_order_relaxed);
                DEFT_WARN(
                    "rank %d: the other ranks were lost while a plan was being switched; the "
                    "communicator fails, because going on alone would mix different plans",
                    info_.rank);
            }
            result = DEFT_NCCL_SYSTEM_ERROR;
            return false;
        }
        state = decision == agreement::Decision::Commit ? Switch::Committed : Switch::Cancelled;
    }
    if (state == Switch::Committed) {
        executor::Executor* const old = active_.load(std::memory_order_relaxed);
        executor::Executor* const next = next_.load(std::memory_order_acquire);
        if (next != nullptr && flushed_.load(std::memory_order_relaxed) >
                                   switch_named_.load(std::memory_order_relaxed)) {
            // What the job does behind it may look like an iteration. By calls alone: when the
            // others heard of the switch, and whether before this flush, differs between ranks.
            next->end(executor::BreakReason::Stopped);
        } else if (next != nullptr &&
                   !recent_->iteration_before(ordinal, next->script().shapes,
                                              switch_named_.load(std::memory_order_relaxed))) {
            // Calls that are none of its iteration's have come since this one was named. Where
            // gradients are alike it would take some of one iteration and some of another.
            next->end(executor::BreakReason::Misplaced);
        } else if (next != nullptr) {
            used_lanes_.store(std::max(used_lanes_.load(), next->lanes()),
                              std::memory_order_seq_cst);
        }
        active_.store(next, std::memory_order_seq_cst);
        if (ended_.load(std::memory_order_seq_cst)) {  // forget() may have come before it
            active_.store(nullptr, std::memory_order_seq_cst);
        }
        if (old != nullptr) {  // after it: one that is active and has ended was ended by the job
            old->end(executor::BreakReason::Stopped);
        }
        DEFT_DEBUG("rank %d: switched at gradient call %llu", info_.rank,
                   static_cast<unsigned long long>(ordinal));
        // From active_ on the next switch may be named: that one is not taken back.
        std::uint64_t made = ordinal;
        switch_at_.compare_exchange_strong(made, kNever, std::memory_order_seq_cst);
    }
    return true;  // cancelled: decided() cleans up, and may have prepared another one since
}

agreement::Answer Director::prepare(const agreement::Proposal& proposal) noexcept {
    Order order;
    try {
        if (ended() || !decode(proposal.body, order)) {
            return agreement::Answer::No;
        }
        const std::lock_guard lock(inbox_mutex_);
        if (order.kind != Kind::Arm && order.kind != Kind::Forward) {
            orders_.reserve(orders_.size() + prepared_.size() + 1);  // decided() must not throw
            prepared_.emplace_back(proposal.serial, std::move(order));
            return agreement::Answer::Yes;
        }
        const Kind kind = order.kind;
        const std::uint64_t stage = order.stage;
        const std::uint64_t named = order.ordinal;
        prepared_.emplace_back(proposal.serial, std::move(order));
        if (switch_at_.load(std::memory_order_seq_cst) != kNever &&
            switch_state_.load(std::memory_order_seq_cst) == Switch::Committed) {
            return agreement::Answer::No;  // this rank has yet to come to the last switch
        }
        executor::Executor* next = nullptr;
        if (kind == Kind::Arm) {
            if (staged_ready_ != stage) {
                return agreement::Answer::No;
            }
            next = staged_pointer_;
        }
        next_.store(next, std::memory_order_release);
        switch_named_.store(named, std::memory_order_release);
        switch_serial_.store(proposal.serial, std::memory_order_release);
        switch_state_.store(Switch::Prepared, std::memory_order_seq_cst);
        switch_at_.store(proposal.switch_call, std::memory_order_seq_cst);
        if (ordinal_.load(std::memory_order_seq_cst) > proposal.switch_call) {
            // The call has been made. Should it be waiting, decided(false) releases it: this No
            // makes the leader cancel.
            switch_state_.store(Switch::Cancelled, std::memory_order_seq_cst);
            return agreement::Answer::No;
        }
        return agreement::Answer::Yes;
    } catch (...) {
        return agreement::Answer::No;
    }
}

void Director::decided(std::uint64_t serial, bool commit) noexcept {
    const std::lock_guard lock(inbox_mutex_);
    const auto found = std::find_if(prepared_.begin(), prepared_.end(),
                                    [serial](const auto& p) { return p.first == serial; });
    if (found == prepared_.end()) {
        return;
    }
    Order order = std::move(found->second);
    prepared_.erase(found);
    if (order.kind != Kind::Arm && order.kind != Kind::Forward) {
        if (commit && order.kind == Kind::Drop) {
            drop_stage(order.stage);
        }
        // The leader has given up that staging whether or not all ranks have answered.
        const bool over =
            order.kind == Kind::Drop || order.kind == Kind::Discard || order.kind == Kind::Close;
        stage_cancelled_ = stage_cancelled_ || (!commit && !over);
        if (commit || over) {
            orders_.push_back(std::move(order));  // within what prepare() has reserved
        }
        return;
    }
    if (commit) {
        switch_state_.store(Switch::Committed, std::memory_order_seq_cst);
        (order.kind == Kind::Arm ? armed_committed_ : forward_committed_) = true;
    } else {
        if (switch_serial_.load(std::memory_order_relaxed) == serial) {
            switch_at_.store(kNever, std::memory_order_seq_cst);
            switch_state_.store(Switch::Cancelled, std::memory_order_seq_cst);
        }
        (order.kind == Kind::Arm ? arm_cancelled_ : forward_cancelled_) = true;
    }
}

void Director::heard(int rank, std::span<const std::byte> report) noexcept {
    try {
        Staged staged;
        if (decode(report, staged)) {
            const std::lock_guard lock(inbox_mutex_);
            if (staged.step == Step::Refused) {
                drop_stage(staged.stage);  // tick() may be waiting for this rank
            }
            answers_[rank] = std::move(staged);
            return;
        }
        guard::Statistics statistics;
        constexpr std::size_t kMost = 1024;  // a tick apart; more than that is not needed
        if (guard::decode(report, statistics)) {
            const std::lock_guard lock(inbox_mutex_);
            if (measured_.size() < kMost) {
                measured_.emplace_back(rank, statistics);
            }
        }
    } catch (...) {
    }
}

void Director::closed(const char* why) noexcept {
    DEFT_INFO("rank %d: no more plans on this communicator: %s", info_.rank, why);
    const std::lock_guard lock(inbox_mutex_);
    no_more_ = true;
}

int Director::merge_async_error(int error) noexcept {
    if (error != DEFT_NCCL_SUCCESS && error != DEFT_NCCL_IN_PROGRESS) {
        return error;
    }
    if (failed_.load(std::memory_order_relaxed)) {
        return DEFT_NCCL_SYSTEM_ERROR;
    }
    const Inside inside(inside_);
    const std::size_t used = used_lanes_.load(std::memory_order_seq_cst);
    const bool finalizing = finalizing_.load(std::memory_order_acquire);
    bool busy = false;
    for (std::size_t i = 0; i < used; ++i) {
        if (executor::Lane* const lane = published_lanes_[i].load(std::memory_order_seq_cst)) {
            const int own = lane->async_error();
            if (own != DEFT_NCCL_SUCCESS && own != DEFT_NCCL_IN_PROGRESS) {
                return own;
            }
            busy = busy || (finalizing && lane->busy());
        }
    }
    return busy ? DEFT_NCCL_IN_PROGRESS : error;
}

}  // namespace deft::director
