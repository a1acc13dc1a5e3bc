// SPDX-License-Identifier: Apache-2.0
#include "shim/control/plan_review.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/log.h"
#include "shim/control/guard_settings.h"
#include "shim/control/plan_choice.h"
#include "shim/cuda/event_pool.h"
#include "shim/settings/optimizer.h"
#include "shim/settings/settings.h"

namespace deft::director {
namespace {

// Under a plan, behind the close of the council. A rank whose end has closed it is a few iterations
// ahead at most.
constexpr std::uint64_t kMissedIterations = 64;
// Every 8th iteration or so is measured completely. Without a word of so many iterations, and for
// so long, the guard is blind.
constexpr std::uint64_t kBlindIterations = 64;
constexpr std::int64_t kBlindNs = 2'000'000'000;
// So many iterations an agreed switch has time to end a plan that has fallen.
constexpr std::uint64_t kFallIterations = 32;

// By what prediction enlarges the norm of sums that are nothing but noise. A job that clips cuts
// what is delivered by that norm, so nothing is granted there.
double amplification_of(const planner::Plan& plan) {
    const std::uint32_t merge = std::max(plan.predicted.max_merge, 1U);
    if (known_optimizer().clipped) {
        return 1;
    }
    const executor::Factors factors =
        executor::factors(choose_prediction(plan), plan.predicted.max_delay, merge, merge, merge);
    return std::max(1.0, std::sqrt(factors.now * factors.now + factors.previous * factors.previous +
                                   factors.before_previous * factors.before_previous));
}

}  // namespace

// False: there is none to be.
bool PlanReview::make_guard() {
    if (guard_settings().mode == guard::Mode::Off || planning_mode() < ShimMode::Deft) {
        return false;
    }
    if (guard_ == nullptr) {
        guard_ = std::make_unique<guard::Guard>(guard_settings(), info_.nranks, info_.rank);
    }
    return true;
}

void PlanReview::note_training() {
    const Inbox::Trained trained = inbox_.take_trained();
    if ((trained.empty() && !fell_) || !make_guard()) {
        return;
    }
    for (const auto& [rank, training] : trained) {
        guard_->note(rank, training);
    }
    note_harm();
}

void PlanReview::note_in_force() {
    gain_checked_ = gains_nothing_ = false;
    tightening_ = false;
    if (!make_guard()) {
        return;
    }
    fell_ = false;
    in_force_at_ = follower_.iteration();
    note_seen();
    guard_->optimizer(guard_settings());
    guard_->amplification(amplification_of(follower_.plan()));
    // Of the plan before, which nobody has looked at since this one was armed.
    inbox_.take_measured();
    guard_->plan_in_force(follower_.plan(), follower_.iteration());
}

void PlanReview::note_none() {
    if (guard_ != nullptr) {
        guard_->plan_in_force({}, follower_.iteration());
    }
}

bool PlanReview::made_for_another_optimizer() const {
    const executor::Optimizer known = known_optimizer();
    const executor::Optimizer& before = selector_.optimizer();
    const bool fits = planning_mode() == ShimMode::Covap ? before.scaled == known.scaled
                                                         : before.same_kind(known);
    return planning_mode() >= ShimMode::Deft && !fits;
}

bool PlanReview::used_map_concerns(const planner::Plan& plan, const JobView& view) {
    return view.used_map && view.reason.empty() && plan.predicted.late_or_merged() &&
           Settings::process().forced_merge == 0;
}

guard::Decision PlanReview::ask_guard() {
    for (const auto& [rank, statistics] : inbox_.take_measured()) {
        guard_->report(rank, statistics);
    }
    guard::Decision decision = guard_->decide(follower_.iteration());
    if (decision.action != guard::Action::Keep) {
        note_decision(decision);
    }
    return decision;
}

void PlanReview::note_decision(const guard::Decision& decision) {
    DEFT_WARN("accuracy guard: %s (%s)%s", to_string(decision.action), decision.reason.c_str(),
              decision.act ? "" : "; DEFT_GUARD=warn: the plan goes on");
    fell_ = false;
    if (history_.size() >= GuardEvent::kListed) {
        return;
    }
    GuardEvent event;
    event.iteration = follower_.iteration();
    event.action = to_string(decision.action);
    event.reason = decision.reason;
    event.acted = decision.act;
    fell_ = decision.action == guard::Action::FallBack;
    dropped_ = follower_.facts().dropped;
    if (fell_) {
        const planner::Prediction& ended = follower_.in_force().predicted;
        event.from = in_force_at_;
        event.late_by = ended.max_delay + std::max(ended.max_merge, 1U) - 1;
    }
    history_.push_back(std::move(event));
    note_harm();
}

// What the plan that has fallen did, up to its end.
void PlanReview::note_harm() {
    if (!fell_) {
        return;
    }
    GuardEvent& event = history_.back();
    const guard::LateStretch stretch = guard_->stretch();
    if (stretch.to > 0) {
        event.from = stretch.from;
        event.to = stretch.to;
    } else if (follower_.current() != nullptr) {
        event.to = follower_.iteration();
    }
    event.dropped = follower_.facts().dropped - dropped_;
    event.loss_expected = stretch.expected;
    event.loss_seen = stretch.seen;
}

void PlanReview::plan_tighter(const guard::Decision& decision) {
    if (decision.action != guard::Action::Tighten || !decision.act) {
        return;
    }
    Settings settings = selector_.allowed();
    settings.max_delay = std::min(settings.max_delay, decision.max_delay);
    settings.max_merge = std::min(settings.max_merge, decision.max_merge);
    settings.forced_merge = 0;
    try {
        std::string note;
        planner::Plan plan = choose_plan(selector_.profile(), selector_.networks(), settings, note);
        if (plan.predicted.verdict == planner::Verdict::Use) {
            DEFT_INFO("plan: %s", note.c_str());
            selector_.remember(selector_.signature(), std::move(plan), selector_.profile());
            return;
        }
    } catch (const std::exception& error) {
        DEFT_INFO("rank %d: no plan: %s", info_.rank, error.what());
    }
    tightened_in_vain();
}

void PlanReview::tightened_in_vain() {
    note_decision(guard_->tightened_in_vain(follower_.iteration()));
}

void PlanReview::note_seen() {
    seen_ = guard_->seen();
    seen_at_ = follower_.iteration();
    seen_ns_ = cuda::host_now();
}

const char* PlanReview::why_not_vouch() {
    if (guard_ == nullptr || follower_.current() == nullptr) {
        return "";
    }
    if (guard_->fallen()) {
        return guard_->fallen_for(follower_.iteration()) > kFallIterations
                   ? "the accuracy guard has ended it, and the ranks did not agree on where"
                   : "";
    }
    if (seen_ != guard_->seen()) {
        note_seen();
    }
    const std::uint64_t patience =
        std::max<std::uint64_t>(kBlindIterations, std::uint64_t{4} * follower_.in_force().period);
    const bool blind =
        follower_.iteration() > seen_at_ + patience && cuda::host_now() - seen_ns_ > kBlindNs;
    return blind ? "the accuracy guard has not seen its sums for a while" : "";
}

void PlanReview::note_lapsed() {
    if (guard_ != nullptr) {
        guard_->lapsed(follower_.iteration());
    }
}

bool PlanReview::misses_guard() {
    const executor::Executor* const current = follower_.current();
    const planner::Plan& plan = follower_.in_force();
    const bool guarded = guard_ != nullptr && current != nullptr && !current->broken() &&
                         plan.predicted.late_or_merged();
    if (guard_missed_ || !guarded ||
        follower_.calls_since_closed() < kMissedIterations * plan.bucket_bytes.size()) {
        return false;
    }
    guard_missed_ = true;
    return true;
}

}  // namespace deft::director
