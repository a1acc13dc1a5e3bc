// SPDX-License-Identifier: Apache-2.0
#include "shim/control/reestimate.h"

#include <cmath>
#include <utility>

#include "planner/model/progress.h"
#include "shim/control/plan_choice.h"

namespace deft::director {
namespace {

// A plan that takes the place of one in force, against that. Both are predicted from one profile:
// no noise lies between them.
constexpr double kBetter = 0.98;
// One that is as fast, with so much less that is late, as a part of all bytes, or so many more
// updates an iteration.
constexpr double kAsFast = 1.005;
constexpr double kFresher = 0.05;
constexpr double kOftener = 0.05;

}  // namespace

Reestimate reestimate(const planner::Plan& plan, double took, const KnownJob& guessed,
                      const KnownJob& seen, const Settings& settings) {
    Reestimate look;
    look.thought = predict(plan, guessed.profile, guessed.lanes);
    look.as_started = predict(plan, seen.profile, seen.lanes);
    look.believed = std::abs(took - look.as_started) < std::abs(took - look.thought);
    const double now = look.believed ? look.as_started : look.thought;
    const KnownJob& job = look.believed ? seen : guessed;
    planner::Plan other = choose_plan(job.profile, job.lanes, settings, look.note);
    const planner::Prediction& p = other.predicted;
    const planner::Prediction& held = plan.predicted;
    const planner::Options prices = prices_of(settings);
    const double worth = worth_per_iteration(other, prices) / worth_per_iteration(plan, prices);
    const bool less_stale = p.late < held.late || p.updates > held.updates;
    const bool faster = (look.believed || less_stale) && p.iteration < kBetter * now * worth;
    const bool as_fast = p.iteration <= kAsFast * now;
    const bool fresher = as_fast && p.updates >= held.updates && p.late + kFresher < held.late;
    const bool oftener = as_fast && p.updates > held.updates + kOftener && p.late <= held.late;
    // A plan of that name is the one for the job as it is known now, whatever it gains.
    const bool named =
        settings.forced_queues && look.believed && other.fingerprint() != plan.fingerprint();
    if (p.verdict == planner::Verdict::Use && (faster || fresher || oftener || named)) {
        look.better = std::move(other);
    }
    return look;
}

}  // namespace deft::director
