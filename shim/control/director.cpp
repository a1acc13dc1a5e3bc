// SPDX-License-Identifier: Apache-2.0
#include "shim/control/director.h"

#include <time.h>

#include <exception>
#include <utility>

#include "base/log.h"
#include "shim/control/standing.h"

namespace deft::director {

Director::Director(const CommunicatorInfo& info, agreement::Council& council)
    : info_(info),
      council_(council),
      switch_(
          info.rank,
          [&council](std::uint64_t serial, agreement::Clock::time_point deadline) {
              return council.wait_decision(serial, deadline);
          },
          info.calls),
      lanes_(info_, switch_),
      inbox_(switch_, lanes_),
      follower_(info_, council_, inbox_, switch_, lanes_) {
    if (council_.is_leader()) {
        leader_.emplace(info_, council_, inbox_, switch_, lanes_, follower_);
    }
    council_.attach(this);
}

bool Director::tick(Track& track) noexcept {
    if (!work_mutex_.try_lock()) {
        return false;
    }
    const MutexLock lock(work_mutex_, std::adopt_lock);
    // Not while a hook that an abort has just released goes on with the lanes' streams.
    if (abandoned_.load(std::memory_order_acquire) && !aborting() && switch_.unreferenced()) {
        clean_up(true);
    }
    if (ended() || council_.verdict() != agreement::Verdict::On) {
        return false;
    }
    try {
        step(track);
    } catch (const std::exception& error) {
        follower_.say(error.what());
        recover();
    } catch (...) {
        recover();
    }
    remember_facts();  // the next look may be held up inside CUDA
    return follower_.staging() || (leader_ && leader_->busy());
}

void Director::recover() {
    follower_.recover();
    if (leader_) {
        leader_->recover();
    }
}

void Director::step(Track& track) {
    if (!switch_.has_driver()) {
        switch_.set_driver(cuda::Execution::get());
    }
    take_note(track);
    follower_.take_orders();
    if (follower_.wind_up() && leader_) {
        leader_->wind_up();
    }
    follower_.end_unused_lanes();
    JobView view = view_job(track, false);
    if (view.reason.empty() && view.serial != info_.serial) {
        view.reason = "the gradients travel over another communicator";
    }
    if (leader_ && view.reason.empty()) {
        leader_->find_beginning(track, view);
    }
    follower_.make_ready(view, [this] {
        work_mutex_.assert_held();  // make_ready() calls it, and keeps it no longer
        remember_facts();
        if (!leader_) {  // whose guard is blind meanwhile
            follower_.vouch_while_waiting();
        }
    });
    follower_.report_measured();
    follower_.report_pressure();
    follower_.report_kill_switch();
    if (leader_ && council_.open()) {
        leader_->lead(track, view);
    }
    follower_.vouch(leader_ ? leader_->why_not_vouch() : "");
}

// Of what hooks and council have done since the last look.
void Director::take_note(Track& track) {
    if (leader_) {
        leader_->note_cancelled();
    }
    switch (follower_.take_switch()) {
        case Follower::Switched::None:
            break;
        case Follower::Switched::InForce:
            track.restart_profile();
            if (leader_) {
                leader_->note_in_force();
            }
            DEFT_INFO("rank %d: plan in force", info_.rank);
            break;
        case Follower::Switched::Forwarding:
            track.restart_profile();
            if (leader_) {
                leader_->note_forwarding();
            }
            DEFT_INFO("rank %d: calls are forwarded again", info_.rank);
            break;
    }
    if (follower_.take_end() && leader_) {
        leader_->note_end();
    }
    follower_.free_retired();
}

agreement::Answer Director::prepare(const agreement::Proposal& proposal) noexcept {
    return inbox_.prepare(proposal);
}

void Director::decided(std::uint64_t serial, bool commit) noexcept {
    inbox_.decided(serial, commit);
}

void Director::heard(int rank, std::span<const std::byte> report) noexcept {
    inbox_.heard(rank, report);
}

void Director::closed(const char* why) noexcept {
    DEFT_INFO("rank %d: no more plans on this communicator: %s", info_.rank, why);
    inbox_.close();
}

int Director::merge_async_error(int error) noexcept {
    if (error != DEFT_NCCL_SUCCESS && error != DEFT_NCCL_IN_PROGRESS) {
        return error;
    }
    return switch_.failed() ? DEFT_NCCL_SYSTEM_ERROR : lanes_.merge_async_error(error);
}

// A look takes well under a millisecond, unless it is at making, measuring or ending lanes, which
// takes as long as the other ranks and the networks want, or is held up inside CUDA. A job may ask
// in every iteration: it hears then what was known after the look before.
PlanFacts Director::facts() noexcept {
    constexpr int kPatience = 20;  // of a tenth of a millisecond
    for (int waited = 0;
         waited < kPatience && !closing_.load(std::memory_order_seq_cst) && !lanes_.opening();
         ++waited) {
        if (work_mutex_.try_lock()) {
            const MutexLock lock(work_mutex_, std::adopt_lock);
            return remember_facts();
        }
        const timespec pause{0, 100'000};
        ::nanosleep(&pause, nullptr);
    }
    const MutexLock lock(known_mutex_);
    return known_;
}

PlanFacts Director::remember_facts() noexcept {
    PlanFacts facts = standing(council_, follower_, leading(), plans_forgotten_);
    try {
        const MutexLock lock(known_mutex_);
        known_ = facts;
    } catch (...) {
    }
    return facts;
}

}  // namespace deft::director
