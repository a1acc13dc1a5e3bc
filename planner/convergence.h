// SPDX-License-Identifier: Apache-2.0
// DeFT's Preserver as its paper has it: what a plan's delayed and merged updates cost in progress.
// The library prices plans otherwise (stability.h, model/progress.h, docs/planner.md): this walk
// objects to noisy gradients, where merging costs least.
#pragma once

#include <string>

#include "planner/model/plan.h"

namespace deft::planner {

// What profiling knows about the gradients and the optimizer. Units: S, mean and noise share one
// scale (a gradient norm); only ratios matter.
struct GradientStatistics {
    double state = 1;    // S: distance to the optimum, or excess loss
    double mean = 0.01;  // norm of the mean gradient
    double noise = 0.1;  // standard deviation of one rank-sum gradient (batch n)
    double learning_rate = 0.1;
    double momentum = 0.9;
    // Learning rate times the largest curvature; 0: unknown, the delay is then not priced but
    // reported. Measured values near the edge of stability are what breaks delayed training.
    double sharpness = 0;
};

// E|S - lr mean + N(0, lr^2 noise^2 / batches)|: one update of a Gaussian walk reflected at zero.
double expected_state(double state, double step, double deviation);

struct ConvergenceEstimate {
    double synchronous = 0;      // expected state after one period of updates with every batch
    double planned = 0;          // after the plan's sequence of merged updates
    double loss = 0;             // |planned / synchronous - 1|
    double price = 1;            // steps per synchronous step because of delay (quadratic model)
    double step_multiplier = 1;  // largest number of iterations summed into one step
    bool stable = true;     // learning rate times curvature below the limit at this delay, merge
    bool accepted = false;  // loss and price - 1 within epsilon, and stable
    std::string reason;     // why not
};

// Compares one period of the plan with as many synchronous updates from the same state. Merged
// gradients are summed: a merge of k is a step of k times the mean and sqrt(k) times the noise.
ConvergenceEstimate estimate_convergence(const Plan& plan, const GradientStatistics& statistics,
                                         double epsilon = 0.01);

struct TightenedPlan {
    Plan plan;
    ConvergenceEstimate estimate;
    std::uint32_t steps = 0;  // times the plan was tightened
};

// The policy's plan, tightened until the estimate is accepted: larger knapsacks (x 1.05, bubbles
// are accepted), then smaller caps; the end of the loop is synchronous training.
TightenedPlan tighten(std::string_view policy, const Profile& profile, const Fabric& fabric,
                      const Options& options, const GradientStatistics& statistics,
                      double epsilon = 0.01);

// COVAP's residual coefficient at an iteration: kappa0 + 0.1 min((1 - kappa0) / 0.1, floor(t / s));
// kappa0 = 0.5, s = 50 up to interval 8; 0.2, 100 above.
double covap_coefficient(std::uint32_t interval, std::uint64_t iteration);

// Lead that restores momentum's stability for a gradient `delay` iterations late:
// momentum + ... + momentum^delay; 0 for plain SGD, where extrapolation hurts.
double predicted_delivery_lead(double momentum, std::uint32_t delay);

}  // namespace deft::planner
