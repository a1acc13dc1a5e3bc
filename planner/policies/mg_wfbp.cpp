// SPDX-License-Identifier: Apache-2.0
// Policy `mg-wfbp`: Shi et al., MG-WFBP (INFOCOM 2019, TPDS 2021). A gradient waits for the next
// one and travels with it where that saves more start-up than it costs delay.
// The rule is the one of the authors' public code (dear_pytorch, mgwfbp/dopt.py), O(L^2).
// Deviations: buckets stand for layers; the start-up cost is what a second message costs on this
// link (latency and per-message cost) unless Options::startup_seconds gives a fitted alpha; the
// update waits for all, as theirs.
#include <algorithm>

#include "planner/policies/builder.h"
#include "planner/policies/policy.h"

namespace deft::planner {

Plan plan_mg_wfbp(const Profile& profile, const Fabric& fabric, const Options& options) {
    constexpr double kTinyBytes = 8192 * 4;  // "s_l < 8192 elements: merge anyway"
    const Link& link = fabric.links[0];
    const double startup = options.startup_seconds > 0 ? options.startup_seconds : link.latency();
    const std::size_t n = profile.size();
    // Bucket i is merged into bucket i + 1 (which is ready later) if merged[i].
    std::vector<double> bytes(n);
    std::vector<bool> merged(n, false);
    for (std::size_t i = 0; i < n; ++i) {
        bytes[i] = static_cast<double>(profile.buckets[i].bytes);
    }
    double free_at = 0;  // when the link has sent everything in front of bucket i
    for (std::size_t i = 0; i + 1 < n; ++i) {
        const double begins = std::max(free_at, profile.buckets[i].ready);
        const double ready = profile.buckets[i + 1].ready;
        const double takes = startup + link.seconds(bytes[i]) - link.latency();
        const bool saves = ready < begins + takes && (begins > ready || ready - begins < startup);
        if (saves || bytes[i] < kTinyBytes) {
            merged[i] = true;
            bytes[i + 1] += bytes[i];
        } else {
            free_at = begins + takes;
        }
    }
    PlanBuilder builder("mg-wfbp", Barrier::Update);
    for (std::uint32_t i = 0; i < n; ++i) {
        if (i > 0 && merged[i - 1]) {
            builder.fuse();
        }
        builder.add(i, 0, profile.buckets[i].bytes, 0);
    }
    return builder.finish(profile, fabric, options);
}

}  // namespace deft::planner
