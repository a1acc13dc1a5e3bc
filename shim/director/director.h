// SPDX-License-Identifier: Apache-2.0
// Decides for one communicator what is done with its gradient calls, and sees to it that all ranks
// do it from the same call on. docs/director.md tells the whole course.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shim/agreement/council.h"
#include "shim/cuda/execution.h"
#include "shim/director/back_off.h"
#include "shim/director/communicator_info.h"
#include "shim/director/job_view.h"
#include "shim/director/lane_set.h"
#include "shim/director/message.h"
#include "shim/director/plan_switch.h"
#include "shim/director/problem.h"
#include "shim/executor/executor.h"
#include "shim/executor/lanes.h"
#include "shim/guard/guard.h"
#include "shim/interpose/call.h"
#include "shim/iteration/report.h"

namespace deft::director {

struct Settings;

// Threads: all_reduce() is called by hooks, tick() by the shim's background thread, the Member's
// functions by the agreement thread, end() by the hook that ends the communicator. Never freed: a
// hook may hold a pointer for as long as the process lives, and what is left after end() is small.
class Director final : public agreement::Member {
public:
    Director(const CommunicatorInfo& info, agreement::Council& council);
    Director(const Director&) = delete;

    // A gradient call of the job, the ordinal-th of this communicator. True: it has been dealt
    // with, and `result` is what the hook returns. False: the hook forwards it. Allocates nothing
    // and locks nothing; waits only at a switch whose decision is not known yet. `grouped`: one of
    // the calls of a group that is about to be launched, whatever is answered; only `ordinal` and
    // `stream` count.
    bool all_reduce(const Call& call, std::uint64_t ordinal, bool grouped,
                    deft_cuda_stream_t stream, int& result) noexcept {
        return switch_.all_reduce(call, ordinal, grouped, stream, result);
    }

    // A sum that may be a gradient, but is too small for plans to take: it has been delivered. The
    // thread of the gradient calls.
    void note_small() noexcept { switch_.note_sums(); }

    // Looks at what has been learned and takes the next step. May wait for other ranks. True while
    // something is under way, so that the next look should come soon.
    bool tick(Track& track) noexcept;

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

    // The communicator is being destroyed: its lanes go first. Waits as ncclCommDestroy does. Or it
    // is being aborted: the aborts of its lanes begin, each on a thread of its own, and go on
    // beside that of the communicator. Abort may come while another thread waits in here, and
    // releases it; it waits for nobody.
    void end(bool abort) noexcept;
    // Lanes are being aborted. Any thread.
    bool aborting() const noexcept { return lanes_.aborting(); }
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
    // A plan is in force, and by what the job said before, this is the middle of an iteration. The
    // thread of the gradient calls.
    bool in_iteration() noexcept { return switch_.in_iteration(); }
    // Ends the plan in force between two iterations of the job, as it says. The generations that
    // are dropped; -1: in_iteration(), nothing is done. The thread of the gradient calls.
    int flush() noexcept { return switch_.flush(); }
    const CommunicatorInfo& info() const { return info_; }
    // This process has another rank of the communicator. Any thread.
    void share_process() noexcept { shares_process_.store(true, std::memory_order_release); }
    bool ended() const { return switch_.ended(); }
    // tick() has nothing to do any more.
    bool over() const { return ended() && !abandoned_.load(std::memory_order_acquire); }

    agreement::Answer prepare(const agreement::Proposal& proposal) noexcept override;
    void decided(std::uint64_t serial, bool commit) noexcept override;
    void heard(int rank, std::span<const std::byte> report) noexcept override;
    void closed(const char* why) noexcept override;

private:
    static constexpr std::uint64_t kNever = PlanSwitch::kNever;
    static constexpr const char* kPlanFailed = "an operation of a plan failed on this rank";

    // The leader's course.
    enum class Course : std::uint8_t { Watching, Staging, Arming, Running, Fallen, Resting };

    struct Stage {
        Order order;
        std::int64_t since_ns = 0;
        bool learned = false;  // and said so
        bool open = false;     // all ranks have
        bool dropped = false;
        bool discarded = false;  // make the lanes that the others wait for, and nothing else
        std::vector<executor::Shape> shapes;  // of the gradients, as the plan has them
    };

    const CommunicatorInfo info_;
    agreement::Council& council_;
    PlanSwitch switch_;
    LaneSet lanes_;
    std::atomic<bool> aborted_{false};
    std::atomic<bool> closing_{false};    // end() waits for its lanes
    std::atomic<bool> abandoned_{false};  // tick() has to clean up
    std::atomic<bool> shares_process_{false};

    std::mutex inbox_mutex_;  // guards what follows: the agreement thread's letters
    std::vector<std::pair<std::uint64_t, Order>> prepared_;    // by serial, until decided
    std::vector<Order> orders_;                                // committed, but no switches
    std::map<int, Staged> answers_;                            // leader: by rank
    std::vector<std::pair<int, guard::Statistics>> measured_;  // leader: by rank, as they came
    std::uint64_t staged_ready_ = 0;                // serial of the Stage that can be armed
    executor::Executor* staged_pointer_ = nullptr;  // its executor
    bool armed_committed_ = false;
    bool forward_committed_ = false;
    bool arm_cancelled_ = false;
    bool forward_cancelled_ = false;
    bool stage_cancelled_ = false;
    bool no_more_ = false;  // the council has closed

    std::mutex work_mutex_;                    // held by tick() and end(): what follows is theirs
    std::size_t keep_lanes_ = LaneSet::kMost;  // ordered by Close, not done yet
    std::unique_ptr<Stage> staging_;           // being made ready on this rank
    std::unique_ptr<executor::Executor> staged_;   // ready, not in force
    std::unique_ptr<executor::Executor> current_;  // in force
    std::vector<std::unique_ptr<executor::Executor>> retired_;
    std::string said_;  // the last reason given for doing nothing

    Course course_ = Course::Watching;
    std::uint64_t next_serial_ = 1;
    std::uint64_t stage_serial_ = 0;
    std::uint64_t planned_signature_ = 0;  // already decided about
    std::uint64_t staged_signature_ = 0;   // what staged_ was made for
    const char* doubt_ = nullptr;          // when that was decided: doubt_of()
    std::uint64_t doubted_signature_ = 0;  // decided about in doubt
    // A rank cannot carry out late or merged plans: why, of which gradients, until when, and how
    // often in a row.
    std::string unfit_why_;
    std::uint64_t unfit_signature_ = 0;
    std::int64_t unfit_until_ns_ = 0;
    std::uint32_t unfit_times_ = 0;
    executor::Optimizer planned_for_;
    std::int64_t course_since_ns_ = 0;
    std::int64_t retry_at_ns_ = 0;   // not before
    std::uint32_t stage_tries_ = 0;  // refused in a row
    bool open_proposed_ = false;
    // DEFT_LANES: lanes over other networks are made and measured in a staging without a plan.
    bool networks_only_ = false;  // such a staging is on its way
    bool networks_off_ = false;   // they cannot be made, or did not help
    bool profile_stale_ = false;  // taken beside the lanes' own transfers
    std::uint32_t network_tries_ = 0;
    std::vector<planner::Link> networks_;  // what they can do, the job's own first
    std::size_t agreed_lanes_ = 0;         // that every rank has
    std::size_t wanted_lanes_ = 0;  // and will have when this staging is ready; none has more
    Order given_up_;                // Drop or Discard that has to be proposed yet, if stage is set
    std::uint64_t arm_tries_ = 0;   // calls named in vain, each further ahead
    std::uint64_t forward_tries_ = 0;  // of an end
    bool arm_proposed_ = false;
    std::uint64_t armed_at_ = 0;     // leader: where the staged plan is to come into force
    std::uint64_t in_force_at_ = 0;  // and where the one in force did
    bool gain_checked_ = false;
    std::uint32_t turns_ = 0;             // of the learned cycle, to where the iteration begins
    std::uint64_t turned_signature_ = 0;  // of a cycle that need not be looked at for that again
    bool looked_again_ = false;           // at a plan that was made from guesses
    PlanFacts facts_;                     // counters of executors that are gone
    std::mutex known_mutex_;
    PlanFacts known_;          // what facts() tells while another thread has the lock for long
    bool falling_ = false;     // Forward has been proposed, for the guard
    bool tightening_ = false;  // a plan has been staged that the guard asked for
    bool losing_ = false;      // the plan was slower than none
    bool outdated_ = false;    // it was made for another optimizer, or the job's doubts are new
    BackOff back_off_;
    bool interrupted_ = false;  // the last plan in force was, and that has been counted
    bool plan_failed_ = false;  // an operation of one: no other is carried out
    struct Made {
        planner::Plan plan;
        planner::Profile profile;
        double before_ms = 0;
        bool sure = true;  // not made in doubt: doubt_of()
    };
    std::map<std::uint64_t, Made> plans_;  // by signature: what that cycle gets, or had last
    planner::Plan plan_;                   // the leader's latest
    planner::Plan staged_plan_;            // that of staged_
    planner::Plan in_force_;               // and that of current_
    planner::Profile profile_;             // the latest was made for
    std::unique_ptr<guard::Guard> guard_;  // leader, from the first plan in force on
    double before_ms_ = 0;                 // median iteration before the plan
    bool plans_forgotten_ = false;         // facts_ has what is to be told of them

    // When tick() saw that the council had closed (0: it has not), and the job's call then.
    std::int64_t closed_ns_ = 0;
    std::uint64_t closed_at_ = 0;
    bool guard_missed_ = false;  // and said so

    void describe_plan(PlanFacts& facts) const;
    PlanFacts collect_facts() noexcept;
    PlanFacts remember_facts() noexcept;
    void forget() noexcept;
    void abort_lanes() noexcept;
    void clean_up(bool abort) noexcept;
    void forget_plans() noexcept;
    void step(Track& track);
    void lead(Track& track, const JobView& view);
    void find_beginning(Track& track, JobView& view);
    // The job has said where an iteration begins, and calls before it are still to be learned.
    bool beginning_ahead(const JobView& view) const noexcept {
        const std::uint64_t asked = switch_.iteration_begin();
        return asked != kNever && asked > view.next;
    }
    double warm_up_left_ms(const JobView& view) const;
    Settings allowed() const;
    const char* doubt_of(const JobView& view) const;
    bool decide(const Track& track, const JobView& view);
    bool propose_stage(const JobView& view);
    void watch_staging();
    std::uint64_t switch_call(const JobView& view, std::uint64_t not_before, std::uint64_t tries);
    void propose_arm(const JobView& view);
    void check_optimizer();
    bool give_way_to_used_map(const JobView& view);
    void check_used_map(const JobView& view);
    void check_gain(Track& track, const JobView& view);
    void look_again(const Track& track, const JobView& view);
    void hear_measured();
    void watch_accuracy(const JobView& view);
    bool give_way_to_guard();
    guard::Decision ask_guard();
    void plan_tighter(const guard::Decision& decision);
    void tighten(const JobView& view);
    void pause_after(const executor::Executor* plan, const char* what);
    // The plan in force is to end, at a call that has been named already.
    bool ending() const { return falling_ || losing_ || outdated_; }
    bool propose_forward();
    std::uint64_t iteration() const;
    void take_orders();
    void make_ready(JobView& view);
    Problem prepare_executor();
    bool wants_networks() const;
    bool may_gain_by_networks() const;
    void without_networks();
    void networks_measured();
    void networks_refused(const Problem& problem);
    void answer_stage(Step step, const Problem& problem);
    static std::size_t lanes_of(const planner::Plan& plan);
    bool plan_without_memory(const Problem& problem);
    static bool has_memory_for(const planner::Plan& plan, const JobView& view);
    void close_unused(const JobView& view);
    LaneSet::InUse in_use() const;
    bool propose_open(Problem& problem);
    void give_up_staging(Kind how);
    void leave_staging();
    void wind_up();
    void miss_guard();
    bool tell_given_up();
    void refuse(const Problem& problem);
    void settle(Track& track);
    void retire(std::unique_ptr<executor::Executor> old);
    void free_retired() noexcept;
    void enter(Course course);
    void recover();
    bool armed();
    void say(const char* why);
    void note_counters(const executor::Executor& executor);
};

}  // namespace deft::director
