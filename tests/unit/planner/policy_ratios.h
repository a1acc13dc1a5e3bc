// SPDX-License-Identifier: Apache-2.0
// Every policy beside what exhaustive search finds in the space that the policy searches.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace deft::planner::testing {

struct PolicyRatio {
    std::string policy;
    std::string reference;  // what it is divided by
    std::size_t cases = 0;
    double mean = 0;  // of iteration time (or links) over the reference's
    double most = 0;
    std::size_t equal = 0;  // cases within 0.01 % of the reference

    void add(double ratio);
};

// Over fixed seeds: the same figures in every run.
std::vector<PolicyRatio> policy_ratios();

}  // namespace deft::planner::testing
