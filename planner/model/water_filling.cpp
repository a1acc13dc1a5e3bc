// SPDX-License-Identifier: Apache-2.0
#include "planner/model/water_filling.h"

#include <algorithm>
#include <cmath>

namespace deft::planner {
namespace {

constexpr std::size_t kNoGroup = ~std::size_t{0};

// By link: the group that slows it when all its links move at once, and how many times.
struct Sharing {
    std::size_t group = kNoGroup;
    double slower = 1;
};

std::vector<Sharing> sharing(const Fabric& fabric) {
    std::vector<Sharing> of(fabric.links.size());
    for (std::size_t g = 0; g < fabric.groups.size(); ++g) {
        double rate = 0;
        for (const Link& link : fabric.links) {
            rate += link.group == fabric.groups[g].name ? link.best_rate() : 0;
        }
        for (std::size_t j = 0; j < fabric.links.size(); ++j) {
            if (fabric.links[j].group == fabric.groups[g].name && rate > fabric.groups[g].rate) {
                of[j] = {g, rate / fabric.groups[g].rate};
            }
        }
    }
    return of;
}

// Links that are filled together, each from when it is free.
class Vessel {
public:
    Vessel(const Fabric& fabric, const std::vector<double>& busy_until)
        : fabric_(fabric), busy_until_(busy_until), shared_(sharing(fabric)) {}

    // Where every link's time is a straight line over its bytes. Links join in order of their
    // start-up time; stop before one that would start too late.
    WaterFilling fill_lines(double bytes) const {
        const std::size_t m = fabric_.links.size();
        std::vector<std::size_t> order(m);
        for (std::size_t j = 0; j < m; ++j) {
            order[j] = j;
        }
        const auto alpha = [&](std::size_t j) { return from(j) + fabric_.links[j].latency(); };
        const auto beta_of = [&](std::size_t j) {
            return fabric_.links[j].cost.beta * shared_[j].slower;
        };
        std::stable_sort(order.begin(), order.end(),
                         [&](std::size_t a, std::size_t b) { return alpha(a) < alpha(b); });
        double weighted = bytes;
        double speed = 0;
        double until = INFINITY;
        std::size_t used = 0;
        for (; used < m && alpha(order[used]) < until; ++used) {
            const double beta = beta_of(order[used]);
            weighted += alpha(order[used]) / beta;
            speed += 1 / beta;
            until = weighted / speed;
        }
        WaterFilling result;
        result.bytes.assign(m, 0);
        result.seconds = until;
        for (std::size_t k = 0; k < used; ++k) {
            const std::size_t j = order[k];
            result.bytes[j] = std::max(0.0, (until - alpha(j)) / beta_of(j));
        }
        return result;
    }

    // Any curves, by bisection.
    WaterFilling fill_curves(double bytes) const {
        const std::size_t m = fabric_.links.size();
        double lo = 0;
        double hi = INFINITY;
        for (std::size_t j = 0; j < m; ++j) {
            hi = std::min(hi, from(j) + fabric_.links[j].seconds(bytes));
        }
        // Links that slow each other down may carry less than the best of them alone.
        for (int i = 0; i < 200 && carried(hi) < bytes; ++i) {
            hi *= 2;
        }
        for (int i = 0; i < 60 && hi - lo > 1e-10 * hi; ++i) {
            const double mid = 0.5 * (lo + hi);
            (carried(mid) >= bytes ? hi : lo) = mid;
        }
        WaterFilling result;
        result.bytes.assign(m, 0);
        result.seconds = hi;
        double sum = 0;
        for (std::size_t j = 0; j < m; ++j) {
            result.bytes[j] = std::min(bytes, carries(j, hi));
            sum += result.bytes[j];
        }
        // Bisection carries a hair too much, and a curve's floor more than that: take it back
        // evenly.
        for (double& share : result.bytes) {
            share *= sum > 0 ? bytes / sum : 0;
        }
        return result;
    }

private:
    double from(std::size_t j) const { return busy_until_.empty() ? 0.0 : busy_until_[j]; }

    // A link slowed by its group carries what it would in so much less time after its start-up.
    double carries(std::size_t j, double until) const {
        const double latency = fabric_.links[j].latency();
        const double time = until - from(j);
        return fabric_.links[j].bytes_within(
            time > latency ? latency + (time - latency) / shared_[j].slower : time);
    }

    double carried(double until) const {
        double sum = 0;
        for (std::size_t j = 0; j < fabric_.links.size(); ++j) {
            sum += carries(j, until);
        }
        return sum;
    }

    const Fabric& fabric_;
    const std::vector<double>& busy_until_;
    const std::vector<Sharing> shared_;
};

}  // namespace

WaterFilling water_fill(const Fabric& fabric, double bytes, const std::vector<double>& busy_until) {
    const Vessel vessel(fabric, busy_until);
    const bool lines = std::all_of(fabric.links.begin(), fabric.links.end(), [](const Link& link) {
        return link.hops.empty() && link.cost.points.empty() && link.cost.algorithms.empty() &&
               link.cost.beta > 0;
    });
    return lines ? vessel.fill_lines(bytes) : vessel.fill_curves(bytes);
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
