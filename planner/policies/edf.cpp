// SPDX-License-Identifier: Apache-2.0
// Policy `edf`: deadline first, after the heuristic of arXiv 1604.08335 (deadline-constrained bags
// of tasks in a hybrid cloud): the current machine takes the task nearest to its deadline until it
// can finish no further task in time, then the machine of best marginal benefit is opened.
// Mapping: machine -> link, task -> bucket with its release time, deadline -> the moment compute
// needs it in an iteration of the target length. "Cannot finish in time" leaves it to the next
// link.
// Deviations: the shortest target length for which this works is searched for. Of tasks with one
// deadline, which are all of them in an unmodified job, the largest comes first: with any other
// order first-fit decreasing is shorter. Of those of one size both orders are tried: the first to
// exist first, and the last. Where deadlines differ, first-fit decreasing is tried as well; where
// links change places with the size of a message, each of their orders is. The shortest is taken,
// and then single buckets are moved and exchanged (exchanged: of 64 buckets at most).
// Lengths are bisected. A length may fit below one that does not: so lengths below the result are
// walked down, all that matter of a dozen buckets, a part of hundreds. First-fit decreasing over
// the same lengths is one of the orders where all have one deadline, and what that gives is tried
// where deadlines differ: so edf is never longer, whatever the number of buckets
// (tests/unit/planner/test_assignment.cpp), but it is not the optimum. First-fit decreasing that
// breaks ties between buckets of one size yet another way may win by a hair.
// An assignment knows nothing of links that share a pipe, disturb the compute or overlap latencies.
// There the job as it is and the links by themselves are simulated next to it.
// The paper saves 16 to 76 % of the rent over first-fit decreasing, because that ignores deadlines
// and opens machines for the tasks it then misses. Rent has no analogue here: the links are there.
// What is counted is time, where first-fit decreasing is within a few per cent of the optimum
// (perf/results/policy-ratios.md), so no such gain is left.
#include <algorithm>

#include "planner/policies/assignment.h"
#include "planner/policies/builder.h"
#include "planner/policies/policy.h"
#include "planner/simulator/evaluate.h"
#include "planner/solver/bounds.h"

namespace deft::planner {
namespace {

// Whether an assignment's length is what the simulator makes of it.
bool seen_by_assignment(const Fabric& fabric) {
    return apart(fabric) &&
           std::all_of(fabric.links.begin(), fabric.links.end(),
                       [](const Link& link) { return link.hops.empty() && link.in_flight <= 1; });
}

// Layers that wait for themselves lose nothing by what is shortest where all waits for all.
Assignment::LinkOf shortest(const Assignment& assignment, const Profile& profile,
                            const Fabric& fabric, Barrier barrier) {
    Assignment::LinkOf found = assignment.shortest(lower_bound(profile, fabric, barrier, 0, 1));
    if (barrier == Barrier::Layer) {
        const Assignment one_deadline(profile, fabric, Barrier::Update);
        Assignment::LinkOf other =
            one_deadline.shortest(lower_bound(profile, fabric, Barrier::Update, 0, 1));
        if (assignment.length(other) < assignment.length(found)) {
            return other;
        }
    }
    return found;
}

}  // namespace

Plan plan_edf(const Profile& profile, const Fabric& fabric, const Options& options) {
    const Assignment assignment(profile, fabric, options.barrier);
    const Assignment::LinkOf link_of = shortest(assignment, profile, fabric, options.barrier);
    Plan best = plan_assigned("edf", link_of, assignment, profile, fabric, options);
    if (seen_by_assignment(fabric)) {
        return best;
    }
    evaluate(best, profile, fabric);
    const auto offer = [&](Plan plan) {
        evaluate(plan, profile, fabric);
        if (plan.predicted.iteration < best.predicted.iteration) {
            best = std::move(plan);
            best.policy = "edf";
        }
    };
    offer(plan_none(profile, fabric, options));
    for (std::uint32_t j = 0; j < fabric.links.size(); ++j) {
        offer(plan_assigned("edf", Assignment::LinkOf(profile.size(), j), assignment, profile,
                            fabric, options));
    }
    return best;
}

}  // namespace deft::planner
