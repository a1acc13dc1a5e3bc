// SPDX-License-Identifier: Apache-2.0
#include "planner/policies/choice.h"

#include <algorithm>
#include <set>

#include "planner/simulator/evaluate.h"
#include "planner/solver/plan_floor.h"

namespace deft::planner {
namespace {

std::size_t links_used(const Plan& plan) {
    std::set<std::uint32_t> used;
    for (const Transfer& t : plan.transfers) {
        used.insert(t.link);
    }
    return used.size();
}

bool fuses(const Plan& plan) {
    std::set<std::pair<std::uint32_t, std::uint32_t>> messages;
    return !std::all_of(plan.transfers.begin(), plan.transfers.end(), [&](const Transfer& t) {
        return messages.emplace(t.link, t.message).second;
    });
}

}  // namespace

double Choice::offer(Plan plan) {
    if (!allowed(plan)) {
        return INFINITY;
    }
    const double worth_of = worth_per_iteration(plan, options_);
    const double least = plan_floor(plan, profile_, fabric_) * (1 - 1e-9) / worth_of;
    const bool preferred = secondary(plan) < secondary(best_);
    if (hopeless(least, preferred ? 0 : UINT32_MAX)) {
        return INFINITY;
    }
    evaluate(plan, profile_, fabric_);
    if (!std::isfinite(plan.predicted.iteration)) {
        return INFINITY;
    }
    // A tie is measured against the fastest seen, so that ties do not add up.
    const double waits = plan.predicted.exposed;
    const double mine = plan.predicted.iteration / worth_of;
    fastest_ = std::min({fastest_, best_seconds_, mine});
    const bool wins =
        best_seconds_ > fastest_ * kTie ? mine <= fastest_ : mine <= fastest_ * kTie && preferred;
    if (wins) {
        best_ = std::move(plan);
        best_seconds_ = mine;
    }
    return waits;
}

bool Choice::hopeless(double least, std::uint32_t age) const {
    const bool preferable = options_.objective == Objective::Progress
                                ? age != UINT32_MAX
                                : age <= best_.predicted.max_age;
    const double fastest = std::min(fastest_, best_seconds_);
    return least * kTie >= best_seconds_ && !(preferable && least <= fastest * kTie);
}

bool Choice::allowed(const Plan& plan) const {
    const Prediction& p = plan.predicted;
    return p.max_delay <= options_.max_delay && p.max_merge <= options_.max_merge &&
           plan.period <= options_.max_period && (options_.allow_fusion || !fuses(plan)) &&
           (options_.barrier == Barrier::Layer || plan.barrier == Barrier::Update) &&
           (!options_.complete_generations || plan.complete_generations() ||
            (options_.mixed_ages && p.mixed_ages() && plan.whole_updates()));
}

Choice::Secondary Choice::secondary(const Plan& plan) const {
    const Prediction& p = plan.predicted;
    const bool progress = options_.objective == Objective::Progress;
    return {progress ? -p.updates : 0, progress ? p.late : 0, p.max_age, p.mean_age,
            links_used(plan),          plan.transfers.size()};
}

}  // namespace deft::planner
