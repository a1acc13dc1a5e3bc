// SPDX-License-Identifier: Apache-2.0
// Fits the constants of one link's four methods to its 24 rows.
#pragma once

#include "perf/anchors/system_model.h"

namespace deft::anchors {

// Deterministic pattern search from fixed starts. What it lowers: the largest relative error, then
// the root of the mean square, with a penalty for every pair of methods in the wrong order.
std::array<Constants, kMethods> fit_link(int link);

}  // namespace deft::anchors
