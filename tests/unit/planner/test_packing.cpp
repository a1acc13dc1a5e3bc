// SPDX-License-Identifier: Apache-2.0
#include "planner/solver/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "tests/unit/planner/packing_problem.h"
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

// Where some of the items may go: what they take of each link, and what they are worth.
struct Placement {
    std::array<double, 3> load{};
    double value = 0;
};

// Every way to place the items [from, to) that the links have room for, most valuable first.
std::vector<Placement> placements(const PackingProblem& problem, std::size_t from, std::size_t to) {
    std::vector<Placement> all(1);
    for (std::size_t i = from; i < to; ++i) {
        for (std::size_t k = all.size(); k-- > 0;) {
            for (std::size_t j = 0; j < problem.links; ++j) {
                Placement with = all[k];
                with.load[j] += problem.cost[i * problem.links + j];
                with.value += problem.value[i];
                if (with.load[j] <= problem.capacity[j]) {
                    all.push_back(with);
                }
            }
        }
    }
    std::sort(all.begin(), all.end(),
              [](const Placement& a, const Placement& b) { return a.value > b.value; });
    return all;
}

// The most that items may be worth for which a link has room: those that cost it least by worth.
double worth_of(const PackingProblem& problem, const std::array<double, 3>& load) {
    double worth = 0;
    for (std::size_t j = 0; j < problem.links; ++j) {
        double least = INFINITY;
        for (std::size_t i = 0; i < problem.items(); ++i) {
            least = std::min(least, problem.cost[i * problem.links + j] / problem.value[i]);
        }
        worth += (problem.capacity[j] - load[j]) / least;
    }
    return worth * (1 + 1e-9);
}

// The exact optimum, at most three links: each way to place the first half of the items meets those
// ways to place the second (Horowitz and Sahni, 1974) that its room may be worth.
double optimum(const PackingProblem& problem) {
    const std::size_t middle = problem.items() / 2;
    const auto first = placements(problem, 0, middle);
    const auto second = placements(problem, middle, problem.items());
    double best = 0;
    for (const Placement& a : first) {
        const double most = worth_of(problem, a.load);
        const auto begin = std::partition_point(
            second.begin(), second.end(), [most](const Placement& b) { return b.value > most; });
        for (auto each = begin; each != second.end(); ++each) {
            const Placement& b = *each;
            if (a.value + b.value <= best) {
                break;
            }
            bool fits = true;
            for (std::size_t j = 0; j < problem.links; ++j) {
                fits &= a.load[j] + b.load[j] <= problem.capacity[j];
            }
            if (fits) {
                best = a.value + b.value;
                break;
            }
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
        const double best = optimum(problem);
        EXPECT_LE(packing.value, best + 1e-12) << "seed " << seed;
        EXPECT_GE(packing.bound, best - 1e-12) << "seed " << seed;
        lost += best > 0 ? 1 - packing.value / best : 0;
    }
    RecordProperty("mean_loss_percent", std::to_string(100 * lost / draws));
    EXPECT_LE(lost / draws, 0.03);
}

// Sizes at which a mixed-integer solver takes up to a minute for each (oracle.py, which shows both
// right on others).
class Exact : public ::testing::TestWithParam<std::pair<std::size_t, std::size_t>> {};

TEST_P(Exact, GreedyAndItsBoundEncloseTheOptimum) {
    const auto [items, links] = GetParam();
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
        const PackingProblem problem = testing::oracle_problem(items, links, seed);
        PackingSolver solver;
        const Packing& packing = solver.greedy(problem);
        expect_feasible(problem, packing);
        const double best = optimum(problem);
        EXPECT_LE(packing.value, best + 1e-9) << "seed " << seed;
        EXPECT_GE(packing.bound, best - 1e-9) << "seed " << seed;
        EXPECT_GE(packing.value, 0.95 * best) << "seed " << seed;
    }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Exact,
                         ::testing::Values(std::pair{10, 2}, std::pair{12, 3}, std::pair{14, 2},
                                           std::pair{16, 2}, std::pair{20, 2}));

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
