// SPDX-License-Identifier: Apache-2.0
// A measured job that plans are chosen for, and networks beside its own.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "planner/model/measured_profile.h"
#include "shim/control/plan_choice.h"
#include "shim/settings/settings.h"

namespace deft::director::test {

inline constexpr double kCompute = 0.1;             // seconds
inline constexpr std::uint64_t kBytes = 4'000'000;  // of each of eight buckets

// Eight buckets whose transfers take `coverage` times the compute.
inline planner::Profile job_of(double coverage) {
    planner::MeasuredJob job;
    job.ranks = 2;
    const auto exactly = [](double seconds) {
        return planner::Spread{seconds, seconds, seconds, 50};
    };
    for (int i = 0; i < 8; ++i) {
        job.buckets.push_back({kBytes, exactly(kCompute * (0.4 + 0.6 * (i + 1) / 8)),
                               exactly(kCompute * coverage / 8)});
    }
    job.compute = exactly(kCompute);
    job.iteration = exactly(kCompute * (1 + coverage));
    return planner::measured_profile(job);
}

// A network that is `times` as fast as the job's own.
inline planner::Link network(double coverage, double times) {
    planner::Link link;
    link.name = "other";
    link.cost.beta = kCompute * coverage / 8 / kBytes / times;
    return link;
}

inline planner::Plan plan_for(double coverage, const Settings& settings,
                              std::vector<planner::Link> lanes = {}) {
    if (!lanes.empty()) {
        lanes.insert(lanes.begin(), network(coverage, 1));
    }
    std::string note;
    return choose_plan(job_of(coverage), lanes, settings, note);
}

inline std::set<std::uint32_t> links_of_bucket(const planner::Plan& plan, std::uint32_t bucket) {
    std::set<std::uint32_t> links;
    for (const planner::Transfer& transfer : plan.transfers) {
        if (transfer.bucket == bucket) {
            links.insert(transfer.link);
        }
    }
    return links;
}

// A job that seems to compute for a tenth of the time it does.
inline planner::Profile guessed(const planner::Profile& job) {
    planner::Profile guess = job;
    guess.forward /= 10;
    guess.backward /= 10;
    for (planner::Bucket& bucket : guess.buckets) {
        bucket.ready /= 10;
        bucket.forward /= 10;
    }
    return guess;
}

// Neither costs progress, but for what is less late or has more updates at equal time.
inline Settings late_or_merged() {
    Settings settings;
    settings.mode = ShimMode::Deft;
    settings.max_delay = 1;
    settings.max_merge = 2;
    settings.noise_scale = 1e9;
    settings.age_price = 0;
    return settings;
}

}  // namespace deft::director::test
