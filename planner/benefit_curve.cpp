// SPDX-License-Identifier: Apache-2.0
#include "planner/benefit_curve.h"

#include <algorithm>
#include <cmath>

#include "planner/modes.h"
#include "planner/policies/policy.h"
#include "planner/solver/bounds.h"

namespace deft::planner {
namespace {

double seconds_on(const Profile& profile, const Link& link) {
    double total = 0;
    for (const Bucket& bucket : profile.buckets) {
        total += link.seconds(static_cast<double>(bucket.bytes));
    }
    return total;
}

Profile slowed(Profile profile, double factor) {
    profile.forward *= factor;
    profile.backward *= factor;
    for (Bucket& bucket : profile.buckets) {
        bucket.forward *= factor;
        bucket.ready *= factor;
    }
    // Else rounding may leave a gradient that exists after backward.
    for (Bucket& bucket : profile.buckets) {
        bucket.ready = std::min(bucket.ready, profile.backward);
    }
    return profile;
}

}  // namespace

BenefitBounds benefit_bounds(const Profile& profile) {
    BenefitBounds bounds;
    bounds.over_overlap = profile.compute() > 0 ? 1 + profile.forward / profile.compute() : 1;
    return bounds;
}

BenefitPoint benefit_at(const Profile& profile, const SeenLinks& links, const Options& options) {
    const auto as_it_is = [&](const Fabric& fabric) {
        return plan_none(profile, fabric, options).predicted.iteration;
    };
    BenefitPoint point;
    const double total = seconds_on(profile, links.first.links.front());
    point.ratio = total > 0 ? profile.compute() / total : INFINITY;
    point.compute = profile.compute();
    point.no_overlap = profile.compute() + total;
    point.as_is = as_it_is(links.first);
    point.striped = std::min(point.as_is, as_it_is(links.all));
    point.layered = std::min(point.striped, layerwise_time(profile, links.all, options).seconds);
    ModeTime least{point.layered, 1};
    const auto offer = [&](const ModeTime& one) {
        least = one.seconds < least.seconds ? one : least;
    };
    if (options.max_delay > 0) {
        offer(late_time(profile, links.all, options));
    }
    point.late = least.seconds;
    point.late_progress = least.progress;
    if (options.max_merge > 1) {
        offer(merged_time(profile, links.all, options));
    }
    point.merged = least.seconds;
    point.merged_progress = least.progress;
    point.bound = lower_bound(profile, links.given, Barrier::Layer, options.max_delay,
                              std::max(1U, options.max_merge));
    return point;
}

std::vector<BenefitPoint> benefit_curve(const Profile& profile, const SeenLinks& links,
                                        const Options& options, std::size_t count) {
    constexpr double kOctaves = 8;  // from 1/16 to 16
    const double total = seconds_on(profile, links.first.links.front());
    std::vector<BenefitPoint> curve;
    const bool drawn = total > 0 && profile.compute() > 0;  // else the ratio is always the same
    for (std::size_t k = 0; drawn && k < count; ++k) {
        const double part = static_cast<double>(k) / static_cast<double>(count - 1);
        const double ratio = std::pow(2, kOctaves * (part - 0.5));
        // Slower compute beside the same links, and all of it in smaller units of time.
        const double slower = ratio * total / profile.compute();
        BenefitPoint point = benefit_at(slowed(profile, slower), links, options);
        for (double BenefitPoint::*seconds :
             {&BenefitPoint::no_overlap, &BenefitPoint::as_is, &BenefitPoint::striped,
              &BenefitPoint::layered, &BenefitPoint::late, &BenefitPoint::merged,
              &BenefitPoint::bound, &BenefitPoint::compute}) {
            point.*seconds /= slower;
        }
        curve.push_back(point);
    }
    return curve;
}

}  // namespace deft::planner
