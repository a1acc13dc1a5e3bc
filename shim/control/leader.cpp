// SPDX-License-Identifier: Apache-2.0
#include "shim/control/leader.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "shim/control/proof.h"
#include "shim/cuda/event_pool.h"
#include "shim/settings/companion.h"

namespace deft::director {
namespace {

// What failed for a reason that may pass is tried again, seldom and not for ever.
constexpr std::uint64_t kFirstRetry = 1'000'000'000;  // nanoseconds
constexpr std::uint32_t kStageTries = 6;
// The same where time ran out: NCCL goes on waiting, with a thread and memory, each time.
constexpr std::uint32_t kTimeouts = 2;
// So often the learned cycle is made to begin elsewhere.
constexpr std::uint32_t kMostRotations = 8;

}  // namespace

Leader::Leader(const CommunicatorInfo& info, agreement::Council& council, Inbox& inbox,
               PlanSwitch& plan_switch, LaneSet& lanes, Follower& follower)
    : info_(info),
      council_(council),
      inbox_(inbox),
      switch_(plan_switch),
      lanes_(lanes),
      follower_(follower),
      selector_(info, plan_switch, lanes, follower),
      review_(info, inbox, follower, selector_),
      stage_backoff_(kFirstRetry, kFirstRetry << kStageTries) {}

void Leader::enter(LeaderEvent event) {
    state_ = next_state(state_, event, follower_.current() != nullptr);
    state_since_ns_ = cuda::host_now();
}

// A cancelled Forward: its reason stands, and it is proposed again later.
void Leader::note_cancelled() {
    if (!inbox_.take_forward_cancelled()) {
        return;
    }
    if (ending_ == Ending::NoGain) {
        review_.check_gain_again();
    }
    ending_ = Ending::None;
}

void Leader::note_in_force() {
    enter(LeaderEvent::CameIntoForce);
    selector_.set_signature(staged_signature_);
    selector_.note_in_force();
    review_.note_in_force();
    (void)inbox_.take_pressed();  // of the plan before
}

void Leader::note_forwarding() {
    leave_staging();
    review_.note_none();
    review_.note_over();
    const bool fallen = review_.fallen();
    const bool outdated = ending_ == Ending::Outdated;
    const bool killed = ending_ == Ending::Killed;
    if (outdated) {
        follower_.pause_after_end("optimizer, or what it does with its gradients,");
    }
    // A plan over several networks was slower than none, or took too much memory.
    const bool pressed = ending_ == Ending::Pressed;
    const bool again = (ending_ == Ending::NoGain || pressed) && selector_.networks().size() > 1;
    enter(fallen                        ? LeaderEvent::PlanFell
          : again || outdated || killed ? LeaderEvent::PlanOver
                                        : LeaderEvent::PlanOverForGood);
    if (again && !fallen) {
        selector_.drop_networks();
    }
    if (pressed && !again && !fallen) {
        follower_.say(pressure_ == Pressure::Memory ? "the device's memory ran short"
                                                    : "a second network has died");
    }
    if (ending_ == Ending::NoGain && !fallen) {
        follower_.say(review_.loss_words().c_str());
    }
    if (outdated) {
        selector_.note_outdated();
    }
    if (killed) {
        selector_.select_anew();  // the plan may come back
    }
    ending_ = Ending::None;
}

void Leader::note_end() {
    selector_.select_anew();
    leave_staging();
    review_.set_tightening(false);
    if (follower_.plan_lapsed() && selector_.unproven() == nullptr) {
        review_.note_lapsed();
    }
    review_.note_none();
    enter(follower_.plan_failed() ? LeaderEvent::PlanOverForGood
          : review_.fallen()      ? LeaderEvent::PlanFell  // so it may not come back
                                  : LeaderEvent::PlanOver);
}

void Leader::wind_up() {
    if (making_ready()) {
        recover();
    }
    // A job that goes on like that should know; a job that merely ends has nothing to be told.
    if (review_.misses_guard()) {
        DEFT_WARN("accuracy guard: it cannot act any more (%s); the plan in force goes on",
                  council_.reason().c_str());
    }
}

// The job has said where an iteration begins, and calls before it are still to be learned.
bool Leader::beginning_ahead(const JobView& view) const noexcept {
    const std::uint64_t asked = switch_.iteration_begin();
    return view.series == Series::Sums && asked != PlanSwitch::kNever && asked > view.next;
}

// That is the place that counts. Merged and late sums of one update would be of different
// iterations otherwise. The job says where when it asks for deft_should_step() or deft_flush();
// without that the times tell, where they leave no doubt.
void Leader::find_beginning(Track& track, JobView& view) {
    const std::uint64_t length = view.gradients.size();
    const std::uint64_t asked = switch_.iteration_begin();
    // Where nothing may be late, any place does; and the cycle is not this communicator's alone.
    const bool any_place = view.series == Series::Shards || view.beside != nullptr;
    if (state_ != LeaderState::Watching || follower_.staging() || any_place) {
        return;
    }
    std::size_t position = 0;
    if (const std::size_t first = first_place(view.gradients); first < view.gradients.size()) {
        // The companion says so, of each cycle. What the times say may differ from time to time,
        // so that is followed a few times only.
        turn(track, beginning_at(track, first), view);
        return;
    }
    if (rotations_ >= kMostRotations) {
        return;
    }
    if (asked == PlanSwitch::kNever || asked + length <= view.start) {
        if (view.measured && view.signature != rotated_signature_) {
            rotated_signature_ = view.signature;
            position = beginning_of(track);
        }
    } else if (!beginning_ahead(view)) {
        position = beginning_at(track, (asked + length - view.start) % length);
    }
    rotations_ += position != 0 ? 1 : 0;
    turn(track, position, view);
}

// Makes the learned cycle begin there.
void Leader::turn(Track& track, std::size_t position, JobView& view) const {
    if (position != 0) {
        track.rotate(position);
        view = view_job(track, info_.serial, false);
    }
}

void Leader::lead(Track& track, const JobView& view) {
    if (proof_needed()) {
        selector_.note_unproven(find_unproven(inbox_.proofs(), info_.nranks, companion_name()));
        selector_.note_steps(module_proof(follower_.proven_module()).steps);
    } else if (proof_told()) {
        selector_.note_layers(find_unproven(inbox_.proofs(), info_.nranks, companion_name()));
    }
    review_.note_training();
    if (!tell_given_up()) {
        return;
    }
    if (selector_.profile_stale() && state_ == LeaderState::Watching && view.reason.empty()) {
        selector_.profile_restarted();
        track.restart_profile();
        return;
    }
    switch (state_) {
        case LeaderState::Watching:
            watch(track, view);
            break;
        case LeaderState::Staging:
            if (!gives_way(view)) {
                watch_staging();
            }
            break;
        case LeaderState::Arming:
            if (!gives_way(view)) {
                propose_arm(view);
            }
            break;
        case LeaderState::Running:
            review(track, view);
            break;
        case LeaderState::Fallen:
            watch_accuracy(view);
            break;
        case LeaderState::Resting:
            break;
    }
    close_unused(view);
}

bool Leader::at_rest(const JobView& view) const {
    if (state_ != LeaderState::Watching) {
        return state_ == LeaderState::Resting;
    }
    return view.reason.empty()
               ? selector_.signature() != 0 && view.signature == selector_.signature()
               : view.learned;
}

// For any rank.
bool Leader::killed() {
    const bool now = inbox_.halted() >= 0;
    if (!now && killed_) {
        DEFT_INFO("the kill switch is gone: plans are made again");
        follower_.note_reason("");
    }
    killed_ = now;
    killed_said_ = killed_said_ && now;
    return now;
}

void Leader::watch(const Track& track, const JobView& view) {
    if (killed()) {
        follower_.say("the kill switch is there");
        return;
    }
    if (!view.reason.empty()) {
        if (view.learned) {
            follower_.say(view.reason.c_str());
        }
        return;
    }
    // At the next look it may be another iteration.
    if (beginning_ahead(view) || follower_.pausing() || !selector_.due(view) || inbox_.armed()) {
        return;
    }
    if (selector_.select(track, view) && !propose_stage(view)) {
        selector_.select_anew();  // the council is busy: try again
    }
}

void Leader::review(Track& track, const JobView& view) {
    if (running()) {
        end_killed();
    }
    if (running()) {
        watch_accuracy(view);
    }
    if (running()) {
        end_under_pressure();
    }
    if (running()) {
        end_outdated(
            review_.made_for_another_optimizer(),
            "the plan in force was made for another optimizer; it ends, and one is made anew");
    }
    if (const char* const why = unproven(follower_.in_force());
        running() && why != nullptr && end_plan(Ending::Outdated)) {
        DEFT_WARN("the plan in force ends: %s (docs/companion.md)", why);
    }
    if (running()) {
        end_outdated(PlanReview::used_map_concerns(follower_.in_force(), view),
                     "DDP looks for unused parameters from now on; the plan in force ends");
    }
    if (running()) {
        end_outdated(view.reason.empty() && view.series != follower_.current()->script().series(),
                     "the job's gradients travel otherwise; the plan in force ends");
    }
    if (running()) {
        end_without_gain(track, view);
    }
    if (running()) {
        look_again(track, view);
    }
}

// False: the council is busy, and the same is found at the next look.
bool Leader::end_plan(Ending ending) {
    if (!propose_forward()) {
        return false;
    }
    ending_ = ending;
    return true;
}

void Leader::end_outdated(bool outdated, const char* why) {
    if (outdated && end_plan(Ending::Outdated)) {
        DEFT_INFO("%s", why);
    }
}

// Once, and only of a communicator that loses something: a job may have hundreds.
void Leader::say_killed() {
    if (!killed_said_) {
        DEFT_WARN("the kill switch is there on rank %d: no plan is carried out until it is gone",
                  inbox_.halted());
    }
    killed_said_ = true;
}

void Leader::end_killed() {
    if (killed() && end_plan(Ending::Killed)) {
        say_killed();
    }
}

// Where a rank says so again, because the council was busy, it is heard again.
void Leader::end_under_pressure() {
    const auto pressed = inbox_.take_pressed();
    if (!pressed || !end_plan(Ending::Pressed)) {
        return;
    }
    pressure_ = pressed->why;
    if (pressed->why == Pressure::Network && !std::exchange(network_said_, true)) {
        DEFT_WARN(
            "rank %d: the links of a second network are dead, and some that NCCL's IB uses carry "
            "for them: the plan over that network ends, and the job goes on without it",
            pressed->rank);
    } else if (pressed->why == Pressure::Memory) {
        DEFT_INFO("rank %d has little device memory left: the plan and its lanes go",
                  pressed->rank);
    }
}

// A plan that turns out slower than the job was is given up.
void Leader::end_without_gain(const Track& track, const JobView& view) {
    const auto loss = review_.loss(track, view);
    if (loss && end_plan(Ending::NoGain)) {
        review_.note_loss(*loss);
    }
}

void Leader::look_again(const Track& track, const JobView& view) {
    auto better = review_.look_again(track, view);
    if (!better) {
        return;
    }
    if (selector_.priced_out(better->plan) != nullptr) {
        review_.note_declined();
        return;
    }
    follower_.set_plan(better->plan);
    if (!propose_stage(view)) {
        follower_.set_plan(follower_.in_force());
        selector_.set_reestimated(false);  // the council is busy: try again
        return;
    }
    DEFT_INFO("a better plan: %s", better->note.c_str());
    review_.note_proposed(*better);
    selector_.remember(view.signature, std::move(better->plan), better->profile);
    selector_.set_profile(std::move(better->profile));
}

// Does what the guard has decided, or has yet to be done of it: it says a thing once.
void Leader::watch_accuracy(const JobView& view) {
    if (!review_.guarding()) {
        return;
    }
    const bool in_force = follower_.current() != nullptr;
    if (!in_force || !review_.fallen()) {
        review_.plan_tighter(review_.ask_guard());
    }
    if (review_.wants_tighter()) {
        tighten(view);
    }
    if (review_.fallen()) {
        if (in_force) {
            end_plan(Ending::Guard);
        } else if (ending_ == Ending::Guard) {
            ending_ = Ending::None;  // the job was first
        }
    } else if (!in_force) {
        selector_.select_anew();  // the plan may come back, with the cycle it is for
        enter(LeaderEvent::GuardResumed);
    }
}

void Leader::tighten(const JobView& view) {
    if (review_.tightening()) {  // and is not on its way any more
        review_.set_tightening(false);
        review_.tightened_in_vain();
        return;
    }
    if (!view.reason.empty() || view.signature != selector_.signature()) {
        return;  // a metric, a barrier
    }
    follower_.set_plan(selector_.remembered());
    review_.set_tightening(propose_stage(view));
    if (!review_.tightening()) {
        follower_.set_plan(follower_.in_force());  // the council is busy
    }
}

bool Leader::gives_way(const JobView& view) {
    return gives_way_to_kill_switch() || gives_way_to_guard() || gives_way_to_used_map(view) ||
           gives_way_to_unproven();
}

// The plan needs a proof that a rank does not have any more: which. Null: it does not.
// Or it is late, and more than the job's steps bear at their present rate.
const char* Leader::unproven(const planner::Plan& plan) {
    if (plan.barrier == planner::Barrier::Layer) {
        return selector_.layers_do_not_wait();
    }
    if (!plan.predicted.late_or_merged()) {
        return nullptr;
    }
    const char* const why = selector_.unproven();
    return why != nullptr ? why : selector_.priced_out(plan);
}

bool Leader::gives_way_to_unproven() {
    const char* const why = unproven(follower_.plan());
    if (selector_.only_networks() || why == nullptr || inbox_.armed()) {
        return false;
    }
    leave_staging();
    refuse({why, false});
    review_.set_tightening(false);
    if (follower_.current() == nullptr) {
        selector_.select_anew();  // to be decided in doubt
    }
    return true;
}

// A plan that is to replace the one in force goes first, that one next. Nothing was refused, so
// nothing is given up for good.
bool Leader::gives_way_to_kill_switch() {
    if (!killed() || inbox_.armed()) {
        return false;
    }
    say_killed();
    leave_staging();
    selector_.no_networks_now();
    const bool tightening = review_.tightening();
    review_.set_tightening(false);
    enter(LeaderEvent::StageRefused);
    if (follower_.current() != nullptr) {
        follower_.set_plan(follower_.in_force());
        if (!tightening) {  // else the guard's plan comes next, and not the one it objected to
            selector_.replace_remembered(follower_.in_force());
        }
    } else {
        selector_.select_anew();
    }
    return true;
}

// The guard does not wait until the plan in force has been replaced, which takes as long as the
// slowest rank wants.
bool Leader::gives_way_to_guard() {
    if (!review_.guarding() || follower_.current() == nullptr || ending_ != Ending::None ||
        inbox_.armed()) {
        return false;
    }
    const guard::Decision decision = review_.ask_guard();
    if (!decision.act) {
        return false;
    }
    leave_staging();
    refuse({"the accuracy guard: " + decision.reason, true});
    review_.set_tightening(false);
    review_.plan_tighter(decision);
    return true;
}

// DDP has begun to tell which parameters were used, and no map was looked for when the plan was
// made that is being made ready.
bool Leader::gives_way_to_used_map(const JobView& view) {
    if (selector_.only_networks() || !PlanReview::used_map_concerns(follower_.plan(), view) ||
        inbox_.armed()) {
        return false;
    }
    leave_staging();
    refuse({doubt_about(view), false});
    review_.set_tightening(false);
    if (follower_.current() == nullptr) {
        selector_.select_anew();  // to be decided in doubt
    }
    return true;
}

// The plan in force has ended while another was to take its place. A rank that has launched the
// trials of its lanes waits for all, of which some may never launch theirs.
void Leader::leave_staging() {
    if (making_ready()) {
        // Where one is ready, all have launched theirs.
        const bool trying = state_ == LeaderState::Staging && rehearsal_proposed_ &&
                            inbox_.tally(stage_serial_).ready == 0;
        give_up_staging(open_proposed_ && !trying ? Kind::Discard : Kind::Drop);
    }
}

// A rank has its lanes and cannot carry out a plan that delays or merges, most likely for want of
// memory. False: it was no such plan.
bool Leader::plan_without_memory(const Problem& problem) {
    if (follower_.current() != nullptr || selector_.only_networks() ||
        !follower_.plan().predicted.late_or_merged()) {
        return false;
    }
    DEFT_INFO("rank %d: the plan cannot be carried out: %s", info_.rank, problem.why.c_str());
    selector_.note_unfit(problem, staged_signature_);
    enter(LeaderEvent::StageRefused);
    return true;
}

// Nothing comes of this staging. What may pass is tried again: 1, 2, 4 ... seconds later.
void Leader::refuse(const Problem& problem) {
    if (selector_.only_networks() && open_proposed_) {
        selector_.networks_refused(problem);
        enter(LeaderEvent::NetworksDone);
        return;
    }
    selector_.no_networks_now();
    follower_.say(problem.why.c_str());
    enter(LeaderEvent::StageRefused);
    if (follower_.current() != nullptr) {
        follower_.set_plan(follower_.in_force());
        if (!review_.tightening()) {
            selector_.replace_remembered(follower_.in_force());
        }
        return;
    }
    if (!problem.may_pass) {
        return;
    }
    const std::uint64_t pause_ns = stage_backoff_.failed();
    timeouts_ += problem.timed_out ? 1 : 0;
    if (stage_backoff_.failures() >= kStageTries || timeouts_ >= kTimeouts) {
        follower_.say(("given up after " + std::to_string(stage_backoff_.failures()) +
                       " attempts; the last: " + problem.why)
                          .c_str());
        enter(LeaderEvent::RefusedForGood);
        return;
    }
    selector_.select_anew_after(pause_ns);
}

void Leader::forget() noexcept {
    selector_.forget();
    review_.forget();
}

}  // namespace deft::director
