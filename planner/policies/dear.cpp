// SPDX-License-Identifier: Apache-2.0
// Policy `dear`: Zhang et al., DeAR (ICDCS 2023, arXiv 2302.12445). An all-reduce is a
// reduce-scatter, sent first come first served under backward, and an all-gather, sent in forward
// order under the next forward, each needed by its own layer only; in between everything
// synchronises. Neighbours are fused up to a buffer size, which is tuned. Their tuner tries ten
// sizes from 1 to 256 MB in the running job (Bayesian optimisation); here every fourth root of two
// in that range is tried on the profile, and no fusion at all.
// Deviations: Options::fusion_bytes fixes the size (their default before tuning: 25 MB), and
// Options::allow_fusion forbids it. A reduce-scatter and an all-gather take turns on the link, as
// both directions of a ring carry either of them.
#include <algorithm>
#include <cmath>

#include "planner/policies/builder.h"
#include "planner/policies/policy.h"

namespace deft::planner {
namespace {

// Bucket i travels with bucket i - 1.
using Joins = std::vector<bool>;

Joins joins_below(const Profile& profile, std::uint64_t fusion_bytes) {
    Joins joins(profile.size(), false);
    std::uint64_t held = profile.buckets[0].bytes;
    for (std::size_t i = 1; i < profile.size(); ++i) {
        joins[i] = held + profile.buckets[i].bytes <= fusion_bytes;
        held = (joins[i] ? held : 0) + profile.buckets[i].bytes;
    }
    return joins;
}

// Seconds per iteration on the one link, nothing else in the way.
double seconds(const Profile& profile, const Link& link, const Joins& joins) {
    const std::size_t n = profile.size();
    std::vector<double> halves(n, 0.0);  // by first bucket of a message
    double scattered = 0;
    for (std::size_t i = 0; i < n;) {
        std::size_t end = i;
        double bytes = 0;
        do {
            bytes += static_cast<double>(profile.buckets[end].bytes);
            ++end;
        } while (end < n && joins[end]);
        halves[i] = link.seconds(bytes, 0.5);
        scattered = std::max(scattered, profile.buckets[end - 1].ready) + halves[i];
        i = end;
    }
    double gathered = std::max(scattered, profile.backward);
    double compute = profile.backward;
    double owned = 0;
    for (std::size_t end = n; end > 0;) {
        std::size_t i = end - 1;
        while (joins[i]) {
            --i;
        }
        gathered += halves[i];
        compute = std::max(compute, gathered);
        for (std::size_t k = i; k < end; ++k) {
            compute += profile.buckets[k].forward;
            owned += profile.buckets[k].forward;
        }
        end = i;
    }
    return compute + profile.forward - owned;
}

Joins tuned(const Profile& profile, const Link& link) {
    Joins best = joins_below(profile, 0);
    double least = seconds(profile, link, best);
    for (int quarter = 0; quarter <= 32; ++quarter) {
        const auto bytes = static_cast<std::uint64_t>(0x1p20 * std::pow(2, 0.25 * quarter));
        Joins joins = joins_below(profile, bytes);
        const double takes = seconds(profile, link, joins);
        if (takes < least * (1 - 1e-9)) {
            least = takes;
            best = std::move(joins);
        }
    }
    return best;
}

}  // namespace

Plan plan_dear(const Profile& profile, const Fabric& fabric, const Options& options) {
    const std::uint32_t n = static_cast<std::uint32_t>(profile.size());
    const Joins joins = !options.allow_fusion      ? Joins(n, false)
                        : options.fusion_bytes > 0 ? joins_below(profile, options.fusion_bytes)
                                                   : tuned(profile, fabric.links[0]);
    PlanBuilder builder("dear", Barrier::Layer);
    for (std::uint32_t i = 0; i < n; ++i) {
        if (joins[i]) {
            builder.fuse();
        }
        builder.add(i, 0, profile.buckets[i].bytes, 0).operation = Operation::ReduceScatter;
    }
    for (std::uint32_t i = n; i-- > 0;) {
        if (i + 1 < n && joins[i + 1]) {
            builder.fuse();
        }
        Transfer& t = builder.add(i, 0, profile.buckets[i].bytes, 0);
        t.operation = Operation::AllGather;
        t.stage = Stage::Forward;
    }
    return builder.finish(profile, fabric, options);
}

}  // namespace deft::planner
