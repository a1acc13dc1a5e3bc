// SPDX-License-Identifier: Apache-2.0
// Fits the constants of one link's four methods to its 24 rows.
#pragma once

#include "perf/anchors/system_model.h"

namespace deft::anchors {

// Deterministic: each method from the best of many random points within plausible ranges by pattern
// search, then all four together. What it lowers: a smooth form of the largest relative error, with
// a penalty for every pair of methods in the wrong order.
std::array<Constants, kMethods> fit_link(int link);

// From the stored constants on: the largest error, in units of its bar, with every order right.
std::array<Constants, kMethods> refine_link(int link);

}  // namespace deft::anchors
