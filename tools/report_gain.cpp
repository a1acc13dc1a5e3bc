// SPDX-License-Identifier: Apache-2.0
#include "tools/report_gain.h"

#include <algorithm>
#include <cmath>

namespace deft::tools {
namespace {

// The plan that says most of the job: in force, with a time before it; then any that was made.
int weight(const ObservedPlan& plan) {
    const int running = plan.state == "running" ? 4 : 0;
    const int timed = plan.before_ms.value_or(0) > 0 ? 2 : 0;
    return running + timed + (plan.policy.empty() ? 0 : 1);
}

bool same_buckets(const ObserveFile& a, const ObserveFile& b) {
    return std::equal(a.buckets.begin(), a.buckets.end(), b.buckets.begin(), b.buckets.end(),
                      [](const ObservedBucket& x, const ObservedBucket& y) {
                          return x.bytes == y.bytes && x.position == y.position;
                      });
}

}  // namespace

std::optional<Estimate> estimate(const Quantiles& times) {
    if (!times.median) {
        return std::nullopt;
    }
    constexpr double kDecilesApart = 2.563;  // standard deviations between p10 and p90
    constexpr double kOfMedian = 1.2533;     // its standard error over that of the mean
    constexpr std::int64_t kKept = 512;      // measurements (docs/observe.md)
    Estimate result{*times.median, 0};
    if (times.p10 && times.p90 && times.n > 1) {
        const double deviation = (*times.p90 - *times.p10) / kDecilesApart;
        const auto n = static_cast<double>(std::min(times.n, kKept));
        result.half = 1.96 * kOfMedian * std::max(deviation, 0.0) / std::sqrt(n);
    }
    return result;
}

PlanGain gain_of(const RunReport& run) {
    PlanGain gain;
    const ObserveFile* of = nullptr;
    for (const ObserveFile& file : run.ranks) {
        for (const ObservedPlan& plan : file.plans) {
            if (gain.plan == nullptr || weight(plan) > weight(*gain.plan)) {
                gain.plan = &plan;
                gain.rank = file.rank;
                of = &file;
            }
        }
    }
    if (gain.plan == nullptr) {
        return gain;
    }
    // Of several plans nobody knows whose times a rank's are.
    if (gain.plan->state == "running" && of->stable && of->plans.size() == 1) {
        gain.now = estimate(of->time_ms);
    }
    Quantiles before = gain.plan->before;
    before.median = gain.plan->before_ms.value_or(0) > 0 ? gain.plan->before_ms : std::nullopt;
    gain.before = estimate(before);
    if (gain.now && gain.before) {
        const double ratio = gain.now->middle / gain.before->middle;
        const double now = gain.now->half / std::max(gain.now->middle, 1e-9);
        const double then = gain.before->half / gain.before->middle;
        gain.change = Estimate{ratio - 1, ratio * std::hypot(now, then)};
    }
    return gain;
}

std::vector<Latecomer> latecomers(const RunReport& run) {
    std::vector<const ObserveFile*> alike;
    for (const ObserveFile& file : run.ranks) {
        if (file.stable && (alike.empty() || same_buckets(*alike.front(), file))) {
            alike.push_back(&file);
        }
    }
    std::vector<Latecomer> list;
    for (std::size_t i = 0; alike.size() > 1 && i < alike.front()->buckets.size(); ++i) {
        std::vector<std::pair<double, std::int64_t>> ready;
        for (const ObserveFile* file : alike) {
            if (file->buckets[i].ready_ms.median) {
                ready.emplace_back(*file->buckets[i].ready_ms.median, file->rank);
            }
        }
        if (ready.size() > 1) {
            std::sort(ready.begin(), ready.end());
            const double middle = ready[(ready.size() - 1) / 2].first;
            list.push_back({i, ready.back().second, ready.back().first - middle});
        }
    }
    std::stable_sort(list.begin(), list.end(),
                     [](const Latecomer& a, const Latecomer& b) { return a.late_ms > b.late_ms; });
    return list;
}

}  // namespace deft::tools
