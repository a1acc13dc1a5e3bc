// SPDX-License-Identifier: Apache-2.0
#include "planner/model/measured_profile.h"

#include <algorithm>

namespace deft::planner {

Profile measured_profile(const MeasuredJob& job) {
    Profile profile;
    profile.name = job.name;
    profile.source = "observe";
    profile.ranks = job.ranks;
    profile.iteration = job.iteration;
    // Time begins with the update and forward; then backward makes the gradients.
    std::vector<double> from_origin;
    for (const MeasuredBucket& measured : job.buckets) {
        Bucket bucket;
        bucket.name = "bucket " + std::to_string(profile.buckets.size());
        bucket.bytes = measured.bytes;
        bucket.ready_spread = measured.ready;
        bucket.transfer = measured.transfer;
        const double before = from_origin.empty() ? 0 : from_origin.back();
        from_origin.push_back(std::max(before, measured.ready.median));
        profile.buckets.push_back(std::move(bucket));
    }
    if (from_origin.empty()) {
        return profile;
    }
    double compute = from_origin.back();
    if (job.compute.measured()) {
        compute = std::max(compute, job.compute.median);
    }
    profile.forward = std::min(compute / 3, from_origin.front());
    profile.backward = compute - profile.forward;
    double before = 0;
    for (std::size_t i = 0; i < profile.buckets.size(); ++i) {
        Bucket& bucket = profile.buckets[i];
        bucket.ready = std::clamp(from_origin[i] - profile.forward, 0.0, profile.backward);
        // Forward of a bucket's layers takes the share its backward takes.
        bucket.forward =
            profile.backward > 0 ? profile.forward * (bucket.ready - before) / profile.backward : 0;
        before = bucket.ready;
    }
    return profile;
}

}  // namespace deft::planner
