// SPDX-License-Identifier: Apache-2.0
// How a communicator's plans and lanes end with it.
#include <utility>

#include "base/log.h"
#include "shim/control/director.h"
#include "shim/control/standing.h"

namespace deft::director {

// From here on no decision comes: the communicator is ending.
void Director::forget() noexcept {
    council_.detach(this);
    switch_.clear();
}

void Director::end_switches() noexcept {
    switch_.end();
    if (tuner_) {
        tuner_->end();
    }
}

// The lanes stay: a nonblocking ncclCommFinalize must return though a transfer on one of them
// stands still, because the same thread may be the one to abort.
void Director::finalize() noexcept {
    const log::About about(info_.hash, info_.rank);
    end_switches();
    council_.leave();
    forget();
}

// Without the lock: a thread that destroys the communicator may have it, and waits for the lanes.
void Director::abort_lanes() noexcept {
    aborted_.store(true, std::memory_order_seq_cst);
    const LaneSet::Aborting all = lanes_.hold_aborting();  // tick() waits until they have begun
    // Freeing pinned memory, and what tick() may be doing at this moment, can wait in CUDA for the
    // very transfer that only the abort of the communicator ends: that is cleaned up later.
    abandoned_.store(true, std::memory_order_release);
    lanes_.abort_all();
    forget();
}

void Director::cut() noexcept {
    const log::About about(info_.hash, info_.rank);
    end_switches();
    council_.let_go();  // who waits for a decision
    abort_lanes();
}

void Director::suspend() noexcept {
    const log::About about(info_.hash, info_.rank);
    end_switches();
    close_lanes();
}

void Director::end(bool abort) noexcept {
    const log::About about(info_.hash, info_.rank);
    end_switches();
    council_.leave();  // releases whoever waits for a decision
    if (abort) {
        abort_lanes();
        return;
    }
    close_lanes();
}

void Director::close_lanes() noexcept {
    if (aborted_.load(std::memory_order_seq_cst)) {
        return;  // revoked or cut before: clean_up_behind() follows
    }
    lanes_.await_opening();
    lanes_.abort_opening();
    lanes_.end_trials();
    forget();
    const MutexLock lock(work_mutex_);
    remember_facts();
    closing_.store(true, std::memory_order_seq_cst);
    clean_up(false);
    closing_.store(false, std::memory_order_seq_cst);
}

// Not while a hook that an abort has just released goes on with the lanes' streams.
void Director::clean_up_behind() noexcept {
    const log::About about(info_.hash, info_.rank);
    if (!abandoned_.load(std::memory_order_acquire) || opening_.load(std::memory_order_acquire) ||
        !work_mutex_.try_lock()) {
        return;
    }
    const MutexLock lock(work_mutex_, std::adopt_lock);
    if (abandoned_.load(std::memory_order_acquire) && !aborting() && switch_.unreferenced()) {
        clean_up(true);
    }
}

// After end().
void Director::clean_up(bool abort) noexcept {
    lanes_.close_all(abort);
    const bool all_gone = follower_.retire_all();
    forget_plans();
    abandoned_.store(!all_gone, std::memory_order_release);
}

// The director stays for the last report.
void Director::forget_plans() noexcept {
    try {
        if (!std::exchange(plans_forgotten_, true)) {
            describe_plan(follower_, leading(), follower_.facts());
        }
    } catch (...) {
    }
    follower_.forget_plans();
    if (leader_) {
        leader_->forget();
    }
    inbox_.forget();
}

}  // namespace deft::director
