// SPDX-License-Identifier: Apache-2.0
// What delay costs on a quadratic: heavy ball with late gradients.
#pragma once

#include <array>
#include <compare>
#include <cstdint>

namespace deft::planner {

// x_{t+1} = x_t + momentum (x_t - x_{t-1}) - a x_{t-delay}, a = learning rate times curvature.

// Largest a for which it does not diverge: 2(1+momentum) at delay 0, 1-momentum at delay 1, about
// (1-momentum)/2 at delay 2, 2 sin(pi/(2(2 delay+1))) without momentum.
double stability_limit(double momentum, std::uint32_t delay);

// Factor by which the error shrinks per step in the long run (spectral radius); >= 1: diverges.
double contraction(double a, double momentum, std::uint32_t delay);

// Steps a delayed run needs per step of the run without delay to get equally far; infinite where
// the delayed one diverges and the other does not.
double delay_price(double a, double momentum, std::uint32_t delay);

// How updates come under a plan. Of `merge` iterations one gets the sum of as many gradients, whose
// newest is `delay` iterations old, and the others get zeros, on which momentum moves on. What is
// delivered is weights[0] of that sum, weights[1] of the sum before it and weights[2] of the one
// before that (predicted delivery).
struct LateSteps {
    double momentum = 0;    // heavy ball: v = momentum v + g, w -= rate v
    bool nesterov = false;  // w -= rate (g + momentum v)
    std::uint32_t delay = 0;
    std::uint32_t merge = 1;
    std::array<double, 3> weights{1, 0, 0};

    // clang-tidy 14 sees a null pointer in it.
    auto operator<=>(const LateSteps&) const = default;  // NOLINT(modernize-use-nullptr)
};

// Least a (as above; at most 4) from which on these steps diverge on a quadratic of one direction.
// Adam and its family are a heavy ball of momentum beta1 on the preconditioned gradient, as long as
// the second moment changes slowly: a = rate (1 - beta1) times the preconditioned curvature.
// Within 1 %. Milliseconds where merge is above 1.
double stability_limit(const LateSteps& steps);

}  // namespace deft::planner
