// SPDX-License-Identifier: Apache-2.0
#include "shim/control/lane_factors.h"

#include <algorithm>
#include <cstdio>

namespace deft::director {
namespace {

constexpr std::uint64_t kLeastMeasured = 8;  // of a lane's uses

void scale(planner::Spread& spread, double factor) {
    spread.median *= factor;
    spread.p10 *= factor;
    spread.p90 *= factor;
}

}  // namespace

std::vector<double> lane_factors(const std::vector<executor::LaneUse>& uses,
                                 const planner::Fabric& fabric) {
    struct Sum {
        double took = 0;
        double thought = 0;
        std::uint64_t measured = 0;
    };
    std::vector<Sum> sums(fabric.links.size());
    for (const executor::LaneUse& use : uses) {
        if (use.measured == 0 || use.lane >= sums.size()) {
            continue;
        }
        Sum& sum = sums[use.lane];
        sum.took += use.seconds / static_cast<double>(use.measured);
        sum.measured += use.measured;
        for (const std::uint64_t bytes : use.pieces) {
            sum.thought += fabric.links[use.lane].seconds(static_cast<double>(bytes));
        }
    }
    std::vector<double> factors;
    bool known = false;
    for (const Sum& sum : sums) {
        const bool good = sum.measured >= kLeastMeasured && sum.took > 0 && sum.thought > 0;
        if (good) {
            known = true;
        }
        factors.push_back(good ? sum.took / sum.thought : 1);
    }
    return known ? factors : std::vector<double>();
}

void scale_transfers(planner::Profile& profile, double factor) {
    for (planner::Bucket& bucket : profile.buckets) {
        scale(bucket.transfer, factor);
    }
}

void apply(const std::vector<double>& factors, planner::Profile& profile,
           std::vector<planner::Link>& networks) {
    if (factors.empty()) {
        return;
    }
    scale_transfers(profile, factors.front());
    for (std::size_t i = 0; i < networks.size() && i < factors.size(); ++i) {
        networks[i].cost.alpha *= factors[i];
        networks[i].cost.beta *= factors[i];
    }
}

double seconds_of_calls(const planner::Plan& plan, const planner::Fabric& fabric) {
    std::vector<double> busy(plan.bucket_bytes.size() * fabric.links.size(), 0);
    for (const planner::Transfer& part : plan.transfers) {
        if (part.bucket < plan.bucket_bytes.size() && part.link < fabric.links.size()) {
            busy[part.bucket * fabric.links.size() + part.link] +=
                fabric.links[part.link].seconds(static_cast<double>(part.bytes()));
        }
    }
    double seconds = 0;
    for (std::size_t i = 0; i < busy.size(); i += fabric.links.size()) {
        const auto begin = busy.begin() + static_cast<std::ptrdiff_t>(i);
        seconds +=
            *std::max_element(begin, begin + static_cast<std::ptrdiff_t>(fabric.links.size()));
    }
    return seconds;
}

std::string in_words(const std::vector<double>& factors, const planner::Plan& plan) {
    std::string words;
    for (std::size_t i = 0; i < factors.size(); ++i) {
        char text[64];
        std::snprintf(text, sizeof(text), "%s%.3f", i == 0 ? "" : ", ", factors[i]);
        words += text;
        words += i < plan.links.size() ? " (" + plan.links[i] + ")" : "";
    }
    return words;
}

}  // namespace deft::director
