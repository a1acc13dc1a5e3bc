// SPDX-License-Identifier: Apache-2.0
#include "shim/control/director.h"

#include <time.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "shim/control/proof.h"
#include "shim/control/standing.h"
#include "shim/cuda/event_pool.h"
#include "shim/settings/settings.h"

namespace deft::director {

Director::Director(const CommunicatorInfo& info, agreement::Council& council)
    : info_(info),
      held_(&council),
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
    // What NCCL thinks of InfiniBand it thinks with reason. A name in the environment wins over one
    // in a configuration.
    const bool other_network = info.limits.other_network || !tuning::tunable_network(info.network);
    if (tuner_allowed() && !other_network) {
        tuner_.emplace(info_, council_);
    }
    if (council_.is_leader()) {
        if (tuner_) {
            tuning_leader_.emplace(info_, *tuner_);
        }
        leader_.emplace(info_, council_, inbox_, switch_, lanes_, follower_);
    }
    council_.attach(this);
}

bool Director::tick(Track& track, std::span<const tuning::SeenCall> seen) noexcept {
    const log::About about(info_.hash, info_.rank);
    clean_up_behind();
    if (opening_.load(std::memory_order_acquire) || !work_mutex_.try_lock()) {
        return false;
    }
    const MutexLock lock(work_mutex_, std::adopt_lock);
    if (ended() || council_.verdict() != agreement::Verdict::On) {
        return false;
    }
    try {
        step(track, seen);
    } catch (const std::exception& error) {
        follower_.say(error.what());
        recover();
    } catch (...) {
        recover();
    }
    remember_facts();  // the next look may be held up inside CUDA
    return follower_.staging() || (leader_ && leader_->busy()) ||
           (tuning_leader_ && tuning_leader_->busy());
}

void Director::recover() {
    follower_.recover();
    if (leader_) {
        leader_->recover();
    }
}

void Director::step(Track& track, std::span<const tuning::SeenCall> seen) {
    if (!switch_.has_driver()) {
        switch_.set_driver(cuda::Execution::get());
    }
    take_note(track);
    if (tuner_) {
        note_iteration(track);
        note_seen(seen);
    }
    follower_.take_orders();
    if (follower_.wind_up() && leader_) {
        leader_->wind_up();
    }
    follower_.end_unused_lanes();
    JobView view = view_job(track, info_.serial, false);
    if (view.reason.empty() && follower_.current() == nullptr && !follower_.staging()) {
        switch_.set_series(view.series);
    }
    if (leader_ && view.reason.empty()) {
        leader_->find_beginning(track, view);
    }
    begin_at_first_place(view);
    follower_.report_proof(view);
    if (follower_.opens_next() && open_on_thread()) {
        return;
    }
    make_ready(view);
    follower_.report_measured();
    follower_.report_training();
    follower_.report_pressure();
    follower_.report_kill_switch();
    if (leader_ && council_.open()) {
        lead(track, view);
    }
    follower_.vouch(leader_ ? leader_->why_not_vouch() : "");
}

void Director::make_ready(JobView& view) {
    follower_.make_ready(view, [this] {
        work_mutex_.assert_held();  // make_ready() calls it, and keeps it no longer
        remember_facts();
        if (!leader_) {  // whose guard is blind meanwhile
            follower_.vouch_while_waiting();
        }
    });
}

// One at a time: while ways to carry out calls are tried, the planner would be misled by their
// times, and a plan would take the calls away.
void Director::lead(Track& track, const JobView& view) {
    const bool at_rest = leader_->at_rest(view);
    if (!tuning_leader_) {
        leader_->lead(track, view);
        return;
    }
    tuning_leader_->lead(
        tuned_in_iteration_, at_rest,
        [this](std::vector<std::byte> body, std::uint64_t call, std::uint64_t& serial) {
            work_mutex_.assert_held();
            return leader_->propose_other(std::move(body), call, serial);
        });
    if (!at_rest || !tuning_leader_->busy()) {
        leader_->lead(track, view);
    }
}

void Director::note_iteration(const Track& track) {
    const std::vector<CallRecord>& shape = track.current_shape();
    bool alone = !shape.empty();
    tuned_in_iteration_ = 0;
    for (const CallRecord& call : shape) {
        const bool ours = call.comm_serial == info_.serial;
        alone = alone && ours;
        // Those in groups have ordinals, too.
        tuned_in_iteration_ += ours && tuning::may_tune(call.function) ? 1 : 0;
    }
    tuner_->note_alone(alone);
}

void Director::note_seen(std::span<const tuning::SeenCall> seen) {
    seen_.clear();
    std::copy_if(seen.begin(), seen.end(), std::back_inserter(seen_),
                 [this](const tuning::SeenCall& call) { return call.serial == info_.serial; });
    tuner_->note(seen_);
    // A trial may begin at any time, and what is told holds for a moment only.
    constexpr std::int64_t kAskMemoryEvery = 4'000'000'000;
    const std::int64_t now = cuda::host_now();
    if (!seen_.empty() && now - memory_asked_ns_ > kAskMemoryEvery) {
        memory_asked_ns_ = now;
        const cuda::Driver* const driver = cuda::Driver::found();
        if (context_ == nullptr && driver != nullptr) {
            context_ = cuda::primary_context(*driver, info_.device);
        }
        std::uint64_t free = 0;
        const bool known = cuda::free_memory(context_, free);
        tuner_->note_free_memory(known ? free : 0, now);
    }
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
    const log::About about(info_.hash, info_.rank);
    if (tuner_) {
        if (const auto answer = tuner_->prepare(proposal)) {
            return *answer;
        }
    }
    return inbox_.prepare(proposal);
}

void Director::decided(std::uint64_t serial, bool commit) noexcept {
    const log::About about(info_.hash, info_.rank);
    if (!tuner_ || !tuner_->decided(serial, commit)) {
        inbox_.decided(serial, commit);
    }
}

void Director::heard(int rank, std::span<const std::byte> report) noexcept {
    const log::About about(info_.hash, info_.rank);
    if (!tuner_ || !tuner_->heard(rank, report)) {
        inbox_.heard(rank, report);
    }
}

void Director::closed(const char* why) noexcept {
    const log::About about(info_.hash, info_.rank);
    DEFT_INFO("rank %d: no more plans on this communicator: %s", info_.rank, why);
    inbox_.close();
}

int Director::merge_async_error(int error) noexcept {
    if (error != DEFT_NCCL_SUCCESS && error != DEFT_NCCL_IN_PROGRESS) {
        return error;
    }
    const bool failed = switch_.failed() || (tuner_ && tuner_->failed());
    return failed ? DEFT_NCCL_SYSTEM_ERROR : lanes_.merge_async_error(error);
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
        if (tuning_leader_) {
            facts.tuning = tuning_leader_->facts();
        }
        const MutexLock lock(known_mutex_);
        known_ = facts;
    } catch (...) {
    }
    return facts;
}

}  // namespace deft::director
