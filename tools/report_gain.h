// SPDX-License-Identifier: Apache-2.0
// What the plan of a job has brought, and whom the others waited for.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/report.h"

namespace deft::tools {

// A median with the half of its interval of 95 % confidence; 0: the spread is not known.
struct Estimate {
    double middle = 0, half = 0;
};

// Of a distribution of which the median, p10, p90 and n are known. The samples count as those of a
// normal distribution, the latest 512 of them at most.
std::optional<Estimate> estimate(const Quantiles& times);

struct PlanGain {
    const ObservedPlan* plan = nullptr;   // null: no rank has one
    std::int64_t rank = -1;               // whose record it is: the leader's, where that is there
    std::optional<Estimate> now, before;  // per iteration, ms; under the plan, and before it
    // now / before - 1 with its interval; below 0 is quicker.
    std::optional<Estimate> change;
};
PlanGain gain_of(const RunReport& run);

// A rank whose data for a bucket were ready later than those of the rank in the middle.
struct Latecomer {
    std::size_t bucket = 0;
    std::int64_t rank = 0;
    double late_ms = 0;
};
// The latest rank of each bucket, the largest delay first. Only ranks that learned the same
// iteration count; fewer than two: nobody is late.
std::vector<Latecomer> latecomers(const RunReport& run);

}  // namespace deft::tools
