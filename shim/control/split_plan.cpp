// SPDX-License-Identifier: Apache-2.0
#include "shim/control/split_plan.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "planner/policies/policy.h"
#include "shim/control/plan_choice.h"

namespace deft::director {
namespace {

using planner::Fabric;
using planner::Plan;
using planner::Profile;

// Of n ranks each sends (n - 1) parts of a reduce-scatter or an all-gather, and 2 (n - 1) / n of an
// all-reduce, which lanes are measured with.
constexpr double kAllReduceBytes = 2;

double transfer_of(const planner::Bucket& bucket, const planner::Link& own) {
    return bucket.transfer.measured() ? bucket.transfer.median
                                      : own.seconds(static_cast<double>(bucket.bytes));
}

// What lanes take for a byte of the plan's.
std::vector<planner::Link> as_used(std::vector<planner::Link> lanes, Series series, double parts) {
    for (planner::Link& link : lanes) {
        link.cost.beta *= series == Series::Shards ? parts / kAllReduceBytes : 1;
    }
    return lanes;
}

// The job's own network is as fast as its transfers were; where nothing was timed, as a lane on it.
// That lane was measured next to the transfers, which a sharded job makes all the time.
Fabric fabric_for(const Profile& profile, std::vector<planner::Link> lanes) {
    double seconds = 0;
    double bytes = 0;
    for (const planner::Bucket& bucket : profile.buckets) {
        if (bucket.transfer.measured()) {
            seconds += bucket.transfer.median;
            bytes += static_cast<double>(bucket.bytes);
        }
    }
    if (lanes.size() < 2) {
        return fabric_of(profile, lanes);
    }
    if (bytes > 0) {
        lanes.front().cost = {};
        lanes.front().cost.beta = std::max(seconds, 1e-9) / bytes;
    }
    Fabric fabric;
    fabric.name = "as measured";
    fabric.links = std::move(lanes);
    return fabric;
}

// Seconds of all calls: as they are, and cut as planned.
struct Times {
    double now = 0;
    double planned = 0;
};

Times times_of(const Plan& plan, const Profile& profile, const Fabric& fabric) {
    std::vector<double> planned(profile.size(), 0);
    for (const planner::Transfer& part : plan.transfers) {
        double& longest = planned[part.bucket];
        longest =
            std::max(longest, fabric.links[part.link].seconds(static_cast<double>(part.bytes())));
    }
    Times times;
    for (std::size_t i = 0; i < profile.size(); ++i) {
        const double now = transfer_of(profile.buckets[i], fabric.links.front());
        times.now += now;
        times.planned += std::min(planned[i], now);
    }
    return times;
}

double parts_of(Series series, const Profile& profile) {
    return series == Series::Shards ? std::max(profile.ranks, 1U) : 1;
}

}  // namespace

Fabric split_fabric(Series series, const Profile& profile,
                    const std::vector<planner::Link>& lanes) {
    return fabric_for(profile, as_used(lanes, series, parts_of(series, profile)));
}

Plan choose_split_plan(Series series, const Profile& profile,
                       const std::vector<planner::Link>& lanes, bool named, std::string& note) {
    const double parts = parts_of(series, profile);
    Fabric fabric = split_fabric(series, profile, lanes);
    planner::Options options;
    options.max_delay = 0;
    options.max_merge = 1;
    options.allow_fusion = false;
    options.predict = false;
    options.least_piece = std::max<std::uint64_t>(
        static_cast<std::uint64_t>(static_cast<double>(kLeastPart) / parts), options.grain);
    if (named) {
        options.least_piece = options.grain;
        for (planner::Link& link : fabric.links) {
            link.cost.alpha = 0;
        }
    }
    Plan plan = planner::plan_generations(profile, fabric, options, 1, 0);
    plan.policy = series == Series::Shards ? "shards" : "split";
    const Times times = times_of(plan, profile, fabric);
    planner::Prediction& predicted = plan.predicted;
    predicted.baseline = profile.iteration.median;
    predicted.iteration = std::max(predicted.baseline - (times.now - times.planned), times.planned);
    predicted.bound = predicted.iteration;
    const bool gains = named || predicted.iteration < predicted.baseline * (1 - options.noise);
    predicted.verdict =
        gains && fabric.links.size() > 1 ? planner::Verdict::Use : planner::Verdict::Keep;
    char text[160];
    std::snprintf(text, sizeof(text),
                  "split: %.2f ms predicted at best, %.2f ms as it is (transfers %.2f and %.2f ms)",
                  predicted.iteration * 1e3, predicted.baseline * 1e3, times.planned * 1e3,
                  times.now * 1e3);
    note = text;
    return plan;
}

}  // namespace deft::director
