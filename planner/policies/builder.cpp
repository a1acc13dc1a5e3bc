// SPDX-License-Identifier: Apache-2.0
#include "planner/policies/builder.h"

#include <algorithm>

#include "planner/simulator/evaluate.h"

namespace deft::planner {

std::vector<double> bucket_costs(const Profile& profile, const Link& link) {
    std::vector<double> costs;
    costs.reserve(profile.size());
    for (const Bucket& bucket : profile.buckets) {
        costs.push_back(link.seconds(static_cast<double>(bucket.bytes)));
    }
    return costs;
}

std::vector<std::uint32_t> by_speed(const Fabric& fabric, double bytes) {
    std::vector<std::uint32_t> order(fabric.links.size());
    for (std::uint32_t j = 0; j < order.size(); ++j) {
        order[j] = j;
    }
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
        return fabric.links[a].seconds(bytes) < fabric.links[b].seconds(bytes);
    });
    return order;
}

bool apart(const Fabric& fabric) {
    return fabric.groups.empty() &&
           std::all_of(fabric.links.begin(), fabric.links.end(), [](const Link& link) {
               return link.compute_slowdown == 0 && link.overlap_penalty == 0;
           });
}

Fabric only(const std::vector<std::uint32_t>& links, const Fabric& fabric) {
    Fabric few = fabric;
    few.links.clear();
    for (const std::uint32_t j : links) {
        few.links.push_back(fabric.links[j]);
    }
    return few;
}

PlanBuilder::PlanBuilder(const char* policy, Barrier barrier, std::uint32_t period) {
    plan_.policy = policy;
    plan_.barrier = barrier;
    plan_.period = period;
}

Transfer& PlanBuilder::add(std::uint32_t bucket, std::uint64_t begin, std::uint64_t end,
                           std::uint32_t link) {
    if (!fuse_) {
        ++messages_;
    }
    fuse_ = false;
    Transfer t;
    t.bucket = bucket;
    t.begin = begin;
    t.end = end;
    t.link = link;
    t.message = messages_ - 1;
    plan_.transfers.push_back(t);
    return plan_.transfers.back();
}

void PlanBuilder::deliver(std::uint32_t iteration, std::uint32_t bucket, std::uint64_t begin,
                          std::uint64_t end, Generation generation) {
    plan_.deliveries.push_back({iteration, bucket, begin, end, generation});
}

Plan PlanBuilder::finish(const Profile& profile, const Fabric& fabric, const Options& options) {
    if (plan_.deliveries.empty()) {
        plan_.deliveries = synchronous_deliveries(profile);
    }
    options.predict ? evaluate(plan_, profile, fabric) : arrange(plan_, profile, fabric);
    return std::move(plan_);
}

std::vector<std::uint64_t> cuts(std::uint64_t bytes, std::uint64_t count, std::uint64_t grain) {
    std::vector<std::uint64_t> at{0};
    for (std::uint64_t i = 1; i < count; ++i) {
        const auto exact = static_cast<std::uint64_t>(
            static_cast<double>(bytes) * static_cast<double>(i) / static_cast<double>(count));
        const std::uint64_t cut = exact / grain * grain;
        if (cut > at.back() && cut < bytes) {
            at.push_back(cut);
        }
    }
    at.push_back(bytes);
    return at;
}

}  // namespace deft::planner
