// SPDX-License-Identifier: Apache-2.0
// What a plan's updates are worth: merged ones, late ones, and those of which a part is late.
#pragma once

#include "planner/model/options.h"
#include "planner/model/plan.h"

namespace deft::planner {

// How many synchronous updates one update is worth that sums `merged` iterations, at this ratio of
// the gradient noise scale to the batch of one iteration. Steps to a given loss at batch B are in
// proportion to 1 + noise scale / B (McCandlish et al., arXiv 1812.06162): where noise rules, k
// merged iterations are worth k updates; where there is none, one.
double merged_worth(double merged, double noise_scale);

// Worth of a late update, as a fraction: 1 / (1 + price x updates its gradients have missed).
double late_worth(double missed, double age_price);

// Synchronous updates that one iteration of the plan is worth: 1 for the job as it is. Every byte
// counts by itself, so a plan of which a part is late pays for that part alone. A gradient of
// iteration g that iteration u uses has missed the updates of g to u - 1 (of its own bytes):
// merging by itself makes nothing late. Needs deliveries only.
double progress_per_iteration(const Plan& plan, const Options& options);

// Bytes whose newest gradient is late, as a part of all bytes that updates get.
double late_part(const Plan& plan);

}  // namespace deft::planner
