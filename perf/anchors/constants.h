// SPDX-License-Identifier: Apache-2.0
// Written by `anchors --fit`.
#pragma once

#include "perf/anchors/system_model.h"

namespace deft::anchors {

// resnet50
inline constexpr Constants kFittedToResNet = {1.14e+09,  6.483e+09, 1.664e-05,
                                              9.026e-05, 1.619e-05, 0.003796};

// bert-base
inline constexpr Constants kFittedToBert = {1.214e+09, 5.945e+09, 1.048e-05,
                                            0.000322,  4.159e-05, 0.003838};

// both
inline constexpr Constants kFittedToBoth = {1.216e+09, 6.195e+09, 1.376e-05,
                                            0.0002241, 4.197e-05, 0.003831};

inline constexpr Constants kFittedTo[kFitted] = {kFittedToResNet, kFittedToBert};

}  // namespace deft::anchors
