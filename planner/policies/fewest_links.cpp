// SPDX-License-Identifier: Apache-2.0
// Policy `fewest-links`: after arXiv 1604.08330 (server consolidation: fewest machines at the
// required performance), a bin packing with bins of unequal size. Each link costs CPU cores or SMs
// and takes from other tenants: use as few as reach the target time.
// Mapping: bins -> links, opened fastest first; items -> buckets. The target is what deadline-first
// reaches with all links, or Options::target_seconds. The scan starts at the least number whose
// summed rate can do it: sum_{j<=m} 1/mu_j >= CR.
// Deviations: the paper's integer programme has a layer of virtual machines that has no analogue.
#include <algorithm>

#include "planner/policies/builder.h"
#include "planner/policies/policy.h"
#include "planner/simulator/evaluate.h"
#include "planner/solver/bounds.h"

namespace deft::planner {

Plan plan_fewest_links(const Profile& profile, const Fabric& fabric, const Options& with) {
    Options options = with;
    options.predict = true;  // it compares times
    const Plan all = plan_edf(profile, fabric, options);
    const double target =
        options.target_seconds > 0 ? options.target_seconds : all.predicted.iteration;
    const double mean = static_cast<double>(profile.bytes()) / static_cast<double>(profile.size());
    const std::vector<std::uint32_t> order = by_speed(fabric, mean);
    for (std::size_t m = 1; m <= order.size(); ++m) {
        Fabric few = fabric;
        few.links.clear();
        for (std::size_t k = 0; k < m; ++k) {
            few.links.push_back(fabric.links[order[k]]);
        }
        if (lower_bound(profile, few, options.barrier, 0, 1) > target * (1 + 1e-9)) {
            continue;
        }
        Plan plan = m == order.size() ? all : plan_edf(profile, few, options);
        if (plan.predicted.iteration <= target * (1 + 1e-6) || m == order.size()) {
            if (m < order.size()) {
                for (Transfer& t : plan.transfers) {
                    t.link = order[t.link];
                }
            }
            plan.policy = "fewest-links";
            evaluate(plan, profile, fabric);
            return plan;
        }
    }
    Plan plan = all;  // the target is out of reach: as fast as possible
    plan.policy = "fewest-links";
    return plan;
}

}  // namespace deft::planner
