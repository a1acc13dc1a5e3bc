// SPDX-License-Identifier: Apache-2.0
// What every rank does, the leader's too: it carries out the leader's orders, makes plans ready,
// and takes note of what hooks and council have done.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "planner/model/plan.h"
#include "shim/agreement/council.h"
#include "shim/control/communicator_info.h"
#include "shim/control/inbox.h"
#include "shim/control/job_view.h"
#include "shim/control/lane_set.h"
#include "shim/control/message.h"
#include "shim/control/plan_backoff.h"
#include "shim/control/plan_report.h"
#include "shim/control/plan_switch.h"
#include "shim/control/problem.h"
#include "shim/executor/executor.h"

namespace deft::director {

struct Settings;

// Threads: the shim's background thread, or whoever holds the director's work lock.
class Follower {
public:
    Follower(const CommunicatorInfo& info, agreement::Council& council, Inbox& inbox,
             PlanSwitch& plan_switch, LaneSet& lanes);
    Follower(const Follower&) = delete;

    // This process has another rank of the communicator. Any thread.
    void share_process() noexcept { shares_process_.store(true, std::memory_order_release); }

    // Takes note of a switch that hooks have made since the last look: what was staged is in force,
    // or calls are forwarded again.
    enum class Switched : std::uint8_t { None, InForce, Forwarding };
    Switched take_switch();
    // Takes a plan out of force that the job has ended. False: there is none.
    bool take_end();
    // Frees what no hook can hold any more.
    void free_retired() noexcept;

    void take_orders();
    // A council has closed: nothing can be agreed on any more. What is staged gives its memory
    // back, and lanes go that were never in force. False: it has not closed.
    bool wind_up();
    // Ends the lanes that the leader needs no more, as far as nothing here uses them.
    void end_unused_lanes();
    // That makes lanes, which waits for other ranks.
    bool opens_next() const;
    // The next step towards the plan that the leader has sent, if there is one. May wait for other
    // ranks; `before_each` is called before each wait.
    void make_ready(JobView& view, const std::function<void()>& before_each);
    // Tells the leader what the companion has proven here, where proof is needed.
    void report_proof(const JobView& view);
    // The companion's, of the cycle that was told of last; 0: there is none.
    std::uint32_t proven_module() const { return told_proof_ ? told_proof_->module : 0; }
    // Sends the leader what the plan in force has measured, as far as the leader needs it of this
    // rank.
    void report_measured();
    // The same of what the companion tells of the training.
    void report_training();
    // Tells the leader that the job needs the memory of the lanes here.
    void report_pressure();
    // Tells the leader when the kill switch has come or gone for this rank.
    void report_kill_switch();
    // This rank vouches for the plan in force, unless it is told why not: then the plan ends on all
    // ranks, soon. So it does where the rank is not told for ten seconds. Nothing is asked where
    // the guard only warns, and of plans that neither delay nor merge.
    void vouch(const char* why_not);
    // The same, before this thread waits for other ranks.
    void vouch_while_waiting();

    // The job has ended a plan by a change of `what`. Nothing is planned for a while if that
    // happens often.
    void pause_after_end(const char* what);
    bool pausing() const { return backoff_.holds(switch_.calls()); }

    // The reason for doing nothing; said once at level INFO.
    void say(const char* why);
    // The same for the report alone; empty: none.
    void note_reason(const char* why) { said_ = why; }
    const std::string& reason() const { return said_; }

    // A step has failed: what is in force is watched on.
    void recover() { state_ = current_ != nullptr ? State::Running : State::Resting; }
    const char* state_name() const;
    bool staging() const { return staging_ != nullptr; }
    // Of the gradients that the plan being made ready is for; empty: there is none.
    std::vector<executor::Shape> staging_shapes() const;
    // What that plan may ask lanes for.
    std::vector<executor::Shape> staging_calls() const;
    // The last plan ended because a rank did not vouch for it.
    bool plan_lapsed() const { return plan_lapsed_; }
    // An operation of a plan has failed: no other is carried out.
    bool plan_failed() const { return plan_failed_; }

    // The executor in force; null: none.
    const executor::Executor* current() const { return current_.get(); }
    // Its plan.
    const planner::Plan& in_force() const { return in_force_; }
    // The latest that was staged here, or on the leader: that it has in mind.
    const planner::Plan& plan() const { return plan_; }
    void set_plan(planner::Plan plan) { plan_ = std::move(plan); }
    // Iterations of the job so far, by the calls of the plan's cycle.
    std::uint64_t iteration() const;
    // Gradient calls since the council was seen to have closed.
    std::uint64_t calls_since_closed() const { return switch_.calls() - closed_at_; }

    // Counters of executors that are gone, and what was told of plans that are forgotten.
    PlanFacts& facts() { return facts_; }
    // With those of the executor in force.
    PlanFacts all_facts() const;

    // The communicator has ended and its lanes are closed: executors go, as far as no hook holds
    // them. True if none is left.
    bool retire_all() noexcept;
    void forget_plans() noexcept;

private:
    // On its way from the leader's order to "ready".
    struct Staging {
        Order order;
        std::int64_t since_ns = 0;
        bool learned = false;  // and said so
        bool open = false;     // all ranks have
        bool dropped = false;
        bool discarded = false;  // make the lanes that the others wait for, and nothing else
        bool opened = false;     // lanes are there, and have yet to pass their trials
        std::vector<executor::Shape> shapes;  // of the gradients, as the plan has them
        std::vector<std::uint64_t> marks;     // and what the companion says of them
        bool late = false;                    // the plan delays, merges or filters
        bool layers = false;                  // it is for layers that wait for their own
    };
    // Of a rank that does not lead; the leader's is a LeaderState.
    enum class State : std::uint8_t { Watching, Running, Resting };

    Proof prove_now(const JobView& view) const;
    void take_order(Order order);
    void learn(JobView& view, std::int64_t waited_ns);
    void answer(Step step, const Problem& problem);
    Problem open_lanes(const std::function<void()>& before_each);
    Problem prepare_executor();
    void watch_trials();
    void finish_staging(Problem problem);
    void drop_staging();
    Problem stage_plan(const cuda::Execution& driver, const Settings& settings);
    LaneSet::InUse in_use() const;
    void retire(std::unique_ptr<executor::Executor> old);

    const CommunicatorInfo& info_;
    agreement::Council& council_;
    Inbox& inbox_;
    PlanSwitch& switch_;
    LaneSet& lanes_;
    std::atomic<bool> shares_process_{false};

    State state_ = State::Watching;
    std::unique_ptr<Staging> staging_;             // being made ready on this rank
    std::unique_ptr<executor::Executor> staged_;   // ready, not in force
    std::unique_ptr<executor::Executor> current_;  // in force
    std::vector<std::unique_ptr<executor::Executor>> retired_;
    std::size_t keep_lanes_ = LaneSet::kMost;  // ordered by Close, not done yet
    planner::Plan plan_;                       // see plan()
    planner::Plan staged_plan_;                // that of staged_
    planner::Plan in_force_;                   // and that of current_
    PlanFacts facts_;
    std::string said_;
    std::string why_not_vouched_;
    std::optional<Proof> told_proof_;  // to the leader

    // The plan that was in force last: gradients in its iteration, and how long it was.
    std::uint64_t ended_length_ = 0;
    std::uint64_t ended_iterations_ = 0;
    PlanBackoff backoff_;
    bool interrupted_ = false;  // the last plan in force was, and that has been counted
    bool plan_lapsed_ = false;
    bool plan_failed_ = false;

    bool halted_ = false;         // as the leader was told
    std::int64_t halted_ns_ = 0;  // and when; 0: it never was

    // When the council was seen to have closed (0: it has not), and the job's call then.
    std::int64_t closed_ns_ = 0;
    std::uint64_t closed_at_ = 0;
};

}  // namespace deft::director
