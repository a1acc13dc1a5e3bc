// SPDX-License-Identifier: Apache-2.0
#include "planner/policies/spreading.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "planner/model/water_filling.h"
#include "planner/policies/builder.h"
#include "planner/policies/policy.h"

namespace deft::planner {

const std::vector<std::uint64_t>& Shares::of(std::uint64_t bytes) {
    const auto [at, added] = known_.try_emplace(bytes);
    if (added) {
        at->second = split_bytes(water_fill(fabric_, static_cast<double>(bytes)), bytes,
                                 options_.grain, options_.least_piece);
    }
    return at->second;
}

Plan spread(const Plan& plan, const Profile& profile, const Fabric& fabric, const Options& options,
            Shares& cut) {
    PlanBuilder builder(plan.policy.c_str(), plan.barrier, plan.period);
    for (const Transfer& t : plan.transfers) {
        const auto& shares = cut.of(t.bytes());
        std::uint64_t at = t.begin;
        for (std::uint32_t j = 0; j < shares.size(); ++j) {
            if (shares[j] == 0) {
                continue;
            }
            Transfer& part = builder.add(t.bucket, at, at + shares[j], j);
            part.operation = t.operation;
            part.iteration = t.iteration;
            part.stage = t.stage;
            part.generation = t.generation;
            at += shares[j];
        }
    }
    builder.plan().deliveries = plan.deliveries;
    return builder.finish(profile, fabric, options);
}

std::vector<std::uint32_t> largest_first(const Profile& profile, const Fabric& fabric) {
    const std::uint32_t n = static_cast<std::uint32_t>(profile.size());
    std::vector<std::uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
        return profile.buckets[a].bytes > profile.buckets[b].bytes;
    });
    std::vector<std::uint32_t> link(n, 0);
    std::vector<double> busy(fabric.links.size(), 0);
    for (const std::uint32_t i : order) {
        double best = INFINITY;
        for (std::uint32_t j = 0; j < busy.size(); ++j) {
            const double end =
                busy[j] + fabric.links[j].seconds(static_cast<double>(profile.buckets[i].bytes));
            if (end < best) {
                best = end;
                link[i] = j;
            }
        }
        busy[link[i]] = best;
    }
    return link;
}

Plan generations(const Profile& profile, const Fabric& fabric, const Options& options,
                 const Frequency& frequency, std::uint32_t delay,
                 const std::vector<std::uint32_t>& whole, Shares& cut) {
    PlanBuilder builder("generations", Barrier::Update, frequency.iterations);
    for (std::uint32_t update = 0; update < frequency.updates; ++update) {
        const std::uint32_t first = update * frequency.iterations / frequency.updates;
        const std::uint32_t end = (update + 1) * frequency.iterations / frequency.updates;
        const std::uint32_t merge = end - first;
        const std::uint32_t at = (end - 1 + delay) % frequency.iterations;
        const Generation delivered{
            static_cast<std::int32_t>(at) - static_cast<std::int32_t>(delay + merge - 1), merge};
        for (std::uint32_t i = 0; i < profile.size(); ++i) {
            const std::uint64_t bytes = profile.buckets[i].bytes;
            std::uint64_t begin = 0;
            const auto send = [&](std::uint64_t size, std::uint32_t link) {
                Transfer& t = builder.add(i, begin, begin + size, link);
                t.iteration = end - 1;
                t.generation = {static_cast<std::int32_t>(first), merge};
                begin += size;
            };
            if (!whole.empty()) {
                send(bytes, whole[i]);
            } else {
                const auto& shares = cut.of(bytes);
                for (std::uint32_t j = 0; j < shares.size(); ++j) {
                    if (shares[j] > 0) {
                        send(shares[j], j);
                    }
                }
            }
            builder.deliver(at, i, 0, bytes, delivered);
        }
    }
    return builder.finish(profile, fabric, options);
}

Plan plan_generations(const Profile& profile, const Fabric& fabric, const Options& options,
                      std::uint32_t merge, std::uint32_t delay) {
    Shares cut(fabric, options);
    return generations(profile, fabric, options, {1, merge}, delay, {}, cut);
}

}  // namespace deft::planner
