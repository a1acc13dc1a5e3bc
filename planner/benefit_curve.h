// SPDX-License-Identifier: Apache-2.0
// What each kind of help gains, over the ratio of a job's compute to its communication.
#pragma once

#include <vector>

#include "planner/model/fabric.h"
#include "planner/model/options.h"
#include "planner/model/profile.h"

namespace deft::planner {

// Seconds per iteration on ideal links: no start-ups, transfers that can be interrupted.
struct BenefitPoint {
    double ratio = 0;       // compute over communication: 1 / coverage rate
    double no_overlap = 0;  // everything after backward
    double as_is = 0;       // first ready, first sent, the update waits for all
    double striped = 0;     // the same over all links
    double layered = 0;     // best order, layers wait for themselves, all links
    double late = 0;        // one iteration late, all links, where the caps allow it
    double merged = 0;      // the same with max_merge iterations per update
    double compute = 0;     // what nobody can shorten here
};

// No schedule gains more, whatever the job (docs/planner.md).
struct BenefitBounds {
    double three_resources = 3;  // over no overlap: GPU, uplink, downlink, each busy all the time
    double order = 2;            // over no overlap: compute and one link, no lateness
    double over_overlap = 1;     // ordering over plain overlap: 1 + F / (F + B)
};

BenefitBounds benefit_bounds(const Profile& profile);

// This job with these seconds of transfers (by bucket) on the first link, `speeds` of it together.
// Of the options the caps count: without delay a share of the model is sent for each update.
BenefitPoint benefit_at(const Profile& profile, const std::vector<double>& costs, double speeds,
                        const Options& options);

// The same with the transfers scaled so that the ratio runs from 1/16 to 16 in `count` steps of
// equal factors. Empty where there is no compute, or nothing to send.
std::vector<BenefitPoint> benefit_curve(const Profile& profile, const std::vector<double>& costs,
                                        double speeds, const Options& options,
                                        std::size_t count = 33);

}  // namespace deft::planner
