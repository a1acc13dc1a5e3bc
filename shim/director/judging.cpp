// SPDX-License-Identifier: Apache-2.0
// Whether a plan in force is worth it: its speed and its accuracy.
#include <algorithm>
#include <cmath>

#include "shim/director/choice.h"
#include "shim/director/director.h"
#include "shim/director/optimizer.h"
#include "shim/director/second_look.h"
#include "shim/director/settings.h"
#include "topology/base/log.h"

namespace deft::director {
namespace {

// Iterations measured before and after, and by how much a plan must not be slower.
constexpr std::uint64_t kGainIterations = 40;
constexpr double kLoss = 0.02;
constexpr std::uint64_t kLookIterations = 12;

void say_decision(const guard::Decision& decision) {
    DEFT_WARN("accuracy guard: %s (%s)%s", to_string(decision.action), decision.reason.c_str(),
              decision.act ? "" : "; DEFT_GUARD=warn: the plan goes on");
}

}  // namespace

// A plan that turns out slower than the job was is given up.
void Director::check_gain(Track& track, const JobView& view) {
    const Profile* const profile = track.current_profile();
    if (gain_checked_ || profile == nullptr || current_ == nullptr || !view.reason.empty() ||
        profile->iteration_ms().count() < kGainIterations || Settings::process().forced_merge > 0) {
        return;
    }
    // Both the middle and the fast end must say so: one of them alone is noise. The iterations of a
    // period differ by plan: their mean must lie beyond the slow end of what was.
    const Summary now = profile->iteration_ms().summary();
    const bool alike = in_force_.period == 1;
    const double now_ms = alike ? now.median : now.mean;
    const bool fine = alike ? now.p10 <= profile_.iteration.p10 * 1e3 * (1 + kLoss)
                            : now_ms <= profile_.iteration.p90 * 1e3;
    if (fine || now_ms <= before_ms_ * (1 + kLoss)) {
        gain_checked_ = true;
        DEFT_INFO("%.2f ms per iteration, %.2f ms before", now_ms, before_ms_);
    } else if (propose_forward()) {
        gain_checked_ = losing_ = true;
        DEFT_INFO("no gain: %.2f ms per iteration, %.2f ms before; the plan is given up", now_ms,
                  before_ms_);
    }
}

// A prediction that suits one optimizer makes another diverge, and some bear no delay at all.
void Director::check_optimizer() {
    const executor::Optimizer known = known_optimizer();
    const bool fits = planning_mode() == ShimMode::Covap ? planned_for_.scaled == known.scaled
                                                         : planned_for_.same_kind(known);
    if (planning_mode() < ShimMode::Deft || fits || !propose_forward()) {
        return;
    }
    outdated_ = true;
    DEFT_INFO("the plan in force was made for another optimizer; it ends, and one is made anew");
}

// DDP has begun to tell which parameters were used: doubt_about(). True: nothing comes of the plan
// that is being made ready, for which no map was looked for.
bool Director::give_way_to_used_map(const JobView& view) {
    if (!view.used_map || !view.reason.empty() || networks_only_ ||
        !plan_.predicted.late_or_merged() || Settings::process().forced_merge > 0 || armed()) {
        return false;
    }
    leave_staging();
    refuse({doubt_about(view), false});
    tightening_ = false;
    planned_signature_ = current_ != nullptr ? planned_signature_ : 0;  // to be decided in doubt
    return true;
}

// The same of one in force.
void Director::check_used_map(const JobView& view) {
    if (!view.used_map || !view.reason.empty() || !in_force_.predicted.late_or_merged() ||
        Settings::process().forced_merge > 0 || !propose_forward()) {
        return;
    }
    outdated_ = true;
    DEFT_INFO("DDP looks for unused parameters from now on; the plan in force ends");
}

// When the data of a call were ready that waited for the call before it can only be guessed
// (docs/observe.md), and the guess is early where the host runs far ahead of the device. Under a
// plan that merges or is late the calls wait otherwise, and show it. What explains better how long
// an iteration takes under the plan in force is believed, and another plan may be better by it.
// Looked at once for each plan made from guesses.
void Director::look_again(const Track& track, const JobView& view) {
    const Settings settings = allowed();
    if (looked_again_ || current_ == nullptr || !view.reason.empty() ||
        view.signature != planned_signature_ || settings.forced_merge > 0 ||
        (guard_ != nullptr && guard_->decisions() > 0) || !in_force_.predicted.late_or_merged()) {
        return;
    }
    const Summary iteration = track.current_profile()->iteration_ms().summary();
    planner::Profile corrected = profile_;
    if (iteration.n < kLookIterations || !correct_by_starts(track, corrected)) {
        return;
    }
    looked_again_ = true;
    SecondLook look = director::look_again(in_force_, iteration.mean * 1e-3, profile_, corrected,
                                           networks_, settings);
    DEFT_INFO(
        "%.2f ms per iteration; %.2f ms were predicted for %.2f ms of compute, %.2f ms are "
        "for %.2f ms, as calls start",
        iteration.mean, look.thought * 1e3, profile_.compute() * 1e3, look.as_started * 1e3,
        corrected.compute() * 1e3);
    if (!look.believed) {
        return;
    }
    if (look.better) {
        plan_ = std::move(*look.better);
        if (!propose_stage(view)) {
            plan_ = in_force_;
            looked_again_ = false;  // the council is busy: try again
            return;
        }
        DEFT_INFO("a better plan: %s", look.note.c_str());
        plans_[view.signature] = {plan_, corrected, before_ms_};
    }
    profile_ = std::move(corrected);
}

void Director::hear_measured() {
    const std::lock_guard lock(inbox_mutex_);
    for (const auto& [rank, statistics] : measured_) {
        guard_->report(rank, statistics);
    }
    measured_.clear();
}

guard::Decision Director::ask_guard() {
    hear_measured();
    guard::Decision decision = guard_->decide(iteration());
    if (decision.action != guard::Action::Keep) {
        say_decision(decision);
    }
    return decision;
}

// The guard does not wait until the plan in force has been replaced, which takes as long as the
// slowest rank wants. True: nothing comes of the other plan.
bool Director::give_way_to_guard() {
    if (guard_ == nullptr || current_ == nullptr || ending() || armed()) {
        return false;
    }
    const guard::Decision decision = ask_guard();
    if (!decision.act) {
        return false;
    }
    leave_staging();
    refuse({"the accuracy guard: " + decision.reason, true});
    tightening_ = false;
    plan_tighter(decision);
    return true;
}

// Does what the guard has decided, or has yet to be done of it: it says a thing once.
void Director::watch_accuracy(const JobView& view) {
    if (guard_ == nullptr) {
        return;
    }
    if (current_ == nullptr || !guard_->fallen()) {
        plan_tighter(ask_guard());
    }
    if (guard_->tightening()) {
        tighten(view);
    }
    if (guard_->fallen()) {
        falling_ = current_ != nullptr && propose_forward();
    } else if (current_ == nullptr) {
        planned_signature_ = 0;  // the plan may come back, with the cycle it is for
        enter(Course::Watching);
    }
}

// Where the guard has asked for it, this cycle gets another plan.
void Director::plan_tighter(const guard::Decision& decision) {
    if (decision.action != guard::Action::Tighten || !decision.act) {
        return;
    }
    Settings settings = allowed();
    settings.max_delay = std::min(settings.max_delay, decision.max_delay);
    settings.max_merge = std::min(settings.max_merge, decision.max_merge);
    settings.forced_merge = 0;
    try {
        std::string note;
        planner::Plan plan = choose_plan(profile_, networks_, settings, note);
        if (plan.predicted.verdict == planner::Verdict::Use) {
            DEFT_INFO("plan: %s", note.c_str());
            plans_[planned_signature_] = {std::move(plan), profile_, before_ms_};
            return;
        }
    } catch (const std::exception& error) {
        DEFT_INFO("rank %d: no plan: %s", info_.rank, error.what());
    }
    say_decision(guard_->tightened_in_vain(iteration()));
}

void Director::tighten(const JobView& view) {
    if (tightening_) {  // and is not on its way any more
        tightening_ = false;
        say_decision(guard_->tightened_in_vain(iteration()));
        return;
    }
    if (!view.reason.empty() || view.signature != planned_signature_) {
        return;  // a metric, a barrier
    }
    plan_ = plans_[planned_signature_].plan;
    tightening_ = propose_stage(view);
    if (!tightening_) {
        plan_ = in_force_;  // the council is busy
    }
}

}  // namespace deft::director
