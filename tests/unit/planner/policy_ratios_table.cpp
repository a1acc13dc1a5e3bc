// SPDX-License-Identifier: Apache-2.0
// Prints perf/results/policy-ratios.md: every policy beside exhaustive search over small cases.
#include <cstdio>

#include "tests/unit/planner/policy_ratios.h"

int main() {
    std::printf(
        "<!-- SPDX-License-Identifier: Apache-2.0 -->\n"
        "# Policies beside exhaustive search\n\n"
        "Written by `build/tests/unit/planner/policy-ratios`. Each line divides a policy's time "
        "(for\n"
        "`fewest-links` its number of links, for `deft` the reference's updates by its own) by "
        "that "
        "of\n"
        "the reference, over drawn jobs of 3 to 10 buckets with fixed seeds. 1 is the optimum of "
        "what\n"
        "the policy searches; the last column counts the cases within 0.01 %% of it.\n"
        "`tests/unit/planner/test_policy_ratios.cpp` holds the figures to bars.\n\n"
        "| policy | reference | cases | mean | largest | equal |\n|---|---|---|---|---|---|\n");
    for (const auto& one : deft::planner::testing::policy_ratios()) {
        std::printf("| %s | %s | %zu | %.4f | %.4f | %zu |\n", one.policy.c_str(),
                    one.reference.c_str(), one.cases, one.mean, one.most, one.equal);
    }
    std::printf(
        "\nThe second phase of `us-byte` is optimal. `edf` is nowhere longer than first-fit "
        "decreasing,\n"
        "here or in 2,000 jobs over links of which one is faster for small messages and another "
        "for\n"
        "large ones (`tests/unit/planner/test_assignment.cpp`). `fewest-links` uses no link more "
        "than\n"
        "needed in any of these cases; its paper claims 4.3 %%. `mg-wfbp` is the rule of its "
        "authors'\n"
        "public code, which is not optimal where the update waits for all; ByteScheduler's "
        "partitions\n"
        "are long against these small jobs, and its own start-ups count here: tuned, it is "
        "nearer.\n"
        "Where every order of messages is tried, buckets are cut in thirds at most. `deft` takes "
        "its\n"
        "windows one after the other: an implementation of its own, with every packing tried, "
        "gets\n"
        "the same updates in 91 of 100.\n");
}
