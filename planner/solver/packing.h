// SPDX-License-Identifier: Apache-2.0
// Which transfers go into a window of time, and on which link: the multiple knapsack of DeFT.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace deft::planner {

// Items worth `value` (seconds on the reference link) take cost[item * links + link] seconds of a
// link's capacity. On every link a more valuable item must not be cheaper (true for any sizes on
// any cost curves). With costs in proportion it is a multiple subset-sum, with start-up costs a
// generalised assignment problem; both are treated as the latter.
struct PackingProblem {
    std::size_t links = 0;
    std::vector<double> value;
    std::vector<double> cost;
    std::vector<double> capacity;  // by link

    std::size_t items() const { return value.size(); }
};

struct Packing {
    static constexpr std::int32_t kUnsent = -1;
    std::vector<std::int32_t> link;  // by item
    double value = 0;
    double bound = 0;  // no packing has more

    double gap() const { return value > 0 ? bound / value - 1 : bound > 0 ? 1 : 0; }
};

// Holds its working memory, so that solving again allocates nothing. Deterministic.
class PackingSolver {
public:
    // Largest value first onto the link with most room; then exchanges (one for one, two for one)
    // while they gain.
    const Packing& greedy(const PackingProblem& problem);
    // The greedy stops improving when no more than this part of the capacity is left.
    static constexpr double kEnough = 1e-4;

private:
    void prepare(const PackingProblem& problem);
    void finish(const PackingProblem& problem);
    void put_back(const PackingProblem& problem, std::uint32_t item);
    double carried() const;
    bool insert_unsent(const PackingProblem& problem);
    bool exchange_one(const PackingProblem& problem);
    bool exchange_two(const PackingProblem& problem);

    Packing packing_;
    std::vector<std::uint32_t> order_;   // items, most valuable first
    std::vector<double> room_;           // by link
    std::vector<std::uint32_t> unsent_;  // most valuable first
    std::size_t budget_ = 0;             // looks at unsent items exchange_two may take
    std::vector<double> density_;        // by link: most value per second of capacity
};

}  // namespace deft::planner
