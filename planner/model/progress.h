// SPDX-License-Identifier: Apache-2.0
// What a plan's updates are worth: merged ones, late ones, and those of which a part is late. All
// that compares plans by their progress takes it from here: `best`, the library's choice, verdicts,
// reports. docs/planner.md has the sources.
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

// Options::age_price where `rate_curvature`, learning rate x curvature, was measured along a job's
// steps. `limit`: stability_limit() of gradients late by one, as they are delivered. On a quadratic
// with noise, lateness multiplies the noise that is left by 1 / (1 - rate_curvature / limit) (SGD,
// momentum 0.9, late by one: 1.25 and 2.0 at 0.02 and 0.05, limit 0.1); to be rid of it takes a
// learning rate so much smaller, and as many more iterations. Beyond the limit: infinite.
// `heavy_ball`: SGD with momentum, whose trainings needed what that says; no less than
// kLeastAgePrice. With other optimizers trainings needed more, so it is kAgePrice at least.
double measured_age_price(double rate_curvature, double limit, bool heavy_ball);
inline constexpr double kLeastAgePrice = 0.15;

// Synchronous updates that one iteration of the plan is worth: 1 for the job as it is. Every byte
// counts by itself, so a plan of which a part is late pays for that part alone. A gradient of
// iteration g that iteration u uses has missed the updates of g to u - 1 (of its own bytes):
// merging by itself makes nothing late. Needs deliveries only.
double progress_per_iteration(const Plan& plan, const Options& options);

// What an iteration of the plan counts for by Options::objective: 1, its updates, or its progress.
double worth_per_iteration(const Plan& plan, const Options& options);

// Seconds that count: of an iteration, over what it is worth.
double seconds_that_count(const Plan& plan, const Options& options);

// Bytes whose newest gradient is late, as a part of all bytes that updates get.
double late_part(const Plan& plan);

}  // namespace deft::planner
