// SPDX-License-Identifier: Apache-2.0
// Policy `fewest-links`: after arXiv 1604.08330 (server consolidation: fewest machines at the
// required performance), a bin packing with bins of unequal size. Each link costs CPU cores or SMs
// and takes from other tenants: use as few as reach the target time.
// Mapping: bins -> links; items -> buckets. The target is what deadline-first reaches with all
// links, or Options::target_seconds. The scan starts at the least number whose summed rate can do
// it: sum_{j<=m} 1/mu_j >= CR. Of m links the fastest m are taken; where none is the fastest for
// every bucket, every set of m. What deadline-first does not fit into a set is searched for by
// branch and bound, up to a fixed effort: the paper's heuristic is within 4.3 % of its optimum.
// Deviations: the paper's integer programme has a layer of virtual machines that has no analogue.
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

}  // namespace

Plan plan_fewest_links(const Profile& profile, const Fabric& fabric, const Options& with) {
    Options options = with;
    options.predict = true;  // it compares times
    Plan all = plan_edf(profile, fabric, options);
    all.policy = "fewest-links";
    const double target =
        options.target_seconds > 0 ? options.target_seconds : all.predicted.iteration;
    const double mean = static_cast<double>(profile.bytes()) / static_cast<double>(profile.size());
    const std::vector<std::uint32_t> order = by_speed(fabric, mean);
    const bool every = order.size() <= kMostLinksInSets && !in_one_order(profile, fabric, order);
    for (std::size_t m = 1; m < order.size(); ++m) {
        for (const auto& links : sets_of(m, every, order)) {
            Fabric few = fabric;
            few.links.clear();
            for (const std::uint32_t j : links) {
                few.links.push_back(fabric.links[j]);
            }
            const double least = lower_bound(profile, few, options.barrier, 0, 1);
            if (least > target * (1 + 1e-9)) {
                continue;
            }
            const Assignment assignment(profile, few, options.barrier);
            Assignment::LinkOf link_of = assignment.shortest(least);
            if (assignment.length(link_of) > target) {
                const Assignment::LinkOf found = assignment.search(target, kEffort);
                link_of = found.empty() ? link_of : found;
            }
            Plan plan = plan_assigned("fewest-links", link_of, assignment, profile, few, options);
            if (plan.predicted.iteration <= target * (1 + 1e-6)) {
                for (Transfer& t : plan.transfers) {
                    t.link = links[t.link];
                }
                evaluate(plan, profile, fabric);
                return plan;
            }
        }
    }
    return all;  // it takes all links, or the target is out of reach
}

}  // namespace deft::planner
