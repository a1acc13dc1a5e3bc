// SPDX-License-Identifier: Apache-2.0
// Prints packing problems with the solver's result, one JSON object a line, for the oracle.
#include <cstdio>
#include <random>

#include "planner/solver/packing.h"
#include "tests/unit/planner/random_cases.h"

using deft::planner::Packing;
using deft::planner::PackingProblem;
using deft::planner::PackingSolver;

int main() {
    struct Size {
        std::size_t items, links;
    };
    for (const Size size : {Size{6, 2}, Size{10, 2}, Size{12, 3}, Size{14, 2}, Size{20, 2},
                            Size{30, 3}, Size{38, 2}, Size{60, 4}}) {
        for (std::uint64_t seed = 0; seed < 4; ++seed) {
            std::mt19937_64 random(seed * 100 + size.items);
            PackingProblem problem;
            problem.links = size.links;
            double total = 0;
            for (std::size_t i = 0; i < size.items; ++i) {
                problem.value.push_back(deft::planner::testing::uniform(random, 0.5, 5));
                total += problem.value.back();
            }
            double speed = 0;
            std::vector<double> slow;
            for (std::size_t j = 0; j < size.links; ++j) {
                slow.push_back(j == 0 ? 1 : deft::planner::testing::uniform(random, 1, 2.3));
                speed += 1 / slow.back();
            }
            for (std::size_t i = 0; i < size.items; ++i) {
                for (std::size_t j = 0; j < size.links; ++j) {
                    problem.cost.push_back(slow[j] * problem.value[i] + 0.05 * double(j));
                }
            }
            problem.capacity.assign(size.links, total / 1.3 / speed);
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
