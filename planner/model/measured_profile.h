// SPDX-License-Identifier: Apache-2.0
// A profile from what a running job showed: the quantities of docs/observe.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/model/profile.h"

namespace deft::planner {

// Times in seconds. Ready times count from the end of the last transfer of the iteration before.
struct MeasuredBucket {
    std::uint64_t bytes = 0;
    Spread ready{};     // measured, or the bucket cannot be placed
    Spread transfer{};  // n = 0: not measured
};

struct MeasuredJob {
    std::string name;
    std::uint32_t ranks = 0;
    std::vector<MeasuredBucket> buckets;  // in call order
    Spread compute{};                     // of the iteration, without waiting for links
    Spread iteration{};
};

// Buckets in call order; a ready time below the one in front is measurement noise and raised to
// it. What is measured does not show where forward ends: a third of the compute is taken, as two
// thirds of the work are backward, but never more than the time until the first gradient.
Profile measured_profile(const MeasuredJob& job);

}  // namespace deft::planner
