// SPDX-License-Identifier: Apache-2.0
// Exhaustive optima over small cases, written apart from the planner: what policies are held to.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "planner/model/fabric.h"
#include "planner/model/profile.h"

namespace deft::planner::testing {

// Calls `visit` with every way to cut a row of n into runs: bit k of the mask cuts behind k.
inline void every_grouping(std::size_t n, const std::function<void(std::uint32_t)>& visit) {
    for (std::uint32_t mask = 0; mask < 1U << (n - 1); ++mask) {
        visit(mask);
    }
}

// Calls `visit` with every way to give n things one of m places each.
inline void every_assignment(std::size_t n, std::uint32_t m,
                             const std::function<void(const std::vector<std::uint32_t>&)>& visit) {
    std::vector<std::uint32_t> place(n, 0);
    for (;;) {
        visit(place);
        std::size_t at = 0;
        while (at < n && ++place[at] == m) {
            place[at++] = 0;
        }
        if (at == n) {
            return;
        }
    }
}

// Runs of the grouping, as [from, to).
inline std::vector<std::pair<std::size_t, std::size_t>> runs(std::size_t n, std::uint32_t mask) {
    std::vector<std::pair<std::size_t, std::size_t>> all;
    std::size_t from = 0;
    for (std::size_t k = 0; k < n; ++k) {
        if (k + 1 == n || (mask >> k & 1) != 0) {
            all.emplace_back(from, k + 1);
            from = k + 1;
        }
    }
    return all;
}

inline double bytes_of(const Profile& profile, std::size_t from, std::size_t to) {
    double sum = 0;
    for (std::size_t i = from; i < to; ++i) {
        sum += static_cast<double>(profile.buckets[i].bytes);
    }
    return sum;
}

// First ready, first sent, neighbours fused in any way; the update waits for all.
inline double best_fused_wfbp(const Profile& profile, const Link& link) {
    double best = INFINITY;
    every_grouping(profile.size(), [&](std::uint32_t mask) {
        double finish = 0;
        for (const auto& [from, to] : runs(profile.size(), mask)) {
            finish = std::max(finish, profile.buckets[to - 1].ready) +
                     link.seconds(bytes_of(profile, from, to));
        }
        best = std::min(best, profile.forward + std::max(finish, profile.backward));
    });
    return best;
}

// Everything is sent after backward, input side first, neighbours fused in any way; a layer waits
// for its own.
inline double best_fused_forward(const Profile& profile, const Link& link) {
    const std::size_t n = profile.size();
    double best = INFINITY;
    every_grouping(n, [&](std::uint32_t mask) {
        double finish = profile.backward;
        double compute = profile.backward;
        double owned = 0;
        for (const auto& [from, to] : runs(n, mask)) {  // positions from the input side
            finish += link.seconds(bytes_of(profile, n - to, n - from));
            compute = std::max(compute, finish);
            for (std::size_t k = from; k < to; ++k) {
                compute += profile.buckets[n - 1 - k].forward;
                owned += profile.buckets[n - 1 - k].forward;
            }
        }
        best = std::min(best, compute + profile.forward - owned);
    });
    return best;
}

// Reduce-scatters as gradients are ready, all-gathers in forward order, both fused in the same way.
inline double best_fused_dear(const Profile& profile, const Link& link) {
    const std::size_t n = profile.size();
    double best = INFINITY;
    every_grouping(n, [&](std::uint32_t mask) {
        const auto groups = runs(n, mask);
        double finish = 0;
        for (const auto& [from, to] : groups) {
            finish = std::max(finish, profile.buckets[to - 1].ready) +
                     link.seconds(bytes_of(profile, from, to), 0.5);
        }
        double compute = profile.backward;
        double gathered = std::max(finish, profile.backward);
        double owned = 0;
        for (std::size_t g = groups.size(); g-- > 0;) {
            const auto [from, to] = groups[g];
            gathered += link.seconds(bytes_of(profile, from, to), 0.5);
            compute = std::max(compute, gathered);
            for (std::size_t i = to; i-- > from;) {
                compute += profile.buckets[i].forward;
                owned += profile.buckets[i].forward;
            }
        }
        best = std::min(best, compute + profile.forward - owned);
    });
    return best;
}

// One deadline for all: an iteration of whole buckets on these links.
inline double whole_buckets(const Profile& profile, const Fabric& fabric,
                            const std::vector<std::uint32_t>& link_of) {
    std::vector<double> busy(fabric.links.size(), 0.0);
    double last = profile.backward;
    for (std::size_t i = 0; i < profile.size(); ++i) {
        double& at = busy[link_of[i]];
        at = std::max(at, profile.buckets[i].ready) +
             fabric.links[link_of[i]].seconds(static_cast<double>(profile.buckets[i].bytes));
        last = std::max(last, at);
    }
    return profile.forward + last;
}

inline double best_whole_buckets(const Profile& profile, const Fabric& fabric) {
    double best = INFINITY;
    every_assignment(profile.size(), static_cast<std::uint32_t>(fabric.links.size()),
                     [&](const std::vector<std::uint32_t>& link_of) {
                         best = std::min(best, whole_buckets(profile, fabric, link_of));
                     });
    return best;
}

// First-fit decreasing: the largest first, each onto the fastest link on which all are still in
// time; the shortest length for which that works, by bisection.
inline double first_fit_decreasing(const Profile& profile, const Fabric& fabric) {
    const std::size_t n = profile.size();
    std::vector<std::size_t> order(n);
    std::vector<std::size_t> links(fabric.links.size());
    for (std::size_t i = 0; i < n; ++i) {
        order[i] = i;
    }
    for (std::size_t j = 0; j < links.size(); ++j) {
        links[j] = j;
    }
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return profile.buckets[a].bytes > profile.buckets[b].bytes;
    });
    std::sort(links.begin(), links.end(), [&](std::size_t a, std::size_t b) {
        return fabric.links[a].seconds(1e8) < fabric.links[b].seconds(1e8);
    });
    double found = INFINITY;
    const auto fits = [&](double length) {
        std::vector<std::vector<bool>> on(links.size(), std::vector<bool>(n, false));
        std::vector<std::uint32_t> link_of(n, 0);
        for (const std::size_t i : order) {
            bool placed = false;
            for (const std::size_t j : links) {
                on[j][i] = true;
                double at = 0;
                for (std::size_t k = 0; k < n; ++k) {
                    if (on[j][k]) {
                        at = std::max(at, profile.buckets[k].ready) +
                             fabric.links[j].seconds(static_cast<double>(profile.buckets[k].bytes));
                    }
                }
                if (at + profile.forward <= length * (1 + 1e-12)) {
                    placed = true;
                    link_of[i] = static_cast<std::uint32_t>(j);
                    break;
                }
                on[j][i] = false;
            }
            if (!placed) {
                return false;
            }
        }
        found = std::min(found, whole_buckets(profile, fabric, link_of));
        return true;
    };
    double low = profile.compute();
    double high = low;
    while (!fits(high)) {
        low = high;
        high *= 1.5;
    }
    for (int i = 0; i < 40; ++i) {
        const double middle = 0.5 * (low + high);
        (fits(middle) ? high : low) = middle;
    }
    return found;
}

// Least number of links that reach the target with whole buckets; 0: not even all of them.
inline std::size_t fewest_links(const Profile& profile, const Fabric& fabric, double target) {
    std::size_t best = 0;
    every_assignment(profile.size(), static_cast<std::uint32_t>(fabric.links.size()),
                     [&](const std::vector<std::uint32_t>& link_of) {
                         std::uint32_t used = 0;
                         for (const std::uint32_t j : link_of) {
                             used |= 1U << j;
                         }
                         const auto count = static_cast<std::size_t>(__builtin_popcount(used));
                         if ((best == 0 || count < best) &&
                             whole_buckets(profile, fabric, link_of) <= target * (1 + 1e-9)) {
                             best = count;
                         }
                     });
    return best;
}

}  // namespace deft::planner::testing
