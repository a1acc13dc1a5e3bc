// SPDX-License-Identifier: Apache-2.0
// What the leader proposes to the council. A plan is made ready on every rank in two steps: all
// ranks say that they have learned the cycle, and only then lanes are opened, which waits for every
// rank. Nothing of that changes what happens to a call. Then a call is named from which on the plan
// is in force, or every call is forwarded again.
#include <algorithm>
#include <utility>

#include "planner/model/plan_json.h"
#include "shim/control/leader.h"
#include "shim/control/plan_choice.h"
#include "shim/cuda/event_pool.h"
#include "shim/settings/settings.h"

namespace deft::director {
namespace {

constexpr std::int64_t kArmDeadline = 30'000'000'000;
constexpr std::uint64_t kArmTries = 5;
constexpr std::uint64_t kRehearsalTries = 5;
constexpr double kLeastPatienceMs = 5000;
// The call at which ranks ask each other lies this far ahead of the rank that is furthest.
constexpr double kAskAheadMs = 500;
// Where no plan is in force the ranks ask each other so many iterations before one is. A rank may
// not hear the answer before all hosts have come to the question, and a host of a pipeline may wait
// for what another one sends in the same iteration.
constexpr std::uint64_t kBeginBehind = 2;

}  // namespace

bool Leader::propose(const Order& order, std::uint64_t switch_call) {
    agreement::Proposal proposal;
    proposal.serial = next_serial_++;
    proposal.switch_call = switch_call;
    proposal.body = encode(order);
    return council_.propose(std::move(proposal));
}

bool Leader::propose_other(std::vector<std::byte> body, std::uint64_t switch_call,
                           std::uint64_t& serial) {
    agreement::Proposal proposal;
    proposal.serial = serial = next_serial_++;
    proposal.switch_call = switch_call;
    proposal.body = std::move(body);
    return council_.propose(std::move(proposal));
}

bool Leader::propose_stage(const JobView& view) {
    Order order;
    order.kind = Kind::Stage;
    order.stage = next_serial_;
    order.signature = view.signature;
    if (!selector_.only_networks()) {
        const planner::Plan& plan = follower_.plan();
        order.plan = planner::plan_to_json(plan);
        order.prediction = executor::to_text(choose_prediction(plan));
        order.iterations = follower_.all_facts().iterations;
    }
    stage_serial_ = next_serial_;
    staged_signature_ = view.signature;
    open_proposed_ = false;
    rehearsal_proposed_ = false;
    rehearsal_tries_ = 0;
    staged_at_call_ = switch_.calls();
    staged_at_ns_ = cuda::host_now();
    inbox_.begin_staging();
    if (!propose(order, PlanSwitch::kNever)) {
        return false;
    }
    enter(LeaderEvent::StageProposed);
    return true;
}

// All ranks are about to open lanes at once.
bool Leader::propose_open(Problem& problem) {
    const executor::Executor* const current = follower_.current();
    Order order;
    order.kind = Kind::Open;
    order.stage = stage_serial_;
    // A plan in force keeps its lanes until this one takes over.
    const std::size_t planned =
        selector_.only_networks() ? lanes_.other_networks().size() + 1 : lanes_of(follower_.plan());
    const std::size_t wanted = std::max(planned, current != nullptr ? current->lanes() : 0);
    const bool keep = current != nullptr || lanes_.rehearsed(follower_.staging_calls());
    order.keep = keep ? std::min(agreed_lanes_, wanted) : 0;
    for (std::size_t i = order.keep; i < wanted; ++i) {
        deft_nccl_unique_id_t id{};
        if (info_.table->GetUniqueId == nullptr ||
            info_.table->GetUniqueId(&id) != DEFT_NCCL_SUCCESS) {
            problem = {"NCCL gives no unique id for a lane", true};
            return true;
        }
        order.lanes.push_back(id);
    }
    if (!propose(order, PlanSwitch::kNever)) {
        return false;
    }
    wanted_lanes_ = wanted;
    agreed_lanes_ = std::min<std::size_t>(agreed_lanes_, order.keep);
    return true;
}

// At one call of the job's all ranks launch the trials of their new lanes, from the thread that
// makes its calls. Far enough ahead of every rank, and wherever that call lies in an iteration.
void Leader::propose_rehearsal(Problem& problem) {
    if (inbox_.take_rehearsal_cancelled()) {
        rehearsal_proposed_ = false;
        ++rehearsal_tries_;
    }
    if (rehearsal_proposed_) {
        return;
    }
    if (rehearsal_tries_ >= kRehearsalTries) {
        problem = {"the ranks did not agree on a call to try lanes at", true};
        return;
    }
    const std::uint64_t length = std::max<std::size_t>(follower_.staging_shapes().size(), 1);
    // By the calls since the staging began: nothing may have been timed yet.
    const auto calls = static_cast<double>(switch_.calls() - staged_at_call_);
    const double ms = std::max(static_cast<double>(cuda::host_now() - staged_at_ns_) / 1e6, 1.0);
    const auto ahead = length + static_cast<std::uint64_t>(kAskAheadMs * calls / ms);
    const double iteration_ms = static_cast<double>(length) * ms / std::max(calls, 1.0);
    const auto most = static_cast<double>(info_.lane_deadline().count());
    Order order;
    order.kind = Kind::Rehearse;
    order.stage = stage_serial_;
    // NCCL connects a rank when its peers are there too, whose hosts may be an iteration behind.
    order.patience_ms =
        static_cast<std::uint64_t>(std::clamp(2 * iteration_ms, kLeastPatienceMs, most));
    rehearsal_proposed_ = propose(order, inbox_.furthest() + (ahead << rehearsal_tries_));
}

void Leader::watch_staging() {
    Inbox::Tally tally = inbox_.tally(stage_serial_);
    const auto all = static_cast<std::size_t>(info_.nranks);
    if (switch_.trials().ahead()) {
        state_since_ns_ = cuda::host_now();  // the job takes the time that it takes
    }
    const std::chrono::nanoseconds staging(cuda::host_now() - state_since_ns_);
    if (tally.refused.empty() && staging > info_.stage_deadline()) {
        tally.refused = {"a rank was not ready in time", true};
        tally.refused.timed_out = true;
        tally.lanes_missing = true;
    }
    if (tally.refused.empty() && !open_proposed_ && tally.learned == all) {
        open_proposed_ = propose_open(tally.refused);
    }
    if (tally.refused.empty() && tally.opened == all && tally.ready < all) {
        propose_rehearsal(tally.refused);
    }
    if (!tally.refused.empty()) {
        if (tally.lanes_missing && follower_.current() == nullptr) {
            agreed_lanes_ = 0;  // one that was there may have failed
        }
        give_up_staging(tally.lanes_missing ? Kind::Drop : Kind::Discard);
        if (tally.lanes_missing || !plan_without_memory(tally.refused)) {
            refuse(tally.refused);
        }
    } else if (tally.ready == all) {
        agreed_lanes_ = wanted_lanes_;
        stage_backoff_.succeeded();
        timeouts_ = 0;
        if (selector_.only_networks()) {
            selector_.networks_measured(lanes_.speeds());
            enter(LeaderEvent::NetworksDone);
            return;
        }
        if (!lanes_.speeds().empty()) {
            selector_.lane_measured(lanes_.speeds().front());
        }
        arm_tries_ = 0;
        arm_proposed_ = false;
        enter(LeaderEvent::AllReady);
    }
}

// The start of an iteration far enough ahead of every rank, where no plan is in force.
std::uint64_t Leader::switch_call(const JobView& view, std::uint64_t not_before) {
    const std::uint64_t length = view.gradients.size();
    const double iteration_ms = std::max(selector_.before_ms(), 0.1);
    const std::uint64_t ahead = 1 + static_cast<std::uint64_t>(kAskAheadMs / iteration_ms);
    const std::uint64_t from =
        std::max(inbox_.furthest() + (ahead << arm_tries_) * length, not_before);
    const std::uint64_t past = from > view.start ? from - view.start : 0;
    return view.start + (past + length - 1) / length * length;
}

void Leader::propose_arm(const JobView& view) {
    if (inbox_.armed()) {
        return;  // the follower sees it come into force
    }
    const bool cancelled = inbox_.take_arm_cancelled();
    if (arm_proposed_ && !cancelled) {
        return;
    }
    if (arm_proposed_) {
        ++arm_tries_;
        arm_proposed_ = false;
    }
    const bool late = cuda::host_now() - state_since_ns_ > kArmDeadline;
    const bool other = view.reason.empty() && view.signature != selector_.signature();
    if (arm_tries_ >= kArmTries || late || other) {
        give_up_staging(Kind::Discard);
        refuse({other                 ? "the job's iteration has changed"
                : view.reason.empty() ? "the ranks did not agree on a call to switch at"
                                      : view.reason,
                true});
        return;
    }
    if (!view.reason.empty()) {
        return;  // a metric, a barrier: the cycle is seen again soon
    }
    Order order;
    order.ordinal = switch_.calls();  // before the switch is looked for
    std::uint64_t asked_at = PlanSwitch::kAtRenewal;
    if (follower_.current() == nullptr) {
        asked_at = switch_call(view, Settings::process().warm_up * view.gradients.size());
        order.begin = asked_at + kBeginBehind * view.gradients.size();
    }
    order.kind = Kind::Arm;
    order.stage = stage_serial_;
    order.signature = view.signature;
    arm_proposed_ = propose(order, asked_at);
}

// Ends the plan in force, whatever is known of the job at the moment.
bool Leader::propose_forward() {
    if (inbox_.armed()) {
        return false;
    }
    Order order;
    order.kind = Kind::Forward;
    return propose(order, PlanSwitch::kAtRenewal);
}

// Lanes that no plan uses any more: a network that helps nothing, a plan that was given up. The
// leader names how many stay; each rank ends the others when nothing of its own uses them. While a
// plan is being made ready, or the guard may take one up again, all stay.
void Leader::close_unused(const JobView& view) {
    const bool nothing = state_ == LeaderState::Watching && view.reason.empty() &&
                         selector_.signature() != 0 && view.signature == selector_.signature();
    const bool settled = nothing || (killed_ && state_ == LeaderState::Watching) ||
                         state_ == LeaderState::Running || state_ == LeaderState::Resting;
    const executor::Executor* const current = follower_.current();
    const std::size_t needed = current != nullptr ? current->lanes() : 0;
    if (!settled || wanted_lanes_ <= needed) {
        return;
    }
    Order order;
    order.kind = Kind::Close;
    order.keep = std::min(agreed_lanes_, needed);
    if (propose(order, PlanSwitch::kNever)) {
        wanted_lanes_ = agreed_lanes_ = static_cast<std::size_t>(order.keep);
    }  // else it is busy: at the next look
}

// Nothing comes of this staging. Drop: not every rank makes its lanes, so nobody waits for them.
// Discard: all do; only what is staged goes.
void Leader::give_up_staging(Kind how) {
    review_.note_declined();
    given_up_ = {};
    given_up_.kind = how;
    given_up_.stage = stage_serial_;
    tell_given_up();
}

// False: the council is busy, and the others have to be told later.
bool Leader::tell_given_up() {
    if (given_up_.stage == 0) {
        return true;
    }
    if (!propose(given_up_, PlanSwitch::kNever)) {
        return false;
    }
    given_up_.stage = 0;
    return true;
}

}  // namespace deft::director
