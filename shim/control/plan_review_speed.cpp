// SPDX-License-Identifier: Apache-2.0
// Whether a plan in force is as fast as it was to be, and whether another one would be faster by
// what is known under it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/log.h"
#include "shim/control/lane_factors.h"
#include "shim/control/plan_choice.h"
#include "shim/control/plan_review.h"
#include "shim/control/reestimate.h"
#include "shim/control/split_plan.h"
#include "shim/settings/settings.h"

namespace deft::director {
namespace {

// Iterations measured before and after, and by how much a plan must not be slower.
constexpr std::uint64_t kGainIterations = 40;
constexpr double kLoss = 0.02;
constexpr std::uint64_t kLookIterations = 12;
constexpr std::uint64_t kLookCalls = 24;
constexpr std::uint64_t kEnoughCalls = 8 * kLookCalls;  // after them no more is expected
// A plan that is to come back, and cannot at the moment, is asked for so often.
constexpr std::uint32_t kBackTries = 3;
// Calls are cut anew where they would take so much less time.
constexpr double kUneven = 0.01;
// And so little slower they must not be then: the gain is as small.
constexpr double kCutLoss = 0.005;

bool partly_late(const planner::Plan& plan) {
    return plan.predicted.late > 0 && plan.predicted.late < 1;
}

// What an iteration under the plan is worth. COVAP's merging is not priced: planner::progress.h.
double worth_of(const planner::Plan& plan) {
    return planning_mode() == ShimMode::Deft ? plan.predicted.progress : 1;
}

}  // namespace

std::optional<PlanReview::Gain> PlanReview::loss(const Track& track, const JobView& view) {
    const CallTimes* const profile = track.current_profile();
    if (gains_nothing_ && profile != nullptr && follower_.current() != nullptr) {
        return Gain{profile->iteration_ms().summary().median, selector_.before_ms()};
    }
    if (gain_checked_ || profile == nullptr || follower_.current() == nullptr ||
        !view.reason.empty() || profile->iteration_ms().count() < kGainIterations ||
        Settings::process().forced_merge > 0 || may_go_back()) {  // to one that may gain
        return {};
    }
    // Both the middle and the fast end must say so: one of them alone is noise. The iterations of a
    // period differ by plan: their mean must lie beyond the slow end of what was.
    const Summary now = profile->iteration_ms().summary();
    const bool alike = follower_.in_force().period == 1;
    const Gain gain{alike ? now.median : now.mean, selector_.before_ms()};
    const planner::Spread& before = selector_.profile().iteration;
    // Of a plan whose iterations are worth less, more are needed.
    const double worth = worth_of(follower_.in_force());
    const bool fine = alike ? now.p10 <= before.p10 * 1e3 * (1 + kLoss) * worth
                            : gain.now_ms <= before.p90 * 1e3 * worth;
    if (!fine && gain.now_ms > gain.before_ms * (1 + kLoss) * worth) {
        return gain;
    }
    gain_checked_ = true;
    DEFT_INFO("%.2f ms per iteration, %.2f ms before", gain.now_ms, gain.before_ms);
    return {};
}

void PlanReview::note_loss(const Gain& gain) {
    gain_checked_ = true;
    gains_nothing_ = false;
    char words[128];
    std::snprintf(words, sizeof(words), "no gain: %.2f ms per iteration under it, %.2f ms before",
                  gain.now_ms, gain.before_ms);
    loss_words_ = words;
    if (const double worth = worth_of(follower_.in_force()); worth < 1) {
        std::snprintf(words, sizeof(words), ", and one under it is worth %.2f", worth);
        loss_words_ += words;
    }
    DEFT_INFO("%s; the plan is given up", loss_words_.c_str());
}

// When the data of a call were ready that waited for the call before it can only be guessed
// (docs/observe.md), and the guess is early where the host runs far ahead of the device. Under a
// plan that merges or is late the calls wait otherwise, and show it. What explains better how long
// an iteration takes under the plan in force is believed, and another plan may be better by it.
std::optional<PlanReview::Better> PlanReview::look_again(const Track& track, const JobView& view) {
    Settings settings = selector_.allowed();
    const planner::Plan& plan = follower_.in_force();
    take_lane_times();
    if (may_go_back()) {
        return go_back(track, view);
    }
    replaced_.reset();        // the other could not be made ready, or another cycle has its plan
    if (partly_late(plan)) {  // its calls wait for what is fresh, and show nothing
        return {};
    }
    if (selector_.reestimated() || follower_.current() == nullptr || !view.reason.empty() ||
        view.signature != selector_.signature() || decisions() > 0 ||
        (settings.forced_merge > 0 && !settings.forced_queues)) {  // its windows are a guess yet
        return {};
    }
    const bool layers = plan.barrier == planner::Barrier::Layer;
    if (!layers && !plan.predicted.late_or_merged()) {
        return look_at_lanes(track, view, settings);
    }
    const Summary iteration = track.current_profile()->iteration_ms().summary();
    const planner::Profile& guessed = selector_.profile();
    planner::Profile corrected = guessed;
    if (iteration.n < kLookIterations ||
        !(layers ? correct_by_backward(track, corrected) : correct_by_starts(track, corrected))) {
        return {};
    }
    selector_.set_reestimated(true);
    if (layers) {
        return look_at_layers(std::move(corrected), settings);
    }
    // Which bytes backward ends with is known now. Before, nothing less than everything is late: a
    // wrong guess would make the job wait.
    settings.mixed_ages = true;
    const double took = iteration.mean * 1e-3;
    std::vector<planner::Link> networks = selector_.networks();
    const std::vector<double> factors = believed_factors(plan, took, corrected);
    apply(factors, corrected, networks);
    Reestimate look =
        reestimate(plan, took, {guessed, selector_.networks()}, {corrected, networks}, settings);
    DEFT_INFO(
        "%.2f ms per iteration; %.2f ms were predicted for %.2f ms of compute, %.2f ms are "
        "for %.2f ms, as calls start",
        iteration.mean, look.thought * 1e3, guessed.compute() * 1e3, look.as_started * 1e3,
        corrected.compute() * 1e3);
    if (look.better) {
        if (!look.believed) {
            corrected = guessed;
        }
        Better better{std::move(*look.better), std::move(corrected), std::move(look.note),
                      iteration};
        if (look.believed) {
            better.factors = factors;
        }
        return better;
    }
    if (look.believed) {
        selector_.note_taken(view.signature, factors);
        selector_.set_profile(std::move(corrected));
    }
    return {};
}

void PlanReview::take_lane_times() {
    const executor::Executor* const current = follower_.current();
    executor::LaneTimes* const times = current != nullptr ? current->lane_times() : nullptr;
    if (times == nullptr) {
        return;
    }
    times->take();
    if (selector_.reestimated()) {
        times->stop();
    }
}

// Of what lanes took, where they explain better than without how long an iteration takes. A rank
// that comes late to calls makes its peers' lanes look slow, and an iteration no longer.
std::vector<double> PlanReview::believed_factors(const planner::Plan& plan, double took,
                                                 const planner::Profile& profile) const {
    const executor::LaneTimes* const times = follower_.current()->lane_times();
    if (times == nullptr || times->calls() < kLookCalls) {
        return {};
    }
    const std::vector<planner::Link>& networks = selector_.networks();
    const std::vector<double> factors = lane_factors(times->uses(), fabric_of(profile, networks));
    planner::Profile slower = profile;
    std::vector<planner::Link> carried = networks;
    apply(factors, slower, carried);
    const double with = predict(plan, slower, carried);
    const double without = predict(plan, profile, networks);
    DEFT_INFO("lanes take %s times what was thought; %.2f ms per iteration by that, %.2f without",
              in_words(factors, plan).c_str(), with * 1e3, without * 1e3);
    return std::abs(took - with) < std::abs(took - without) ? factors : std::vector<double>();
}

// Of a plan that delays and merges nothing, the parts of a call were to end together, and it is
// known now when they do.
std::optional<PlanReview::Better> PlanReview::look_at_lanes(const Track& track, const JobView& view,
                                                            const Settings& settings) {
    const executor::LaneTimes* const times = follower_.current()->lane_times();
    const CallTimes* const measured = track.current_profile();
    const planner::Plan& plan = follower_.in_force();
    if (times == nullptr || lanes_of(plan) < 2 || times->calls() < kLookCalls ||
        measured == nullptr || measured->iteration_ms().count() < kLookIterations) {
        return {};
    }
    planner::Profile corrected = selector_.profile();
    std::vector<planner::Link> networks = selector_.networks();
    const auto fabric = [&] { return selector_.fabric_for(view, corrected, networks); };
    std::vector<double> factors = cut_factors(times->uses(), fabric());
    if (factors.empty() && times->calls() < kEnoughCalls) {
        return {};  // more is timed
    }
    selector_.set_reestimated(true);
    if (factors.empty()) {
        return {};  // its calls are not cut
    }
    apply(factors, corrected, networks);
    std::string note;
    planner::Plan cut = selector_.plan_for(view, corrected, networks, settings, note);
    const double now = seconds_of_calls(plan, fabric());
    const double then = seconds_of_calls(cut, fabric());
    DEFT_INFO("lanes take %s times what was thought; calls %.2f ms, and %.2f ms if cut by that",
              in_words(factors, plan).c_str(), now * 1e3, then * 1e3);
    if (cut.predicted.late_or_merged() || lanes_of(cut) < 2 || then > now * (1 - kUneven)) {
        return {};
    }
    cut.predicted.verdict = planner::Verdict::Use;
    Better better{std::move(cut), std::move(corrected), "calls are cut by what lanes take",
                  measured->iteration_ms().summary()};
    better.factors = std::move(factors);
    return better;
}

void PlanReview::note_proposed(const Better& better) {
    selector_.set_reestimated(true);
    selector_.note_taken(selector_.signature(), better.factors);
    if (better.back) {
        replaced_->returning = true;
        return;
    }
    replaced_.reset();
    // The operator's plan stays, however long it takes: the one before was it too, by a guess.
    if (better.under_old && !Settings::process().forced_queues) {
        replaced_ = {follower_.in_force(), *better.under_old, better.plan.fingerprint()};
    }
}

void PlanReview::note_declined() {
    if (!replaced_ || !std::exchange(replaced_->returning, false) ||
        ++replaced_->tries >= kBackTries) {
        replaced_.reset();
    }
}

// What the guard has objected to since is none of the two plans' time.
bool PlanReview::may_go_back() const {
    return replaced_ && decisions() == 0 && follower_.in_force().fingerprint() == replaced_->by;
}

// Less that is late, or more updates, was to cost no time.
std::optional<PlanReview::Better> PlanReview::go_back(const Track& track, const JobView& view) {
    const CallTimes* const profile = track.current_profile();
    if (profile == nullptr || follower_.current() == nullptr || !view.reason.empty() ||
        view.signature != selector_.signature() ||
        profile->iteration_ms().count() < kGainIterations << replaced_->tries) {
        return {};
    }
    const Summary now = profile->iteration_ms().summary();
    const Summary& before = replaced_->iteration_ms;
    const bool alike = follower_.in_force().period == 1 && replaced_->plan.period == 1;
    // Where an iteration is worth more than under the plan before, it may take longer.
    const double allowed = worth_of(follower_.in_force()) / worth_of(replaced_->plan);
    const bool cut_anew = !follower_.in_force().predicted.late_or_merged() &&
                          !replaced_->plan.predicted.late_or_merged();
    const double loss = cut_anew ? kCutLoss : kLoss;
    const bool slower = alike ? now.median > before.median * (1 + loss) * allowed &&
                                    now.p10 > before.p10 * (1 + loss) * allowed
                              : now.mean > before.mean * (1 + 2 * kLoss) * allowed;
    if (!slower) {
        replaced_.reset();
        return {};
    }
    char note[128];
    std::snprintf(note, sizeof(note), "%.2f ms per iteration, %.2f ms under the plan before",
                  now.mean, before.mean);
    Better plan{replaced_->plan, selector_.profile(), note};
    plan.back = true;
    return plan;
}

// Under such a plan backward's times are measured, and no guess is needed any more.
std::optional<PlanReview::Better> PlanReview::look_at_layers(planner::Profile corrected,
                                                             const Settings& settings) {
    std::string note;
    planner::Plan plan = choose_plan(corrected, selector_.networks(), settings, note);
    const double now = predict_over(fabric_of(corrected, selector_.networks(), settings),
                                    follower_.in_force(), corrected);
    const bool better = plan.barrier == planner::Barrier::Layer &&
                        plan.predicted.verdict == planner::Verdict::Use &&
                        plan.predicted.iteration < now * (1 - kLoss);
    DEFT_INFO(
        "backward takes %.2f ms, and %.2f ms were guessed; %.2f ms are predicted, and %.2f ms "
        "with the best order",
        corrected.backward * 1e3, selector_.profile().backward * 1e3, now * 1e3,
        plan.predicted.iteration * 1e3);
    if (better) {
        return Better{std::move(plan), std::move(corrected), std::move(note)};
    }
    gains_nothing_ = plan.predicted.verdict != planner::Verdict::Use;
    selector_.set_profile(std::move(corrected));
    return {};
}

}  // namespace deft::director
