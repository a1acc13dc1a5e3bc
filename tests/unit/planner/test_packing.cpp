// SPDX-License-Identifier: Apache-2.0
#include "planner/solver/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/unit/planner/random_cases.h"

namespace deft::planner {
namespace {

PackingProblem draw(std::mt19937_64& random, std::size_t items, std::size_t links, double load,
                    bool startup) {
    PackingProblem problem;
    problem.links = links;
    double total = 0;
    for (std::size_t i = 0; i < items; ++i) {
        problem.value.push_back(testing::uniform(random, 0.5e-3, 5e-3));
        total += problem.value.back();
    }
    std::vector<double> slow;
    double speed = 0;
    for (std::size_t j = 0; j < links; ++j) {
        slow.push_back(j == 0 ? 1 : testing::uniform(random, 1, 2.3));
        speed += 1 / slow.back();
    }
    for (std::size_t i = 0; i < items; ++i) {
        for (std::size_t j = 0; j < links; ++j) {
            problem.cost.push_back((startup ? 1e-4 * static_cast<double>(j) : 0) +
                                   slow[j] * problem.value[i]);
        }
    }
    problem.capacity.assign(links, total / load / speed);
    return problem;
}

double brute_force(const PackingProblem& problem, std::size_t i, std::vector<double>& room) {
    if (i == problem.items()) {
        return 0;
    }
    double best = brute_force(problem, i + 1, room);
    for (std::size_t j = 0; j < problem.links; ++j) {
        const double cost = problem.cost[i * problem.links + j];
        if (cost <= room[j]) {
            room[j] -= cost;
            best = std::max(best, problem.value[i] + brute_force(problem, i + 1, room));
            room[j] += cost;
        }
    }
    return best;
}

void expect_feasible(const PackingProblem& problem, const Packing& packing) {
    std::vector<double> load(problem.links, 0);
    double value = 0;
    for (std::size_t i = 0; i < problem.items(); ++i) {
        if (packing.link[i] >= 0) {
            const auto j = static_cast<std::size_t>(packing.link[i]);
            load[j] += problem.cost[i * problem.links + j];
            value += problem.value[i];
        }
    }
    for (std::size_t j = 0; j < problem.links; ++j) {
        EXPECT_LE(load[j], problem.capacity[j] * (1 + 1e-9));
    }
    EXPECT_NEAR(value, packing.value, 1e-12);
    EXPECT_GE(packing.gap(), -1e-12);
}

TEST(Packing, GreedyAndItsBoundEncloseTheOptimum) {
    double lost = 0;
    const int draws = 200;
    for (std::uint64_t seed = 0; seed < draws; ++seed) {
        std::mt19937_64 random(seed);
        const PackingProblem problem = draw(random, 1 + random() % 8, 1 + random() % 3,
                                            testing::uniform(random, 0.5, 2), seed % 2);
        PackingSolver solver;
        const Packing& packing = solver.greedy(problem);
        expect_feasible(problem, packing);
        std::vector<double> room = problem.capacity;
        const double optimum = brute_force(problem, 0, room);
        EXPECT_LE(packing.value, optimum + 1e-12) << "seed " << seed;
        EXPECT_GE(packing.bound, optimum - 1e-12) << "seed " << seed;
        lost += optimum > 0 ? 1 - packing.value / optimum : 0;
    }
    RecordProperty("mean_loss_percent", std::to_string(100 * lost / draws));
    EXPECT_LE(lost / draws, 0.03);
}

struct Size {
    std::size_t items, links;
    double gap;  // mean over the draws
};

class Greedy : public ::testing::TestWithParam<Size> {};

TEST_P(Greedy, GapIsSmall) {
    double sum = 0;
    const int draws = 50;
    for (int seed = 0; seed < draws; ++seed) {
        std::mt19937_64 random(static_cast<std::uint64_t>(seed));
        const PackingProblem problem = draw(random, GetParam().items, GetParam().links, 1.3, false);
        PackingSolver solver;
        const Packing& packing = solver.greedy(problem);
        expect_feasible(problem, packing);
        sum += packing.gap();
    }
    RecordProperty("mean_gap_percent", std::to_string(100 * sum / draws));
    EXPECT_LE(sum / draws, GetParam().gap);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Greedy,
                         ::testing::Values(Size{14, 2, 0.03}, Size{38, 2, 0.005},
                                           Size{145, 4, 0.005}, Size{226, 8, 0.005},
                                           Size{1000, 8, 0.005}));

TEST(Packing, EverythingFitsWhereThereIsRoom) {
    for (const double load : {0.6, 0.9}) {
        std::mt19937_64 random(9);
        const PackingProblem problem = draw(random, 226, 4, load, true);
        PackingSolver solver;
        const Packing& packing = solver.greedy(problem);
        EXPECT_EQ(std::count(packing.link.begin(), packing.link.end(), Packing::kUnsent), 0);
        EXPECT_EQ(packing.gap(), 0);
    }
}

TEST(Packing, NothingFits) {
    PackingProblem problem;
    problem.links = 1;
    problem.value = {2, 3};
    problem.cost = {2, 3};
    problem.capacity = {1};
    PackingSolver solver;
    EXPECT_EQ(solver.greedy(problem).value, 0);
    EXPECT_EQ(solver.greedy(problem).gap(), 0);
}

}  // namespace
}  // namespace deft::planner
