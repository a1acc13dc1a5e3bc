// SPDX-License-Identifier: Apache-2.0
// What the leader alone does: it has plans made, proposes when they come into force, and ends them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shim/agreement/council.h"
#include "shim/control/backoff.h"
#include "shim/control/communicator_info.h"
#include "shim/control/follower.h"
#include "shim/control/inbox.h"
#include "shim/control/job_view.h"
#include "shim/control/lane_set.h"
#include "shim/control/leader_state.h"
#include "shim/control/message.h"
#include "shim/control/plan_review.h"
#include "shim/control/plan_selector.h"
#include "shim/control/plan_switch.h"
#include "shim/control/problem.h"
#include "shim/learning/track.h"

namespace deft::director {

// Threads: the shim's background thread, or whoever holds the director's work lock. leader.cpp has
// the states and what is done in each; leader_proposals.cpp, what it proposes to the council.
class Leader {
public:
    Leader(const CommunicatorInfo& info, agreement::Council& council, Inbox& inbox,
           PlanSwitch& plan_switch, LaneSet& lanes, Follower& follower);
    Leader(const Leader&) = delete;

    // Takes note of what the follower has: a switch was made, the job has ended the plan in force.
    void note_cancelled();
    void note_in_force();
    void note_forwarding();
    void note_end();
    // A step has failed: what is in force is watched on.
    void recover() { enter(LeaderEvent::Lost); }
    // The council has closed.
    void wind_up();

    // The leader's cycle begins where the job's iteration does.
    void find_beginning(Track& track, JobView& view);
    // The next step.
    void lead(Track& track, const JobView& view);

    LeaderState state() const { return state_; }
    // Nothing is planned for what the job does, and nothing is being made ready.
    bool at_rest(const JobView& view) const;
    // A proposal that is none of the planner's. False: the council is busy.
    bool propose_other(std::vector<std::byte> body, std::uint64_t switch_call,
                       std::uint64_t& serial);
    // Something is under way, so that the next look should come soon.
    bool busy() const { return making_ready(); }
    // As PlanReview's.
    const char* why_not_vouch() { return review_.why_not_vouch(); }
    const planner::Spread& before() const { return selector_.before(); }
    std::uint64_t guard_decisions() const { return review_.decisions(); }
    const std::vector<GuardEvent>& guard_history() const { return review_.guard_history(); }
    guard::LateStretch late_stretch() const { return review_.late_stretch(); }
    // The communicator has ended.
    void forget() noexcept;

private:
    void enter(LeaderEvent event);
    bool making_ready() const {
        return state_ == LeaderState::Staging || state_ == LeaderState::Arming;
    }
    bool beginning_ahead(const JobView& view) const noexcept;
    void watch(const Track& track, const JobView& view);

    // A plan in force.
    bool running() const { return state_ == LeaderState::Running && ending_ == Ending::None; }
    void review(Track& track, const JobView& view);
    bool end_plan(Ending ending);
    void end_outdated(bool outdated, const char* why);
    void end_killed();
    void end_under_pressure();
    void end_without_gain(const Track& track, const JobView& view);
    void look_again(const Track& track, const JobView& view);
    void watch_accuracy(const JobView& view);
    void tighten(const JobView& view);
    void turn(Track& track, std::size_t position, JobView& view) const;
    // True: nothing comes of the plan that is being made ready.
    bool gives_way(const JobView& view);
    bool gives_way_to_kill_switch();
    bool gives_way_to_guard();
    bool gives_way_to_used_map(const JobView& view);
    bool gives_way_to_unproven();
    const char* unproven(const planner::Plan& plan);
    bool killed();
    void say_killed();

    // Proposals. False: the council is busy.
    bool propose(const Order& order, std::uint64_t switch_call);
    bool propose_stage(const JobView& view);
    void watch_staging();
    bool propose_open(Problem& problem);
    void propose_rehearsal(Problem& problem);
    void propose_arm(const JobView& view);
    bool propose_forward();
    std::uint64_t switch_call(const JobView& view, std::uint64_t not_before);
    void close_unused(const JobView& view);

    // Nothing comes of a staging.
    void give_up_staging(Kind how);
    void leave_staging();
    bool tell_given_up();
    bool plan_without_memory(const Problem& problem);
    void refuse(const Problem& problem);

    const CommunicatorInfo& info_;
    agreement::Council& council_;
    Inbox& inbox_;
    PlanSwitch& switch_;
    LaneSet& lanes_;
    Follower& follower_;
    PlanSelector selector_;
    PlanReview review_;

    LeaderState state_ = LeaderState::Watching;
    std::int64_t state_since_ns_ = 0;
    bool killed_ = false;  // so it was at the last look
    bool killed_said_ = false;
    bool network_said_ = false;
    Pressure pressure_ = Pressure::Memory;  // of Ending::Pressed
    Ending ending_ = Ending::None;  // of the plan in force, at a call that has been named already

    std::uint64_t next_serial_ = 1;  // of a proposal
    std::uint64_t stage_serial_ = 0;
    std::uint64_t staged_signature_ = 0;  // what is staged was made for
    bool open_proposed_ = false;
    std::uint64_t staged_at_call_ = 0;  // the job's, when the staging began, and when that was
    std::int64_t staged_at_ns_ = 0;
    bool rehearsal_proposed_ = false;    // and not cancelled
    std::uint64_t rehearsal_tries_ = 0;  // calls named in vain, each further ahead
    std::size_t agreed_lanes_ = 0;       // that every rank has
    std::size_t wanted_lanes_ = 0;       // and will have when this staging is ready; none has more
    Order given_up_;              // Drop or Discard that has to be proposed yet, if stage is set
    Backoff stage_backoff_;       // of refusals in a row
    std::uint32_t timeouts_ = 0;  // of them, because ranks did not come about in time
    bool arm_proposed_ = false;
    std::uint64_t arm_tries_ = 0;  // calls named in vain, each further ahead

    std::uint32_t rotations_ = 0;          // of the learned cycle, to where the iteration begins
    std::uint64_t rotated_signature_ = 0;  // of a cycle that need not be looked at for that again
};

}  // namespace deft::director
