// SPDX-License-Identifier: Apache-2.0
#include "shim/control/plan_review.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/log.h"
#include "shim/control/guard_settings.h"
#include "shim/control/plan_choice.h"
#include "shim/control/reestimate.h"
#include "shim/cuda/event_pool.h"
#include "shim/settings/optimizer.h"
#include "shim/settings/settings.h"

namespace deft::director {
namespace {

// Iterations measured before and after, and by how much a plan must not be slower.
constexpr std::uint64_t kGainIterations = 40;
constexpr double kLoss = 0.02;
constexpr std::uint64_t kLookIterations = 12;
// Under a plan, behind the close of the council. A rank whose end has closed it is a few iterations
// ahead at most.
constexpr std::uint64_t kMissedIterations = 64;
// Every 8th iteration or so is measured completely. Without a word of so many iterations, and for
// so long, the guard is blind.
constexpr std::uint64_t kBlindIterations = 64;
constexpr std::int64_t kBlindNs = 2'000'000'000;
// So many iterations an agreed switch has time to end a plan that has fallen.
constexpr std::uint64_t kFallIterations = 32;

bool partly_late(const planner::Plan& plan) {
    return plan.predicted.late > 0 && plan.predicted.late < 1;
}

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

// What an iteration under the plan is worth. COVAP's merging is not priced: planner::progress.h.
double worth_of(const planner::Plan& plan) {
    return planning_mode() == ShimMode::Deft ? plan.predicted.progress : 1;
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
        return {};
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
    Reestimate look =
        reestimate(plan, iteration.mean * 1e-3, guessed, corrected, selector_.networks(), settings);
    DEFT_INFO(
        "%.2f ms per iteration; %.2f ms were predicted for %.2f ms of compute, %.2f ms are "
        "for %.2f ms, as calls start",
        iteration.mean, look.thought * 1e3, guessed.compute() * 1e3, look.as_started * 1e3,
        corrected.compute() * 1e3);
    if (look.better) {
        if (!look.believed) {
            corrected = guessed;
        }
        return Better{std::move(*look.better), std::move(corrected), std::move(look.note),
                      iteration};
    }
    if (look.believed) {
        selector_.set_profile(std::move(corrected));
    }
    return {};
}

void PlanReview::note_proposed(const Better& better) {
    selector_.set_reestimated(true);
    replaced_.reset();
    // The operator's plan stays, however long it takes: the one before was it too, by a guess.
    if (better.under_old && !Settings::process().forced_queues) {
        replaced_ = {follower_.in_force(), *better.under_old, better.plan.fingerprint()};
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
        profile->iteration_ms().count() < kGainIterations) {
        return {};
    }
    const Summary now = profile->iteration_ms().summary();
    const Summary& before = replaced_->iteration_ms;
    const bool alike = follower_.in_force().period == 1 && replaced_->plan.period == 1;
    // Where an iteration is worth more than under the plan before, it may take longer.
    const double allowed = worth_of(follower_.in_force()) / worth_of(replaced_->plan);
    const bool slower = alike ? now.median > before.median * (1 + kLoss) * allowed &&
                                    now.p10 > before.p10 * (1 + kLoss) * allowed
                              : now.mean > before.mean * (1 + 2 * kLoss) * allowed;
    if (!slower) {
        replaced_.reset();
        return {};
    }
    char note[128];
    std::snprintf(note, sizeof(note), "%.2f ms per iteration, %.2f ms under the plan before",
                  now.mean, before.mean);
    return Better{replaced_->plan, selector_.profile(), note};
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
