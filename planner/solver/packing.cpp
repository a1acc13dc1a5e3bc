// SPDX-License-Identifier: Apache-2.0
#include "planner/solver/packing.h"

#include <algorithm>
#include <cmath>

namespace deft::planner {

void PackingSolver::prepare(const PackingProblem& problem) {
    const std::size_t n = problem.items();
    const std::size_t m = problem.links;
    packing_.link.assign(n, Packing::kUnsent);
    packing_.value = 0;
    order_.resize(n);
    for (std::uint32_t i = 0; i < n; ++i) {
        order_[i] = i;
    }
    const auto falls = [&](std::uint32_t a, std::uint32_t b) {
        return problem.value[a] > problem.value[b] ||
               (problem.value[a] == problem.value[b] && a < b);
    };
    if (!std::is_sorted(order_.begin(), order_.end(), falls)) {
        std::sort(order_.begin(), order_.end(), falls);
    }
    room_ = problem.capacity;
    density_.assign(m, 0.0);
    double fitting = 0;
    for (std::size_t i = 0; i < n; ++i) {
        bool fits = false;
        for (std::size_t j = 0; j < m; ++j) {
            const double cost = problem.cost[i * m + j];
            if (cost <= problem.capacity[j]) {
                fits = true;
                density_[j] = std::max(density_[j], cost > 0 ? problem.value[i] / cost : INFINITY);
            }
        }
        fitting += fits ? problem.value[i] : 0;
    }
    packing_.bound = std::min(fitting, carried());
}

void PackingSolver::finish(const PackingProblem& problem) {
    packing_.value = 0;
    for (std::size_t i = 0; i < problem.items(); ++i) {
        packing_.value += packing_.link[i] != Packing::kUnsent ? problem.value[i] : 0;
    }
    if (unsent_.empty() || packing_.value > packing_.bound) {
        packing_.bound = packing_.value;
    }
}

const Packing& PackingSolver::greedy(const PackingProblem& problem) {
    prepare(problem);
    unsent_ = order_;
    insert_unsent(problem);
    // Exchanges look at pairs of unsent items; the budget keeps large problems within a
    // millisecond, and those end near the bound without them.
    budget_ = 1024 + 8 * problem.items();
    for (int step = 0; step < 32 && !unsent_.empty() && carried() > kEnough * packing_.bound;
         ++step) {
        if (!insert_unsent(problem) && !exchange_one(problem) && !exchange_two(problem)) {
            break;
        }
    }
    finish(problem);
    return packing_;
}

// What the room left could carry at most.
double PackingSolver::carried() const {
    double sum = 0;
    for (std::size_t j = 0; j < room_.size(); ++j) {
        sum += density_[j] > 0 ? density_[j] * room_[j] : 0;
    }
    return sum;
}

// Each onto the link with most room, the most valuable first.
bool PackingSolver::insert_unsent(const PackingProblem& problem) {
    const std::size_t m = problem.links;
    bool any = false;
    std::size_t kept = 0;
    for (const std::uint32_t u : unsent_) {
        std::size_t to = m;
        for (std::size_t j = 0; j < m; ++j) {
            if (problem.cost[u * m + j] <= room_[j] && (to == m || room_[j] > room_[to])) {
                to = j;
            }
        }
        if (to == m) {
            unsent_[kept++] = u;
            continue;
        }
        packing_.link[u] = static_cast<std::int32_t>(to);
        room_[to] -= problem.cost[u * m + to];
        any = true;
    }
    unsent_.resize(kept);
    return any;
}

// The unsent item goes back into its place by value.
void PackingSolver::put_back(const PackingProblem& problem, std::uint32_t item) {
    const auto at = std::upper_bound(
        unsent_.begin(), unsent_.end(), item,
        [&](std::uint32_t a, std::uint32_t b) { return problem.value[a] > problem.value[b]; });
    unsent_.insert(at, item);
}

// A sent item gives way to a more valuable unsent one that fits into its place and the room.
bool PackingSolver::exchange_one(const PackingProblem& problem) {
    const std::size_t m = problem.links;
    bool any = false;
    for (const std::uint32_t i : order_) {
        const std::int32_t link = packing_.link[i];
        if (link == Packing::kUnsent) {
            continue;
        }
        const auto j = static_cast<std::size_t>(link);
        const double space = room_[j] + problem.cost[i * m + j];
        // Costs fall with values, so the first that fits is the most valuable.
        const auto u = std::partition_point(unsent_.begin(), unsent_.end(), [&](std::uint32_t o) {
            return problem.cost[o * m + j] > space;
        });
        if (u == unsent_.end() || problem.value[*u] <= problem.value[i]) {
            continue;
        }
        packing_.link[*u] = link;
        packing_.link[i] = Packing::kUnsent;
        room_[j] = space - problem.cost[*u * m + j];
        unsent_.erase(u);
        put_back(problem, i);
        any = true;
    }
    return any;
}

// Sent items give way to two unsent ones that together are worth more and fit.
bool PackingSolver::exchange_two(const PackingProblem& problem) {
    const std::size_t m = problem.links;
    bool any = false;
    for (const std::uint32_t i : order_) {
        if (unsent_.size() < 2 || budget_ < unsent_.size()) {
            return any;
        }
        const std::int32_t link = packing_.link[i];
        if (link == Packing::kUnsent) {
            continue;
        }
        const auto j = static_cast<std::size_t>(link);
        const double space = room_[j] + problem.cost[i * m + j];
        double best = problem.value[i] * (1 + 1e-12);
        std::size_t first = 0;
        std::size_t second = 0;
        // Two pointers: costs follow the order of values.
        std::size_t lo = 0;
        std::size_t hi = unsent_.size() - 1;
        budget_ -= unsent_.size();
        while (lo < hi) {
            const double cost =
                problem.cost[unsent_[lo] * m + j] + problem.cost[unsent_[hi] * m + j];
            if (cost > space) {
                ++lo;
                continue;
            }
            const double value = problem.value[unsent_[lo]] + problem.value[unsent_[hi]];
            if (value > best) {
                best = value;
                first = lo;
                second = hi;
            }
            --hi;
        }
        if (second != 0) {
            const std::uint32_t a = unsent_[first];
            const std::uint32_t b = unsent_[second];
            packing_.link[a] = packing_.link[b] = link;
            packing_.link[i] = Packing::kUnsent;
            room_[j] = space - problem.cost[a * m + j] - problem.cost[b * m + j];
            unsent_.erase(unsent_.begin() + static_cast<std::ptrdiff_t>(second));
            unsent_.erase(unsent_.begin() + static_cast<std::ptrdiff_t>(first));
            put_back(problem, i);
            any = true;
        }
    }
    return any;
}

}  // namespace deft::planner
