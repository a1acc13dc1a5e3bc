// SPDX-License-Identifier: Apache-2.0
// Policy `edf`: deadline first, after the heuristic of arXiv 1604.08335 (deadline-constrained bags
// of tasks in a hybrid cloud): the current machine takes the task nearest to its deadline until it
// can finish no further task in time, then the machine of best marginal benefit is opened.
// Mapping: machine -> link, task -> bucket with its release time, deadline -> the moment compute
// needs it in an iteration of the target length. "Cannot finish in time" leaves it to the next
// link.
// Deviations: the shortest target length for which this works is found by bisection. Of tasks with
// one deadline, which are all of them in an unmodified job, the largest comes first: with any other
// order first-fit decreasing is shorter. Where deadlines differ, first-fit decreasing is tried as
// well, and the shorter of the two is taken; then single buckets are moved and exchanged.
// The paper saves 16 to 76 % of the rent over first-fit decreasing, because that ignores deadlines
// and opens machines for the tasks it then misses. Rent has no analogue here: the links are there.
// What is counted is time, where first-fit decreasing is within a few per cent of the optimum
// (perf/results/policy-ratios.md), so no such gain is left.
#include "planner/policies/assignment.h"
#include "planner/policies/policy.h"
#include "planner/solver/bounds.h"

namespace deft::planner {

Plan plan_edf(const Profile& profile, const Fabric& fabric, const Options& options) {
    const Assignment assignment(profile, fabric, options.barrier);
    const Assignment::LinkOf link_of =
        assignment.shortest(lower_bound(profile, fabric, options.barrier, 0, 1));
    return plan_assigned("edf", link_of, assignment, profile, fabric, options);
}

}  // namespace deft::planner
