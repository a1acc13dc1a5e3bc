// SPDX-License-Identifier: Apache-2.0
// What delay costs on a quadratic: heavy ball with late gradients.
#pragma once

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

}  // namespace deft::planner
