// SPDX-License-Identifier: Apache-2.0
// Policy `bytescheduler`: Peng et al., ByteScheduler (SOSP 2019), with P3's priorities (Jayarajan
// et al., MLSys 2019). Tensors are cut into partitions; the layer nearest to the input goes first;
// partitions enter the network while credit is above zero; forward of a layer waits for its own
// gradient only (the framework barrier is crossed).
// Mechanism as in the public code (byteps, branch bytescheduler, bytecore.py): the test is
// credit > 0, so the last partition may overshoot. Partition and credit default to the values its
// documentation gives for all-reduce; its Bayesian tuning is left to the caller.
// Deviations: planned ahead from the profile instead of decided at run time, which all-reduce needs
// anyway (one order on all ranks). partition_bytes = 0 is the ideal of the paper's theorem: cut at
// the very moments a more urgent gradient arrives, which reaches the closed form T_opt.
#include <algorithm>
#include <cmath>
#include <deque>

#include "planner/policies/builder.h"
#include "planner/policies/policy.h"

namespace deft::planner {
namespace {

Plan ideal(const Profile& profile, const Fabric& fabric, const Options& options) {
    const Link& link = fabric.links[0];
    PlanBuilder builder("bytescheduler", Barrier::Layer);
    const std::uint32_t n = static_cast<std::uint32_t>(profile.size());
    std::vector<std::uint64_t> sent(n, 0);
    double now = 0;
    std::uint32_t arrived = 0;
    for (;;) {
        while (arrived < n && profile.buckets[arrived].ready <= now) {
            ++arrived;
        }
        std::uint32_t next = n;  // the most urgent: the last one that has arrived and is not done
        for (std::uint32_t i = arrived; i-- > 0;) {
            if (sent[i] < profile.buckets[i].bytes) {
                next = i;
                break;
            }
        }
        if (next == n) {
            if (arrived == n) {
                break;
            }
            now = profile.buckets[arrived].ready;
            continue;
        }
        const std::uint64_t left = profile.buckets[next].bytes - sent[next];
        std::uint64_t size = left;
        double until = now + link.seconds(static_cast<double>(left));
        if (arrived < n && profile.buckets[arrived].ready < until) {
            const double fits = link.bytes_within(profile.buckets[arrived].ready - now);
            const auto whole =
                static_cast<std::uint64_t>(std::max(0.0, fits)) / options.grain * options.grain;
            if (whole == 0) {
                // Nothing gets through before it arrives.
                now = profile.buckets[arrived].ready;
                continue;
            }
            size = std::min(whole, left);
            until = profile.buckets[arrived].ready;
        }
        builder.add(next, sent[next], sent[next] + size, 0);
        sent[next] += size;
        now = until;
    }
    return builder.finish(profile, fabric, options);
}

// Of the buckets that have arrived and are not sent, the one that forward needs first; else as many
// as there are.
std::uint32_t most_urgent(const Profile& profile, const std::vector<std::uint64_t>& sent,
                          std::uint32_t arrived) {
    for (std::uint32_t i = arrived; i-- > 0;) {
        if (sent[i] < profile.buckets[i].bytes) {
            return i;
        }
    }
    return static_cast<std::uint32_t>(profile.size());
}

}  // namespace

Plan plan_bytescheduler(const Profile& profile, const Fabric& fabric, const Options& options) {
    if (options.partition_bytes == 0) {
        return ideal(profile, fabric, options);
    }
    const Link& link = fabric.links[0];
    const std::uint64_t partition = std::max(options.partition_bytes, options.grain);
    const auto limit = static_cast<std::int64_t>(options.credit_bytes);
    PlanBuilder builder("bytescheduler", Barrier::Layer);
    const std::uint32_t n = static_cast<std::uint32_t>(profile.size());
    std::vector<std::uint64_t> sent(n, 0);
    std::deque<std::pair<double, std::int64_t>> flying;  // end, bytes
    std::int64_t credit = std::max<std::int64_t>(limit, 1);
    double now = 0;
    double link_free = 0;
    std::uint32_t arrived = 0;
    for (;;) {
        while (arrived < n && profile.buckets[arrived].ready <= now) {
            ++arrived;
        }
        while (!flying.empty() && flying.front().first <= now) {
            credit += flying.front().second;
            flying.pop_front();
        }
        const std::uint32_t next = most_urgent(profile, sent, arrived);
        if (next < n && credit > 0) {
            const std::uint64_t size =
                std::min(partition, profile.buckets[next].bytes - sent[next]);
            builder.add(next, sent[next], sent[next] + size, 0);
            sent[next] += size;
            credit -= static_cast<std::int64_t>(size);
            link_free = std::max(link_free, now) + link.seconds(static_cast<double>(size));
            flying.emplace_back(link_free, static_cast<std::int64_t>(size));
            continue;
        }
        if (next == n && arrived == n) {
            break;
        }
        double wake = INFINITY;
        if (arrived < n) {
            wake = profile.buckets[arrived].ready;
        }
        if (next < n && !flying.empty()) {
            wake = std::min(wake, flying.front().first);
        }
        now = wake;
    }
    return builder.finish(profile, fabric, options);
}

}  // namespace deft::planner
