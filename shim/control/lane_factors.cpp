// SPDX-License-Identifier: Apache-2.0
#include "shim/control/lane_factors.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

namespace deft::director {
namespace {

constexpr std::uint64_t kLeastMeasured = 8;  // of a lane's uses
constexpr std::size_t kQuietPart = 2;        // of the calls that were measured, one in so many
// Of a difference between lanes that was measured in a dozen iterations. It is as uncertain as what
// the plan was made with.
constexpr double kBelief = 0.5;

void scale(planner::Spread& spread, double factor) {
    spread.median *= factor;
    spread.p10 *= factor;
    spread.p90 *= factor;
}

double thought_for(const executor::LaneUse& use, const planner::Fabric& fabric) {
    double seconds = 0;
    for (const std::uint64_t bytes : use.pieces) {
        seconds += fabric.links[use.lane].seconds(static_cast<double>(bytes));
    }
    return seconds;
}

// A call of which several lanes carried parts. In parts of the time that its longest part was
// thought to take:
struct CutCall {
    double took = 0;             // its longest part
    std::vector<double> excess;  // by part, as `uses`: what it took longer than thought
    std::span<const executor::LaneUse> uses;
};

// Of an action's calls those that took least.
void keep_quiet(std::vector<CutCall>& calls) {
    std::stable_sort(calls.begin(), calls.end(),
                     [](const CutCall& a, const CutCall& b) { return a.took < b.took; });
    calls.resize((calls.size() + kQuietPart - 1) / kQuietPart);
}

// Half of the measured calls of one action.
void add_cut_calls(std::vector<CutCall>& calls, std::span<const executor::LaneUse> uses,
                   const planner::Fabric& fabric) {
    std::size_t measured = uses.front().each.size();
    double longest = 0;
    std::vector<CutCall> of_action;
    for (const executor::LaneUse& use : uses) {
        if (use.lane >= fabric.links.size()) {
            return;
        }
        measured = std::min(measured, use.each.size());
        longest = std::max(longest, thought_for(use, fabric));
    }
    if (uses.size() < 2 || longest <= 0) {
        return;
    }
    for (std::size_t n = 0; n < measured; ++n) {
        CutCall call;
        call.uses = uses;
        for (const executor::LaneUse& use : uses) {
            const auto took = static_cast<double>(use.each[n]);
            call.took = std::max(call.took, took / longest);
            call.excess.push_back((took - thought_for(use, fabric)) / longest);
        }
        of_action.push_back(std::move(call));
    }
    keep_quiet(of_action);
    calls.insert(calls.end(), std::make_move_iterator(of_action.begin()),
                 std::make_move_iterator(of_action.end()));
}

std::vector<CutCall> cut_calls(const std::vector<executor::LaneUse>& uses,
                               const planner::Fabric& fabric) {
    std::vector<CutCall> calls;
    for (auto begin = uses.begin(); begin != uses.end();) {
        const auto end = std::find_if(begin, uses.end(), [&](const executor::LaneUse& use) {
            return use.action != begin->action;
        });
        add_cut_calls(calls, {begin, end}, fabric);
        begin = end;
    }
    return calls;
}

double median(std::vector<double>& values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

}  // namespace

std::vector<double> cut_factors(const std::vector<executor::LaneUse>& uses,
                                const planner::Fabric& fabric) {
    const std::vector<CutCall> calls = cut_calls(uses, fabric);
    if (calls.size() < kLeastMeasured) {
        return {};
    }
    std::vector<std::vector<double>> apart(fabric.links.size());  // by lane: than the call's mean
    for (const CutCall& call : calls) {
        const double mean = std::accumulate(call.excess.begin(), call.excess.end(), 0.0) /
                            static_cast<double>(call.excess.size());
        for (std::size_t i = 0; i < call.excess.size(); ++i) {
            apart[call.uses[i].lane].push_back(call.excess[i] - mean);
        }
    }
    std::vector<double> factors;
    double least = std::numeric_limits<double>::infinity();
    for (std::vector<double>& lane : apart) {
        factors.push_back(lane.empty() ? 0 : median(lane));
        least = lane.empty() ? least : std::min(least, factors.back());
    }
    for (std::size_t lane = 0; lane < factors.size(); ++lane) {
        factors[lane] = apart[lane].empty() ? 1 : 1 + kBelief * (factors[lane] - least);
    }
    return factors;
}

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
        sum.thought += thought_for(use, fabric);
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
