// SPDX-License-Identifier: Apache-2.0
// What each kind of help gains, over the ratio of a job's compute to its communication.
#pragma once

#include <vector>

#include "planner/model/fabric.h"
#include "planner/model/options.h"
#include "planner/model/profile.h"

namespace deft::planner {

// Links as the modes use them.
struct SeenLinks {
    Fabric first;  // the job as it is
    Fabric all;    // every message striped over all of them
    Fabric given;  // what bounds hold for
};

// Seconds per iteration of plans that are made and simulated, and of what no plan beats. Each plan
// is the fastest of its own kind and of those above it.
struct BenefitPoint {
    double ratio = 0;            // compute over communication: 1 / coverage rate
    double no_overlap = 0;       // everything after backward
    double as_is = 0;            // first ready, first sent, the update waits for all
    double striped = 0;          // the same over all links
    double layered = 0;          // mode exact: best order, layers wait for themselves, all links
    double late = 0;             // mode deft: one iteration late, where the caps allow it
    double merged = 0;           // mode deft: whole updates of up to max_merge iterations
    double bound = 0;            // no plan within the caps is faster; start-ups left out
    double compute = 0;          // what nobody can shorten here
    double late_progress = 1;    // what an iteration of that plan is worth (progress.h)
    double merged_progress = 1;  // likewise
};

// No schedule gains more, whatever the job (docs/planner.md).
struct BenefitBounds {
    double three_resources = 3;  // over no overlap: GPU, uplink, downlink, each busy all the time
    double order = 2;            // over no overlap: compute and one link, no lateness
    double over_overlap = 1;     // ordering over plain overlap: 1 + F / (F + B)
};

BenefitBounds benefit_bounds(const Profile& profile);

// Of the options the caps and prices count.
BenefitPoint benefit_at(const Profile& profile, const SeenLinks& links, const Options& options);

// The same with the transfers scaled so that the ratio runs from 1/16 to 16 in `count` steps of
// equal factors. Empty where there is no compute, or nothing to send.
std::vector<BenefitPoint> benefit_curve(const Profile& profile, const SeenLinks& links,
                                        const Options& options, std::size_t count = 33);

}  // namespace deft::planner
