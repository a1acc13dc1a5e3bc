// SPDX-License-Identifier: Apache-2.0
#include "shim/planner/packing.h"

#include <algorithm>
#include <cmath>

namespace deft::planner {

void PackingSolver::prepare(const PackingProblem& problem) {
    const std::size_t n = problem.items();
    const std::size_t m = problem.links;
    packing_.link.assign(n, Packing::kUnsent);
    packing_.value = 0;
    packing_.optimal = false;
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
    double carried = 0;
    for (std::size_t j = 0; j < m; ++j) {
        carried += density_[j] > 0 ? density_[j] * problem.capacity[j] : 0;
    }
    packing_.bound = std::min(fitting, carried);
}

void PackingSolver::finish(const PackingProblem& problem) {
    packing_.value = 0;
    for (std::size_t i = 0; i < problem.items(); ++i) {
        packing_.value += packing_.link[i] != Packing::kUnsent ? problem.value[i] : 0;
    }
    if (packing_.optimal || packing_.value > packing_.bound) {
        packing_.bound = packing_.value;
    }
}

const Packing& PackingSolver::solve(const PackingProblem& problem, double tolerance) {
    if (problem.items() <= kExactItems) {
        exact(problem);
        if (packing_.optimal) {
            return packing_;
        }
    }
    greedy(problem);
    if (problem.links == 2 && packing_.gap() > tolerance) {
        const Packing fast = packing_;
        two_links(problem);
        if (packing_.value < fast.value) {
            packing_ = fast;
        }
    }
    return packing_;
}

const Packing& PackingSolver::greedy(const PackingProblem& problem) {
    const std::size_t m = problem.links;
    prepare(problem);
    unsent_.clear();
    for (const std::uint32_t i : order_) {
        std::size_t to = m;
        for (std::size_t j = 0; j < m; ++j) {
            if (problem.cost[i * m + j] <= room_[j] && (to == m || room_[j] > room_[to])) {
                to = j;
            }
        }
        if (to == m) {
            unsent_.push_back(i);
            continue;
        }
        packing_.link[i] = static_cast<std::int32_t>(to);
        room_[to] -= problem.cost[i * m + to];
    }
    if (!unsent_.empty()) {
        // Exchanges look at pairs of unsent items; the budget keeps large problems within a
        // millisecond, and those end near the bound without them.
        budget_ = 1024 + 8 * problem.items();
        for (int step = 0; step < 32 && !unsent_.empty(); ++step) {
            double empty = 0;  // what the room left could carry at most
            for (std::size_t j = 0; j < m; ++j) {
                empty += density_[j] > 0 ? density_[j] * room_[j] : 0;
            }
            if (empty <= kEnough * packing_.bound) {
                break;
            }
            if (!insert_unsent(problem) && !exchange_one(problem) && !exchange_two(problem)) {
                break;
            }
        }
    }
    packing_.optimal = unsent_.empty();
    finish(problem);
    return packing_;
}

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

void PackingSolver::search(const PackingProblem& problem, std::size_t depth, double value,
                           double rest) {
    if (value > best_) {
        best_ = value;
        packing_.link = trial_;
    }
    if (depth == problem.items() || ++nodes_ > node_limit_) {
        return;
    }
    const std::size_t m = problem.links;
    double carried = 0;  // surrogate bound: what the room left could hold
    for (std::size_t j = 0; j < m; ++j) {
        carried += density_[j] > 0 ? density_[j] * room_[j] : 0;
    }
    if (value + std::min(rest, carried) <= best_ * (1 + 1e-12)) {
        return;
    }
    const std::uint32_t i = order_[depth];
    for (std::size_t j = 0; j < m; ++j) {
        const double cost = problem.cost[i * m + j];
        bool twin = false;  // an equal link with equal room was tried: symmetric
        for (std::size_t k = 0; k < j && !twin; ++k) {
            twin = room_[k] == room_[j] && problem.cost[i * m + k] == cost &&
                   density_[k] == density_[j];
            for (std::size_t d = depth; d < problem.items() && twin; ++d) {
                twin = problem.cost[order_[d] * m + k] == problem.cost[order_[d] * m + j];
            }
        }
        if (twin || cost > room_[j]) {
            continue;
        }
        const double room = room_[j];
        room_[j] -= cost;
        trial_[i] = static_cast<std::int32_t>(j);
        search(problem, depth + 1, value + problem.value[i], rest - problem.value[i]);
        trial_[i] = Packing::kUnsent;
        room_[j] = room;
    }
    search(problem, depth + 1, value, rest - problem.value[i]);
}

const Packing& PackingSolver::exact(const PackingProblem& problem, std::uint64_t nodes) {
    prepare(problem);
    trial_.assign(problem.items(), Packing::kUnsent);
    best_ = 0;
    nodes_ = 0;
    node_limit_ = nodes;
    double all = 0;
    for (const double value : problem.value) {
        all += value;
    }
    search(problem, 0, 0, all);
    packing_.optimal = nodes_ <= node_limit_;
    finish(problem);
    return packing_;
}

const Packing& PackingSolver::two_links(const PackingProblem& problem, std::size_t steps) {
    prepare(problem);
    const std::size_t n = problem.items();
    steps = std::clamp<std::size_t>(steps, 1, 8192);
    // Rows: loads 0..steps of link 0; bits: loads 0..steps of link 1. rows_[i] is the state before
    // item i, kept for the way back; the memory bounds the resolution.
    const std::size_t words = steps / 64 + 1;
    const std::size_t row = words;
    const std::size_t state = (steps + 1) * row;
    if (problem.links != 2 || n * state > (std::size_t{1} << 26)) {
        return greedy(problem);
    }
    const auto scaled = [&](double cost, double capacity) -> std::size_t {
        if (capacity <= 0 || cost > capacity) {
            return steps + 1;
        }
        return static_cast<std::size_t>(
            std::ceil(cost / capacity * static_cast<double>(steps) - 1e-9));
    };
    rows_.assign((n + 1) * state, 0);
    rows_[0] = 1;
    for (std::size_t k = 0; k < n; ++k) {
        const std::uint32_t i = order_[k];
        const std::size_t a = scaled(problem.cost[i * 2], problem.capacity[0]);
        const std::size_t b = scaled(problem.cost[i * 2 + 1], problem.capacity[1]);
        const std::uint64_t* from = &rows_[k * state];
        std::uint64_t* to = &rows_[(k + 1) * state];
        for (std::size_t load = 0; load <= steps; ++load) {
            const std::uint64_t* source = from + load * row;
            std::uint64_t* same = to + load * row;
            std::uint64_t* up = load + a <= steps ? to + (load + a) * row : nullptr;
            for (std::size_t w = 0; w < words; ++w) {
                const std::uint64_t bits = source[w];
                if (bits == 0) {
                    continue;
                }
                same[w] |= bits;
                if (up != nullptr) {
                    up[w] |= bits;
                }
                if (b <= steps) {
                    const std::size_t shift = w + b / 64;
                    const std::size_t rest = b % 64;
                    if (shift < words) {
                        same[shift] |= bits << rest;
                    }
                    if (rest != 0 && shift + 1 < words) {
                        same[shift + 1] |= bits >> (64 - rest);
                    }
                }
            }
        }
        // Bits beyond `steps` are loads that do not fit.
        const std::size_t used = steps % 64 + 1;
        if (used < 64) {
            for (std::size_t load = 0; load <= steps; ++load) {
                to[load * row + words - 1] &= (std::uint64_t{1} << used) - 1;
            }
        }
    }
    // The best final state by the value it stands for.
    const std::uint64_t* last = &rows_[n * state];
    double best = -1;
    std::size_t best_a = 0;
    std::size_t best_b = 0;
    for (std::size_t load = 0; load <= steps; ++load) {
        for (std::size_t w = words; w-- > 0;) {
            const std::uint64_t bits = last[load * row + w];
            if (bits == 0) {
                continue;
            }
            const std::size_t b = w * 64 + 63 - static_cast<std::size_t>(__builtin_clzll(bits));
            const double value = density_[0] * problem.capacity[0] * static_cast<double>(load) +
                                 density_[1] * problem.capacity[1] * static_cast<double>(b);
            if (value > best) {
                best = value;
                best_a = load;
                best_b = b;
            }
            break;
        }
    }
    for (std::size_t k = n; k-- > 0;) {
        const std::uint32_t i = order_[k];
        const auto reachable = [&](std::size_t a, std::size_t b) {
            return (rows_[k * state + a * row + b / 64] >> (b % 64) & 1) != 0;
        };
        if (reachable(best_a, best_b)) {
            continue;
        }
        const std::size_t a = scaled(problem.cost[i * 2], problem.capacity[0]);
        const std::size_t b = scaled(problem.cost[i * 2 + 1], problem.capacity[1]);
        if (a <= best_a && reachable(best_a - a, best_b)) {
            packing_.link[i] = 0;
            best_a -= a;
        } else {
            packing_.link[i] = 1;
            best_b -= b;
        }
    }
    finish(problem);
    return packing_;
}

}  // namespace deft::planner
