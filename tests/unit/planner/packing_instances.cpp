// SPDX-License-Identifier: Apache-2.0
// Prints packing problems with the solver's result, one JSON object a line, for the oracle. From
// 8 to 20 items a mixed-integer solver takes up to a minute; test_packing.cpp has their optima.
#include <cstdint>
#include <cstdio>

#include "planner/solver/packing.h"
#include "tests/unit/planner/packing_problem.h"

using deft::planner::Packing;
using deft::planner::PackingProblem;
using deft::planner::PackingSolver;

int main() {
    struct Size {
        std::size_t items, links;
    };
    for (const Size size :
         {Size{5, 2}, Size{5, 3}, Size{6, 2}, Size{30, 3}, Size{38, 2}, Size{60, 4}}) {
        for (std::uint64_t seed = 0; seed < 4; ++seed) {
            const PackingProblem problem =
                deft::planner::testing::oracle_problem(size.items, size.links, seed);
            PackingSolver solver;
            const Packing greedy = solver.greedy(problem);
            std::printf("{\"links\":%zu,\"value\":[", problem.links);
            for (std::size_t i = 0; i < problem.items(); ++i) {
                std::printf("%s%.17g", i > 0 ? "," : "", problem.value[i]);
            }
            std::printf("],\"cost\":[");
            for (std::size_t i = 0; i < problem.cost.size(); ++i) {
                std::printf("%s%.17g", i > 0 ? "," : "", problem.cost[i]);
            }
            std::printf("],\"capacity\":[");
            for (std::size_t j = 0; j < problem.links; ++j) {
                std::printf("%s%.17g", j > 0 ? "," : "", problem.capacity[j]);
            }
            std::printf("],\"greedy\":%.17g,\"bound\":%.17g}\n", greedy.value, greedy.bound);
        }
    }
    return 0;
}
