// SPDX-License-Identifier: Apache-2.0
// How a communicator's plans and lanes end. And lanes that no plan uses any more: a network that
// helps nothing, a plan that was given up. The leader names how many stay; each rank ends the
// others when nothing of its own uses them.
#include <time.h>

#include <algorithm>
#include <new>
#include <utility>

#include "shim/director/director.h"
#include "topology/base/log.h"
#include "topology/base/thread.h"

namespace deft::director {
namespace {

constexpr std::chrono::seconds kOpeningGrace{3};
constexpr std::chrono::seconds kAbortGrace{3};
constexpr int kHookGrace = 2000;  // of half a millisecond

}  // namespace

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

// From the keep-th on. One that was in a plan in force, or will be on this rank, may be at the last
// transfers of it here and with others: it is closed when they are over. What becomes of any other
// concerns nobody.
void Director::end_lanes(std::size_t keep) {
    while (lanes_.size() > keep) {
        std::unique_ptr<executor::Lane> lane = std::move(lanes_.back());
        lanes_.pop_back();
        if (lanes_.size() < switch_.used_lanes() || switch_.uses(staged_.get())) {
            closing_lanes_.push_back(std::move(lane));
            continue;
        }
        withdraw(*lane);
        lane->abort();
        ended_lanes_.push_back(std::move(lane));  // a hook may be asking it for its errors
    }
    speeds_.resize(std::min(speeds_.size(), lanes_.size()));
}

// Those whose time has come. Never waits: an abort of the communicator has to reach them.
void Director::close_lanes() {
    const auto uses = [this](const std::unique_ptr<executor::Executor>& executor) {
        return executor != nullptr && executor->lanes() > lanes_.size();
    };
    if (closing_lanes_.empty() || uses(current_) || uses(staged_) ||
        std::any_of(retired_.begin(), retired_.end(), uses)) {
        return;
    }
    while (!closing_lanes_.empty() && closing_lanes_.back()->idle()) {
        executor::Lane& lane = *closing_lanes_.back();
        switch_.keep_lanes(lanes_.size() + closing_lanes_.size() - 1);
        withdraw(lane);
        lane.disconnect();
        ended_lanes_.push_back(std::move(closing_lanes_.back()));
        closing_lanes_.pop_back();
    }
}

// No hook asks it for its errors any more.
void Director::withdraw(const executor::Lane& lane) noexcept {
    for (auto& published : published_lanes_) {
        if (published.load(std::memory_order_seq_cst) == &lane) {
            published.store(nullptr, std::memory_order_seq_cst);
        }
    }
    DEFT_INFO("rank %d: a lane is closed that no plan uses", info_.rank);
}

// A lane that is being made when the communicator ends is made first, if that takes no longer than
// this: torn down in the middle, it would look to the other ranks like a link that died. They all
// end their communicators now, so nobody is kept from making it.
void Director::await_opening() const noexcept {
    const auto until = agreement::Clock::now() + kOpeningGrace;
    while (opening_.load(std::memory_order_seq_cst) != nullptr && agreement::Clock::now() < until) {
        const timespec pause{0, 1'000'000};
        ::nanosleep(&pause, nullptr);
    }
}

// An abort frees a lane's communicator, which a hook that is just using it must not see. One that
// stays inside waits in NCCL for a peer that is gone: only the abort of the lane releases it.
void Director::await_hooks() const noexcept {
    for (int i = 0; i < kHookGrace && !switch_.unreferenced(); ++i) {
        const timespec pause{0, 500'000};
        ::nanosleep(&pause, nullptr);
    }
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

// tick() holds the lock while it makes a lane.
void Director::abort_opening() noexcept {
    if (executor::Lane* const lane = opening_.load(std::memory_order_seq_cst)) {
        lane->abort();
    }
}

// In this order: either open_lanes() sees it, or the lane is seen here. The lane itself is left to
// the thread that makes it.
void Director::leave_off() noexcept {
    leaving_off_.store(true, std::memory_order_seq_cst);
    if (executor::Lane* const lane = opening_.load(std::memory_order_seq_cst)) {
        lane->give_up();
    }
}

// ncclCommAbort tells the communicator's kernels to end, then frees memory, for which CUDA waits
// until the whole device is idle: for kernels of the other lanes and of the job's communicator too,
// which nobody may have told yet. So no abort may wait for another one to return before it is
// begun. (NCCL from 2.22 on does the same with the aborts of a group: a thread for each.)
void Director::begin_abort(executor::Lane& lane) noexcept {
    struct Abort {
        Director* director;
        executor::Lane* lane;
        static void run(const Abort& abort) noexcept {
            abort.director->await_hooks();
            abort.lane->abort();
            abort.director->aborts_.fetch_sub(1, std::memory_order_seq_cst);
        }
        static void* main(void* argument) {
            const std::unique_ptr<Abort> own(static_cast<Abort*>(argument));
            if (const cuda::Driver* const driver = cuda::Driver::found()) {
                const cuda::Relaxed relaxed(*driver);
                run(*own);
            } else {
                run(*own);
            }
            return nullptr;
        }
    };
    aborts_.fetch_add(1, std::memory_order_seq_cst);
    // Neither director nor lane is freed while the process lives.
    auto* const abort = new (std::nothrow) Abort{this, &lane};
    if (abort == nullptr || start_thread("deft-abort", 0, Abort::main, abort) != 0) {
        delete abort;
        Abort::run({this, &lane});
    }
}

// Without the lock: a thread that destroys the communicator may have it, and waits for the lanes.
void Director::abort_lanes() noexcept {
    aborted_.store(true, std::memory_order_seq_cst);
    aborts_.fetch_add(1, std::memory_order_seq_cst);  // tick() waits until all of them have begun
    // Freeing pinned memory, and what tick() may be doing at this moment, can wait in CUDA for the
    // very transfer that only the abort of the communicator ends: tick() cleans up later.
    abandoned_.store(true, std::memory_order_release);
    if (executor::Lane* const lane = opening_.load(std::memory_order_seq_cst)) {
        lane->give_up();  // in this order: one that gets its communicator now is aborted by tick()
        if (lane->comm() != nullptr) {
            begin_abort(*lane);
        }
    }
    for (const auto& published : published_lanes_) {
        executor::Lane* const lane = published.load(std::memory_order_seq_cst);
        if (lane != nullptr && lane->comm() != nullptr) {
            begin_abort(*lane);
        }
    }
    forget();
    aborts_.fetch_sub(1, std::memory_order_seq_cst);
}

// NCCL's own abort has waited for the device already, or the job has to abort more for that.
void Director::await_aborts() const noexcept {
    const auto until = agreement::Clock::now() + kAbortGrace;
    while (aborting() && agreement::Clock::now() < until) {
        const timespec pause{0, 200'000};
        ::nanosleep(&pause, nullptr);
    }
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
    await_opening();
    abort_opening();
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
    for (auto& lane : closing_lanes_) {
        lanes_.push_back(std::move(lane));
    }
    closing_lanes_.clear();
    for (const auto& lane : lanes_) {
        if (abort) {
            lane->abort();
        }
        lane->drain();  // all of them before close(), which waits for the whole device
    }
    for (const auto& lane : lanes_) {
        lane->close();
    }
    for (const auto& lane : ended_lanes_) {
        lane->abort();  // one may have failed a moment ago
        lane->close();  // what an abort leaves
    }
    retire(std::move(current_));
    retire(std::move(staged_));
    staging_.reset();
    if (switch_.unreferenced()) {
        free_retired();
        switch_.forget_calls();
    }  // else what he uses is left to him, until tick() finds him gone
    // Lanes stay too: async_error() may be asked at any time, and what is left of them is small.
    for (auto& lane : lanes_) {
        ended_lanes_.push_back(std::move(lane));
    }
    lanes_.clear();
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
    speeds_ = {};
    const std::lock_guard lock(inbox_mutex_);
    measured_ = {};
    answers_.clear();
}

}  // namespace deft::director
