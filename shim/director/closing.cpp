// SPDX-License-Identifier: Apache-2.0
// How a communicator's plans and lanes end. And lanes that no plan uses any more: a network that
// helps nothing, a plan that was given up. The leader names how many stay; each rank ends the
// others when nothing of its own uses them.
#include <algorithm>
#include <utility>

#include "shim/director/director.h"

namespace deft::director {

std::size_t Director::lanes_of(const planner::Plan& plan) {
    std::size_t lanes = 1;
    for (const planner::Transfer& transfer : plan.transfers) {
        lanes = std::max<std::size_t>(lanes, transfer.link + 1);
    }
    return lanes;
}

// Leader. While a plan is being made ready, or the guard may take one up again, all stay.
void Director::close_unused(const JobView& view) {
    const bool nothing = course_ == Course::Watching && view.reason.empty() &&
                         planned_signature_ != 0 && view.signature == planned_signature_;
    const bool settled = nothing || course_ == Course::Running || course_ == Course::Resting;
    const std::size_t needed = current_ != nullptr ? current_->lanes() : 0;
    if (!settled || wanted_lanes_ <= needed) {
        return;
    }
    agreement::Proposal proposal;
    proposal.serial = next_serial_;
    proposal.switch_call = kNever;
    Order order;
    order.kind = Kind::Close;
    order.keep = std::min(agreed_lanes_, needed);
    proposal.body = encode(order);
    if (council_.propose(std::move(proposal))) {
        ++next_serial_;
        wanted_lanes_ = agreed_lanes_ = static_cast<std::size_t>(order.keep);
    }  // else it is busy: at the next look
}

// What the executors hold of the lanes.
LaneSet::InUse Director::in_use() const {
    LaneSet::InUse use;
    use.staged = switch_.uses(staged_.get());
    const auto count = [&use](const std::unique_ptr<executor::Executor>& executor) {
        use.lanes = std::max(use.lanes, executor != nullptr ? executor->lanes() : 0);
    };
    count(current_);
    count(staged_);
    std::for_each(retired_.begin(), retired_.end(), count);
    return use;
}

// From here on no decision comes: the communicator is ending.
void Director::forget() noexcept {
    council_.detach(this);
    switch_.clear();
}

// The lanes stay: a nonblocking ncclCommFinalize must return though a transfer on one of them
// stands still, because the same thread may be the one to abort.
void Director::finalize() noexcept {
    switch_.end();
    council_.leave();
    forget();
}

// Without the lock: a thread that destroys the communicator may have it, and waits for the lanes.
void Director::abort_lanes() noexcept {
    aborted_.store(true, std::memory_order_seq_cst);
    const LaneSet::Aborting all = lanes_.hold_aborting();  // tick() waits until they have begun
    // Freeing pinned memory, and what tick() may be doing at this moment, can wait in CUDA for the
    // very transfer that only the abort of the communicator ends: tick() cleans up later.
    abandoned_.store(true, std::memory_order_release);
    lanes_.abort_all();
    forget();
}

void Director::cut() noexcept {
    switch_.end();
    council_.let_go();  // who waits for a decision
    abort_lanes();
}

void Director::end(bool abort) noexcept {
    switch_.end();
    council_.leave();  // releases whoever waits for a decision
    if (abort) {
        abort_lanes();
        return;
    }
    if (aborted_.load(std::memory_order_seq_cst)) {
        return;  // revoked or cut before: tick() cleans up
    }
    lanes_.await_opening();
    lanes_.abort_opening();
    forget();
    const std::lock_guard lock(work_mutex_);
    remember_facts();
    closing_.store(true, std::memory_order_seq_cst);
    clean_up(false);
    abandoned_.store(!retired_.empty(), std::memory_order_release);
    closing_.store(false, std::memory_order_seq_cst);
}

// With work_mutex_ held, after end().
void Director::clean_up(bool abort) noexcept {
    lanes_.close_all(abort);
    retire(std::move(current_));
    retire(std::move(staged_));
    staging_.reset();
    if (switch_.unreferenced()) {
        free_retired();
        switch_.forget_calls();
    }  // else what he uses is left to him, until tick() finds him gone
    forget_plans();
}

// A director is never freed: of a job that makes communicators without end all of them stay.
void Director::forget_plans() noexcept {
    try {
        if (!std::exchange(plans_forgotten_, true)) {
            describe_plan(facts_);
        }
    } catch (...) {
    }
    plans_.clear();
    plan_ = {};
    staged_plan_ = {};
    in_force_ = {};
    profile_ = {};
    guard_.reset();
    networks_ = {};
    const std::lock_guard lock(inbox_mutex_);
    measured_ = {};
    answers_.clear();
}

}  // namespace deft::director
