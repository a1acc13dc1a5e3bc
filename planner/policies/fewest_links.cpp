// SPDX-License-Identifier: Apache-2.0
// Policy `fewest-links`: after arXiv 1604.08330 (server consolidation: fewest machines at the
// required performance), a bin packing with bins of unequal size. Each link costs CPU cores or SMs
// and takes from other tenants: use as few as reach the target time.
// Mapping: bins -> links; items -> buckets. The target is what deadline-first reaches with all
// links, or Options::target_seconds. The scan starts at the least number whose summed rate can do
// it: sum_{j<=m} 1/mu_j >= CR. Of m links the fastest m are taken; every set of m where links
// share a pipe or disturb, or none is the fastest for every bucket. What deadline-first does not
// fit into a set, all links among them, is searched for by branch and bound, up to a fixed effort:
// the paper's heuristic is within 4.3 % of its optimum. A target out of reach gets the fastest
// seen. Deviations: the paper's integer programme has a layer of virtual machines that has no
// analogue.
#include <algorithm>

#include "planner/policies/assignment.h"
#include "planner/policies/builder.h"
#include "planner/policies/policy.h"
#include "planner/simulator/evaluate.h"
#include "planner/solver/bounds.h"

namespace deft::planner {
namespace {

constexpr std::uint64_t kEffort = 20000;     // placements per set of links
constexpr std::size_t kMostLinksInSets = 6;  // up to so many, every set is tried

// Whether each link of this order is at least as fast as the next for every bucket.
bool in_one_order(const Profile& profile, const Fabric& fabric,
                  const std::vector<std::uint32_t>& order) {
    for (std::size_t k = 1; k < order.size(); ++k) {
        const auto faster = bucket_costs(profile, fabric.links[order[k - 1]]);
        const auto slower = bucket_costs(profile, fabric.links[order[k]]);
        if (!std::equal(faster.begin(), faster.end(), slower.begin(), std::less_equal<>())) {
            return false;
        }
    }
    return true;
}

// Sets of m links, those of the fastest first.
std::vector<std::vector<std::uint32_t>> sets_of(std::size_t m, bool every,
                                                const std::vector<std::uint32_t>& order) {
    std::vector<bool> taken(order.size(), false);
    std::fill(taken.begin(), taken.begin() + static_cast<std::ptrdiff_t>(m), true);
    std::vector<std::vector<std::uint32_t>> sets;
    do {
        auto& set = sets.emplace_back();
        for (std::size_t k = 0; k < order.size(); ++k) {
            if (taken[k]) {
                set.push_back(order[k]);
            }
        }
    } while (every && std::prev_permutation(taken.begin(), taken.end()));
    return sets;
}

// Deadline-first on some of the links; where that misses the target, what the search finds.
Plan on_links(const std::vector<std::uint32_t>& links, double target, const Profile& profile,
              const Fabric& fabric, const Options& options) {
    const Fabric few = only(links, fabric);
    Plan plan = plan_edf(profile, few, options);
    if (plan.predicted.iteration > target) {
        const Assignment assignment(profile, few, options.barrier);
        const Assignment::LinkOf found = assignment.search(target, kEffort);
        if (!found.empty()) {
            Plan other = plan_assigned("", found, assignment, profile, few, options);
            plan = other.predicted.iteration < plan.predicted.iteration ? other : plan;
        }
    }
    for (Transfer& t : plan.transfers) {
        t.link = links[t.link];
    }
    plan.policy = "fewest-links";
    evaluate(plan, profile, fabric);
    return plan;
}

}  // namespace

Plan plan_fewest_links(const Profile& profile, const Fabric& fabric, const Options& with) {
    Options options = with;
    options.predict = true;  // it compares times
    Plan best = plan_edf(profile, fabric, options);
    best.policy = "fewest-links";
    const double target =
        options.target_seconds > 0 ? options.target_seconds : best.predicted.iteration;
    const double mean = static_cast<double>(profile.bytes()) / static_cast<double>(profile.size());
    const std::vector<std::uint32_t> order = by_speed(fabric, mean);
    const bool every = order.size() <= kMostLinksInSets &&
                       !(apart(fabric) && in_one_order(profile, fabric, order));
    for (std::size_t m = 1; m <= order.size(); ++m) {
        for (const auto& links : sets_of(m, every, order)) {
            const Fabric few = only(links, fabric);
            if (lower_bound(profile, few, options.barrier, 0, 1) > target * (1 + 1e-9)) {
                continue;
            }
            Plan plan = on_links(links, target, profile, fabric, options);
            if (plan.predicted.iteration <= target * (1 + 1e-6)) {
                return plan;
            }
            if (plan.predicted.iteration < best.predicted.iteration) {
                best = std::move(plan);
            }
        }
    }
    return best;
}

}  // namespace deft::planner
