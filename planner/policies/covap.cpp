// SPDX-License-Identifier: Apache-2.0
// Policy `covap`: Sun et al., COVAP (arXiv 2311.04499; public code
// github.com/Sun-Helloworld/COVAP). Coarse filter: pieces are numbered over all buckets, piece p
// goes out in iteration t iff (p + t) mod I = 0 with I = ceil(communication / computation); the
// others are kept as residuals (error feedback) and their update receives zeros. Sharding of large
// buckets as in the code: t = int(n / median - 0.3); 1 piece if t <= 0, else min(t + 1, I).
// Deviations: the interval follows the ratio as far as Options::max_merge, the operator's cap,
// goes: residuals are merged gradients. Pieces are contiguous, not strided (NCCL
// needs contiguous buffers). The residual coefficient kappa(t) is the executor's business (see
// covap_coefficient in convergence.h).
#include <algorithm>
#include <cmath>

#include "planner/policies/builder.h"
#include "planner/policies/policy.h"

namespace deft::planner {

Plan plan_covap(const Profile& profile, const Fabric& fabric, const Options& options) {
    const std::vector<double> costs = bucket_costs(profile, fabric.links[0]);
    double total = 0;
    for (const double cost : costs) {
        total += cost;
    }
    std::uint32_t interval = options.covap_interval;
    if (interval == 0) {
        // A hair above a whole number is rounding, not a need for one more interval.
        const double ratio = profile.compute() > 0 ? total / profile.compute() : 1;
        interval = static_cast<std::uint32_t>(
            std::clamp(std::ceil(ratio - 1e-9), 1.0, static_cast<double>(options.max_period)));
    }
    // Residuals are merged gradients: the operator's cap holds for them.
    interval = std::min(interval, std::max(1U, options.max_merge));
    std::vector<std::uint64_t> sizes;
    for (const Bucket& bucket : profile.buckets) {
        sizes.push_back(bucket.bytes);
    }
    std::nth_element(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2),
                     sizes.end());
    const double median = static_cast<double>(sizes[sizes.size() / 2]);

    struct Piece {
        std::uint32_t bucket;
        std::uint64_t begin, end;
    };
    std::vector<Piece> pieces;
    for (std::uint32_t i = 0; i < profile.size(); ++i) {
        const std::uint64_t bytes = profile.buckets[i].bytes;
        const double excess = static_cast<double>(bytes) / median - 0.3;
        const double count = excess < 1 ? 1 : std::min(std::floor(excess) + 1, double(interval));
        const auto at = cuts(bytes, static_cast<std::uint64_t>(count), options.grain);
        for (std::size_t k = 0; k + 1 < at.size(); ++k) {
            pieces.push_back({i, at[k], at[k + 1]});
        }
    }
    PlanBuilder builder("covap", Barrier::Update, interval);
    for (std::uint32_t t = 0; t < interval; ++t) {
        const Generation kept{
            static_cast<std::int32_t>(t) - static_cast<std::int32_t>(interval) + 1, interval};
        for (std::uint32_t p = 0; p < pieces.size(); ++p) {
            if ((p + t) % interval != 0) {
                continue;
            }
            const Piece& piece = pieces[p];
            Transfer& transfer = builder.add(piece.bucket, piece.begin, piece.end, 0);
            transfer.iteration = t;
            transfer.generation = kept;
            builder.deliver(t, piece.bucket, piece.begin, piece.end, kept);
        }
    }
    return builder.finish(profile, fabric, options);
}

}  // namespace deft::planner
