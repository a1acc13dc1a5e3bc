// SPDX-License-Identifier: Apache-2.0
#include "shim/control/reestimate.h"

#include <cmath>
#include <utility>

#include "shim/control/plan_choice.h"

namespace deft::director {
namespace {

// A plan that takes the place of one in force, against that. Both are predicted from one profile:
// no noise lies between them.
constexpr double kBetter = 0.98;

}  // namespace

Reestimate reestimate(const planner::Plan& plan, double took, const planner::Profile& profile,
                      const planner::Profile& started, const std::vector<planner::Link>& lanes,
                      const Settings& settings) {
    Reestimate look;
    look.thought = predict(plan, profile, lanes);
    look.as_started = predict(plan, started, lanes);
    look.believed = std::abs(took - look.as_started) < std::abs(took - look.thought);
    if (look.believed) {
        planner::Plan other = choose_plan(started, lanes, settings, look.note);
        if (other.predicted.verdict == planner::Verdict::Use &&
            other.predicted.iteration < kBetter * look.as_started) {
            look.better = std::move(other);
        }
    }
    return look;
}

}  // namespace deft::director
