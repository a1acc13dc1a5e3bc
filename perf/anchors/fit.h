// SPDX-License-Identifier: Apache-2.0
// Fits the constants to the rows of some models, and judges them on rows of others.
#pragma once

#include <functional>
#include <vector>

#include "perf/anchors/system_model.h"

namespace deft::anchors {

// To all rows of these models over both links, from kFirstFitted GPUs on. Deterministic.
Constants fit(const std::vector<int>& models);

// Rows of one link.
struct Judgement {
    double error = 0;  // geometric mean of the larger of simulated / measured and its inverse, - 1
    double largest = 0;  // of one row, likewise
    int pairs = 0;       // of methods on one model and number of GPUs, measured 2 % or more apart
    int wrong = 0;       // in the wrong order
};
Judgement judge(const std::function<const Constants&(int model)>& constants,
                const std::vector<int>& models, int link, int first_size = kFirstFitted,
                int sizes = kSizes);

}  // namespace deft::anchors
