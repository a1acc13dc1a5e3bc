// SPDX-License-Identifier: Apache-2.0
// The packing problems on which the solver is compared with a mixed-integer one and with all
// placements: links of unequal speed that carry 10/13 of the items, and a start-up cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "planner/solver/packing.h"
#include "tests/unit/planner/random_cases.h"

namespace deft::planner::testing {

inline PackingProblem oracle_problem(std::size_t items, std::size_t links, std::uint64_t seed) {
    std::mt19937_64 random(seed * 100 + items);
    PackingProblem problem;
    problem.links = links;
    double total = 0;
    for (std::size_t i = 0; i < items; ++i) {
        problem.value.push_back(uniform(random, 0.5, 5));
        total += problem.value.back();
    }
    double speed = 0;
    std::vector<double> slow;
    for (std::size_t j = 0; j < links; ++j) {
        slow.push_back(j == 0 ? 1 : uniform(random, 1, 2.3));
        speed += 1 / slow.back();
    }
    for (std::size_t i = 0; i < items; ++i) {
        for (std::size_t j = 0; j < links; ++j) {
            problem.cost.push_back(slow[j] * problem.value[i] + 0.05 * static_cast<double>(j));
        }
    }
    problem.capacity.assign(links, total / 1.3 / speed);
    return problem;
}

}  // namespace deft::planner::testing
