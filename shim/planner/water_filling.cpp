// SPDX-License-Identifier: Apache-2.0
#include "shim/planner/water_filling.h"

#include <algorithm>
#include <cmath>

namespace deft::planner {

WaterFilling water_fill(const Fabric& fabric, double bytes, const std::vector<double>& busy_until) {
    const std::size_t m = fabric.links.size();
    const auto from = [&](std::size_t j) { return busy_until.empty() ? 0.0 : busy_until[j]; };
    WaterFilling result;
    result.bytes.assign(m, 0);
    const bool lines = std::all_of(fabric.links.begin(), fabric.links.end(), [](const Link& link) {
        return link.hops.empty() && link.cost.points.empty() && link.cost.beta > 0;
    });
    if (lines) {
        // Links join in order of their start-up time; stop before one that would start too late.
        std::vector<std::size_t> order(m);
        for (std::size_t j = 0; j < m; ++j) {
            order[j] = j;
        }
        const auto alpha = [&](std::size_t j) { return from(j) + fabric.links[j].latency(); };
        std::stable_sort(order.begin(), order.end(),
                         [&](std::size_t a, std::size_t b) { return alpha(a) < alpha(b); });
        double weighted = bytes;
        double speed = 0;
        double until = INFINITY;
        std::size_t used = 0;
        for (; used < m && alpha(order[used]) < until; ++used) {
            const double beta = fabric.links[order[used]].cost.beta;
            weighted += alpha(order[used]) / beta;
            speed += 1 / beta;
            until = weighted / speed;
        }
        result.seconds = until;
        for (std::size_t k = 0; k < used; ++k) {
            const std::size_t j = order[k];
            result.bytes[j] = std::max(0.0, (until - alpha(j)) / fabric.links[j].cost.beta);
        }
        return result;
    }
    double lo = 0;
    double hi = INFINITY;
    for (std::size_t j = 0; j < m; ++j) {
        hi = std::min(hi, from(j) + fabric.links[j].seconds(bytes));
    }
    const auto carried = [&](double until) {
        double sum = 0;
        for (std::size_t j = 0; j < m; ++j) {
            sum += fabric.links[j].bytes_within(until - from(j));
        }
        return sum;
    };
    for (int i = 0; i < 60 && hi - lo > 1e-12 * hi; ++i) {
        const double mid = 0.5 * (lo + hi);
        (carried(mid) >= bytes ? hi : lo) = mid;
    }
    result.seconds = hi;
    double sum = 0;
    for (std::size_t j = 0; j < m; ++j) {
        result.bytes[j] = std::min(bytes, fabric.links[j].bytes_within(hi - from(j)));
        sum += result.bytes[j];
    }
    // Bisection carries a hair too much, and a curve's floor more than that: take it back evenly.
    for (double& share : result.bytes) {
        share *= sum > 0 ? bytes / sum : 0;
    }
    return result;
}

std::vector<std::uint64_t> split_bytes(const WaterFilling& filling, std::uint64_t bytes,
                                       std::uint64_t grain, std::uint64_t least) {
    const std::size_t m = filling.bytes.size();
    std::vector<std::uint64_t> shares(m, 0);
    std::size_t most = 0;
    std::uint64_t given = 0;
    for (std::size_t j = 0; j < m; ++j) {
        if (filling.bytes[j] > filling.bytes[most]) {
            most = j;
        }
    }
    for (std::size_t j = 0; j < m; ++j) {
        if (j == most) {
            continue;
        }
        const auto want = static_cast<std::uint64_t>(std::llround(filling.bytes[j]));
        std::uint64_t share = want / grain * grain;
        share = std::min(share, bytes - given);
        if (share >= least && share > 0) {
            shares[j] = share;
            given += share;
        }
    }
    shares[most] = bytes - given;
    return shares;
}

}  // namespace deft::planner
