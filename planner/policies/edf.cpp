// SPDX-License-Identifier: Apache-2.0
// Policy `edf`: deadline first, after the heuristic of arXiv 1604.08335 (deadline-constrained bags
// of tasks in a hybrid cloud): the current machine takes the task nearest to its deadline until it
// can finish no further task in time, then the machine of best marginal benefit is opened.
// Mapping: machine -> link, task -> bucket with its release time, deadline -> the moment compute
// needs it in an iteration of the target length. "Cannot finish in time" leaves it to the next
// link. Deviations: the shortest target length for which this works is found by bisection; rented
// cost is the speed of a link alone. Where nothing works (never: one link and a long iteration
// always do) the job stays as it is.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "planner/policies/builder.h"
#include "planner/policies/policy.h"
#include "planner/solver/bounds.h"

namespace deft::planner {
namespace {

struct Assigned {
    std::uint32_t bucket;
    std::uint32_t link;
    double start;
};

class DeadlineFirst {
public:
    DeadlineFirst(const Profile& profile, const Fabric& fabric, const Options& options)
        : profile_(profile), n_(static_cast<std::uint32_t>(profile.size())) {
        slack_.assign(n_, profile.forward);
        if (options.barrier == Barrier::Layer) {
            slack_ = profile.tails();
        }
        for (const Link& link : fabric.links) {
            costs_.push_back(bucket_costs(profile, link));
        }
        const double mean = static_cast<double>(profile.bytes()) / std::max(1U, n_);
        links_ = by_speed(fabric, mean);
    }

    // False if some bucket misses the deadline of an iteration of this length.
    bool fits(double length, std::vector<Assigned>* out = nullptr) const {
        std::vector<std::uint32_t> left(n_);
        std::iota(left.begin(), left.end(), 0U);
        std::vector<std::uint32_t> late;     // for the next link: what is late once stays late here
        std::vector<std::uint32_t> arrived;  // a heap, nearest deadline first
        const auto later = [&](std::uint32_t a, std::uint32_t b) {
            return slack_[a] != slack_[b] ? slack_[a] < slack_[b] : a > b;
        };
        for (const std::uint32_t j : links_) {
            double now = 0;
            std::size_t next = 0;  // buckets stand in the order of their ready times
            const auto in_time = [&](std::uint32_t i) {
                // Rounding must not decide whether the optimum itself is feasible.
                return std::max(now, profile_.buckets[i].ready) + costs_[j][i] <=
                       (length - slack_[i]) * (1 + 1e-12);
            };
            late.clear();
            for (;;) {
                while (next < left.size() &&
                       (arrived.empty() || profile_.buckets[left[next]].ready <= now)) {
                    const std::uint32_t i = left[next++];
                    if (!in_time(i)) {
                        late.push_back(i);
                        continue;
                    }
                    now = std::max(now, arrived.empty() ? profile_.buckets[i].ready : now);
                    arrived.push_back(i);
                    std::push_heap(arrived.begin(), arrived.end(), later);
                }
                if (arrived.empty()) {
                    break;
                }
                std::pop_heap(arrived.begin(), arrived.end(), later);
                const std::uint32_t bucket = arrived.back();
                arrived.pop_back();
                if (!in_time(bucket)) {
                    late.push_back(bucket);
                    continue;
                }
                if (out != nullptr) {
                    out->push_back({bucket, j, now});
                }
                now += costs_[j][bucket];
            }
            std::sort(late.begin(), late.end());
            left.swap(late);
        }
        return left.empty();
    }

private:
    const Profile& profile_;
    const std::uint32_t n_;
    std::vector<double> slack_;  // compute left when the bucket is needed
    std::vector<std::vector<double>> costs_;
    std::vector<std::uint32_t> links_;
};

}  // namespace

Plan plan_edf(const Profile& profile, const Fabric& fabric, const Options& options) {
    const DeadlineFirst heuristic(profile, fabric, options);
    double lo = lower_bound(profile, fabric, options.barrier, 0, 1);
    double hi = lo;
    for (int i = 0; i < 60 && !heuristic.fits(hi); ++i) {
        lo = hi;
        hi = hi * 1.5 + 1e-9;
    }
    for (int i = 0; i < 40 && hi - lo > 1e-6 * hi; ++i) {
        const double mid = 0.5 * (lo + hi);
        (heuristic.fits(mid) ? hi : lo) = mid;
    }
    std::vector<Assigned> assigned;
    const bool found = heuristic.fits(hi, &assigned);
    std::stable_sort(assigned.begin(), assigned.end(),
                     [](const Assigned& a, const Assigned& b) { return a.start < b.start; });
    PlanBuilder builder("edf", options.barrier);
    for (const Assigned& a : assigned) {
        builder.add(a.bucket, 0, profile.buckets[a.bucket].bytes, a.link);
    }
    if (!found) {
        Plan plan = plan_none(profile, fabric, options);
        plan.policy = "edf";
        return plan;
    }
    return builder.finish(profile, fabric, options);
}

}  // namespace deft::planner
