// SPDX-License-Identifier: Apache-2.0
// What a job could gain at most from each kind of help, and a plain verdict.
#pragma once

#include <string>
#include <vector>

#include "planner/benefit_curve.h"
#include "planner/model/plan.h"

namespace deft::planner {

// A ratio with the interval the measured spread allows.
struct Estimate {
    double low = 0;
    double middle = 0;
    double high = 0;
};

struct Advice {
    double measured = 0;  // seconds per iteration: as measured, else predicted for the job as is
    double compute = 0;   // F + B
    double communication = 0;  // sum of all-reduce times on the reference link
    Estimate coverage;         // CR = communication / (F + B)
    // No plan of this kind is faster, seconds per iteration. Start-ups count as nothing, since
    // buckets may travel together.
    double bound_order = 0;    // layers wait for themselves; the first link alone
    double bound_striped = 0;  // an unmodified job, whose update waits for all; all links
    double bound_links = 0;    // layers wait for themselves; all links
    double bound_delay = 0;    // one late update per iteration, all links
    double bound_merge = 0;    // max_merge iterations per update, all links
    BenefitPoint here;         // what the modes' own plans take: nothing else is promised
    Estimate gain_order;       // measured / bound
    Estimate gain_striped;
    Estimate gain_links;
    Estimate gain_delay;
    Estimate gain_merge;
    Estimate gain_alone;   // the first link alone, an update in every iteration
    double order_cap = 0;  // 1 + F/(F+B): ordering never adds more to plain overlap
    double overhead = 0;   // seconds no bound explains: launch, contention, stragglers
    bool nothing_to_gain = false;
    std::string verdict;  // one line
    std::vector<std::string> notes;
};

// The job's place on the curve of benefit over the ratio of compute to communication.
struct Benefit {
    BenefitBounds bounds;
    BenefitPoint here;
    std::vector<BenefitPoint> curve;
};
Benefit benefit_of(const Profile& profile, const Fabric& fabric, const Options& options);

// costs_low/high: the reference link's all-reduce time of each bucket at the 10th and 90th
// percentile, where measured (Bucket::transfer); else the link's curve for all three.
Advice advise(const Profile& profile, const Fabric& fabric, const Options& options);

// What to ask of a job whose transfers take so many times its compute that hardly anybody runs it;
// empty for others.
std::string coverage_question(double coverage);

// The reference link as the measured transfers show it: one point per bucket size. Noise is taken
// out that no link can mean: a larger bucket that takes less time, or more time per byte, so that
// cutting would pay by itself. Empty name if nothing was measured.
Link link_from_transfers(const Profile& profile);

}  // namespace deft::planner
