// SPDX-License-Identifier: Apache-2.0
// Decides for one communicator what is done with its gradient calls, and sees to it that all ranks
// do it from the same call on. docs/director.md tells the whole course.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

#include "base/mutex.h"
#include "shim/agreement/council.h"
#include "shim/control/communicator_info.h"
#include "shim/control/follower.h"
#include "shim/control/inbox.h"
#include "shim/control/lane_set.h"
#include "shim/control/leader.h"
#include "shim/control/plan_report.h"
#include "shim/control/plan_switch.h"
#include "shim/control/tuner.h"
#include "shim/control/tuning_leader.h"
#include "shim/learning/track.h"
#include "shim/nccl/call.h"

namespace deft::director {

// Threads: all_reduce() is called by hooks, tick() by the shim's background thread, the Member's
// functions by the agreement thread, end() by the hook that ends the communicator. Hooks know a
// director while they have the communicator pinned; directors.cpp frees it after that.
class Director final : public agreement::Member {
public:
    Director(const CommunicatorInfo& info, agreement::Council& council);
    Director(const Director&) = delete;

    // A numbered call of the job, the ordinal-th of its series on this communicator. True: it has
    // been dealt with, and `result` is what the hook returns. False: the hook forwards it.
    // Allocates nothing and locks nothing; waits only at a switch whose decision is not known yet.
    // `grouped`: one of the calls of a group that is about to be launched, whatever is answered;
    // only `ordinal`, `stream` and the call's function count.
    bool all_reduce(const Call& call, std::uint64_t ordinal, bool grouped,
                    deft_cuda_stream_t stream, int& result) noexcept {
        return switch_.all_reduce(call, ordinal, grouped, stream, result);
    }

    // A gradient call that was forwarded has been handed to NCCL. The thread of the gradient calls.
    void forwarded(deft_cuda_stream_t stream) noexcept { switch_.forwarded(stream); }

    // A call of the job that may be tuned, and how it is to be carried out; grouped, it is left to
    // NCCL. False: the communicator has failed, as above.
    bool tune(const tuning::Key& key, const tuning::Counted& counted, tuning::Pick& pick) noexcept {
        return !tuner_ || tuner_->call(key, counted, pick);
    }
    // Ways of its calls may be agreed on.
    bool tunes() const noexcept { return tuner_.has_value(); }
    bool count_tuned(const tuning::Counted& counted) noexcept {
        return !tuner_ || tuner_->count(counted);
    }

    // A sum that may be a gradient, but is too small for plans to take: it has been delivered. The
    // thread of the gradient calls.
    void note_small() noexcept { switch_.note_sums(); }

    // Looks at what has been learned and takes the next step. May wait for other ranks. True while
    // something is under way, so that the next look should come soon. seen: calls that may be tuned
    // and have been made since the last look.
    bool tick(Track& track, std::span<const tuning::SeenCall> seen = {}) noexcept;

    // What an abort has left is freed as soon as nobody uses it. The background thread's.
    void clean_up_behind() noexcept;

    // The job makes no call any more and goes on to end the communicator. Nothing is planned from
    // here on; lanes stay until end(). Waits for nobody.
    void finalize() noexcept;
    // NCCL goes on finalizing in the background (a nonblocking communicator): it is not done before
    // the lanes are.
    void finalize_goes_on() noexcept { lanes_.finalize_goes_on(); }

    // What is under way on the communicator is being aborted, and a smaller one may be made of it:
    // its lanes are aborted. It stays in the council, through which the ranks of the child find
    // each other. Waits for nobody, as an abort.
    void cut() noexcept;

    // The communicator is being suspended: its plan ends, its lanes go, and what they hold of the
    // device's memory. It stays in the council, through which its ranks find each other again when
    // it is resumed; then it gets another director. Waits as end() does.
    void suspend() noexcept;

    // The communicator is being destroyed: its lanes go first. Waits as ncclCommDestroy does. Or it
    // is being aborted: the aborts of its lanes begin, each on a thread of its own, and go on
    // next to that of the communicator. Abort may come while another thread waits in here, and
    // releases it; it waits for nobody.
    void end(bool abort) noexcept;
    // Lanes are being aborted, or made on a thread of their own. Any thread.
    bool aborting() const noexcept {
        return lanes_.aborting() || opening_.load(std::memory_order_acquire);
    }
    // After NCCL has been told to abort the communicator itself: waits until its lanes are aborted,
    // a moment at most.
    void await_aborts() const noexcept { lanes_.await_aborts(); }

    // The process ends: a lane that is being made is given up, and none is begun any more. Any
    // thread; waits for nobody.
    void leave_off() noexcept { lanes_.leave_off(); }

    // An asynchronous error of a lane, or `error` as it is; "in progress" while a nonblocking
    // finalize waits for the lanes.
    int merge_async_error(int error) noexcept;

    // Any thread. Waits a moment for a tick that is under way, then tells what was known before.
    PlanFacts facts() noexcept;
    // Since it was last asked: Zeros if calls received zeros and none received a sum. The thread of
    // the gradient calls.
    Update take_update() noexcept { return switch_.take_update(); }
    // A plan that delays or merges is in force, and the guard looks at it. The thread of the
    // gradient calls.
    bool late() noexcept { return switch_.late(); }
    // A plan is in force, and by what the job said before, this is the middle of an iteration. The
    // thread of the gradient calls.
    bool in_iteration() noexcept { return switch_.in_iteration(); }
    // Ends the plan in force between two iterations of the job, as it says. The generations that
    // are dropped; -1: in_iteration(), nothing is done. The thread of the gradient calls.
    int flush() noexcept { return switch_.flush(); }
    const CommunicatorInfo& info() const { return info_; }
    // The process has other communicators that plans are made for: their ranks may make their lanes
    // in another order, so that each makes its own on another thread. Any thread.
    void has_others() noexcept { others_.store(true, std::memory_order_release); }
    // This process has another rank of the communicator. Any thread. Not analysed: the follower has
    // an atomic for it.
    void share_process() noexcept DEFT_NO_THREAD_SAFETY_ANALYSIS { follower_.share_process(); }
    bool ended() const { return switch_.ended(); }
    // A switch is meant to come, and hooks have not come to it.
    bool switch_ahead() const noexcept { return switch_.ahead(); }
    // tick() and clean_up_behind() have nothing to do any more.
    bool over() const { return ended() && !abandoned_.load(std::memory_order_acquire); }
    // Over, and no hook and no thread of its own knows it any more.
    bool unknown() const { return over() && !aborting() && info_.entry->gone(info_.serial); }

    agreement::Answer prepare(const agreement::Proposal& proposal) noexcept override;
    void decided(std::uint64_t serial, bool commit) noexcept override;
    void heard(int rank, std::span<const std::byte> report) noexcept override;
    void closed(const char* why) noexcept override;

private:
    // lane_thread.cpp
    bool open_on_thread() noexcept DEFT_REQUIRES(work_mutex_);
    void open_lanes() noexcept;
    void make_ready(JobView& view) DEFT_REQUIRES(work_mutex_);

    void step(Track& track, std::span<const tuning::SeenCall> seen) DEFT_REQUIRES(work_mutex_);
    void lead(Track& track, const JobView& view) DEFT_REQUIRES(work_mutex_);
    void note_iteration(const Track& track) DEFT_REQUIRES(work_mutex_);
    void note_seen(std::span<const tuning::SeenCall> seen) DEFT_REQUIRES(work_mutex_);
    void take_note(Track& track) DEFT_REQUIRES(work_mutex_);
    void recover() DEFT_REQUIRES(work_mutex_);
    PlanFacts remember_facts() noexcept DEFT_REQUIRES(work_mutex_);
    // NULL: another rank leads.
    Leader* leading() DEFT_REQUIRES(work_mutex_) { return leader_ ? &*leader_ : nullptr; }
    // teardown.cpp
    void end_switches() noexcept;
    void forget() noexcept;
    void abort_lanes() noexcept;
    void close_lanes() noexcept;
    void clean_up(bool abort) noexcept DEFT_REQUIRES(work_mutex_);
    void forget_plans() noexcept DEFT_REQUIRES(work_mutex_);

    const CommunicatorInfo info_;
    const agreement::CouncilRef held_;  // council_, while this lives
    agreement::Council& council_;
    PlanSwitch switch_;
    LaneSet lanes_;
    Inbox inbox_;
    std::optional<Tuner> tuner_;  // where the operator has it
    std::atomic<bool> aborted_{false};
    std::atomic<bool> closing_{false};    // end() waits for its lanes
    std::atomic<bool> abandoned_{false};  // clean_up_behind() has to
    std::atomic<bool> others_{false};     // has_others()
    std::atomic<bool> opening_{false};    // a thread makes the lanes; it has the lock, or soon

    Mutex work_mutex_;  // held by tick() and end()
    Follower follower_ DEFT_GUARDED_BY(work_mutex_);
    std::optional<Leader> leader_ DEFT_GUARDED_BY(work_mutex_);  // where this rank leads
    std::optional<TuningLeader> tuning_leader_ DEFT_GUARDED_BY(work_mutex_);
    std::vector<tuning::SeenCall> seen_ DEFT_GUARDED_BY(work_mutex_);    // kept for its memory
    std::uint64_t tuned_in_iteration_ DEFT_GUARDED_BY(work_mutex_) = 0;  // calls; 0: not known
    cuda::Context context_ DEFT_GUARDED_BY(work_mutex_) = nullptr;       // primary, of the device
    std::int64_t memory_asked_ns_ DEFT_GUARDED_BY(work_mutex_) = 0;
    // The follower's facts() have what is to be told of them.
    bool plans_forgotten_ DEFT_GUARDED_BY(work_mutex_) = false;

    Mutex known_mutex_;
    // What facts() tells while another thread has the work lock for long.
    PlanFacts known_ DEFT_GUARDED_BY(known_mutex_);
};

}  // namespace deft::director
