// SPDX-License-Identifier: Apache-2.0
// What a plan's late and merged gradients ask of the job's steps, before it is carried out.
#pragma once

#include <map>
#include <string>

#include "planner/model/plan.h"
#include "planner/stability.h"
#include "shim/executor/prediction.h"
#include "shim/settings/settings.h"

namespace deft::director {

// Threads: none of its own, one at a time.
class PlanPrices {
public:
    // A plan is within its margin where rate x curvature, measured along the steps, is no more than
    // this part of where its steps diverge. Along the steps is a mean over directions; the sharpest
    // direction, which diverges first, is several times as sharp. With DEFT_PREDICT=auto every
    // training that lost more than two points was beyond a quarter (perf/results/price.md).
    static constexpr double kMargin = 0.25;

    // The largest rate x curvature that the plan bears, with this optimizer and predicted delivery:
    // kMargin of the least stability_limit() of its deliveries, by age and number of gradients. So
    // of mixed ages the oldest counts: a direction may lie in the late part alone. Infinite for a
    // plan that is neither late nor merged, and of an optimizer that is not known.
    double bound(const planner::Plan& plan, const executor::Optimizer& optimizer,
                 const executor::Prediction& prediction);

    // What late gradients cost the job: Options::age_price, by what was measured of its steps.
    // `prediction`: how gradients that are late by one are delivered.
    double age_price(double rate_curvature, const executor::Optimizer& optimizer,
                     const executor::Prediction& prediction);
    // The same where nothing was measured: what trainings needed (perf/results/worth.md), 1.15
    // times the iterations with predicted gradients under SGD with momentum, 1.4 otherwise.
    static double assumed_age_price(const executor::Optimizer& optimizer,
                                    const executor::Prediction& prediction);

private:
    double limit(const planner::LateSteps& steps);

    std::map<planner::LateSteps, double> limits_;  // known
};

// The caps that are tried next where the steps do not bear that plan: either alone where it is late
// and merged, else a delay less, else a gradient less in each update. False: there are none.
bool lower_caps(const planner::Prediction& plan, Settings& settings);

// Why such a plan is carried out whatever its steps bear; "": it is priced. `named`: by the
// operator.
std::string not_priced(const planner::Plan& plan, bool measured, bool named);

// "gradients late by 1 would be 31 % faster; rate x curvature 0.39, bound 0.12".
std::string too_dear(const planner::Prediction& predicted, double rate_curvature, double bound);

}  // namespace deft::director
