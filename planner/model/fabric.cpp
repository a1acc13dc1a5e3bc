// SPDX-License-Identifier: Apache-2.0
#include "planner/model/fabric.h"

#include <algorithm>
#include <cmath>

#include "planner/model/water_filling.h"

namespace deft::planner {
namespace {

// Seconds per byte beyond the last point.
double last_slope(const std::vector<CostPoint>& points) {
    const CostPoint& last = points.back();
    if (points.size() < 2) {
        return last.seconds / last.bytes;
    }
    const CostPoint& before = points[points.size() - 2];
    const double slope = (last.seconds - before.seconds) / (last.bytes - before.bytes);
    return slope > 0 ? slope : last.seconds / last.bytes;
}

bool valid(double value) {
    return std::isfinite(value) && value >= 0;
}

}  // namespace

double CostCurve::seconds(double bytes) const {
    if (!algorithms.empty()) {
        double least = INFINITY;
        for (const CostLine& line : algorithms) {
            least = std::min(least, line.alpha + line.beta * bytes);
        }
        return least;
    }
    if (points.empty()) {
        return alpha + beta * bytes;
    }
    if (bytes <= points.front().bytes) {
        return points.front().seconds;
    }
    if (bytes >= points.back().bytes) {
        return points.back().seconds + (bytes - points.back().bytes) * last_slope(points);
    }
    const auto above = std::upper_bound(points.begin(), points.end(), bytes,
                                        [](double b, const CostPoint& p) { return b < p.bytes; });
    const CostPoint& hi = *above;
    const CostPoint& lo = *(above - 1);
    const double at = straight ? (bytes - lo.bytes) / (hi.bytes - lo.bytes)
                               : std::log(bytes / lo.bytes) / std::log(hi.bytes / lo.bytes);
    return lo.seconds + at * (hi.seconds - lo.seconds);
}

double CostCurve::latency() const {
    if (!algorithms.empty()) {
        return seconds(0);
    }
    if (points.empty()) {
        return alpha;
    }
    const CostPoint& first = points.front();
    if (!straight || points.size() < 2) {
        return first.seconds;
    }
    const CostPoint& last = points.back();
    const double slope = (last.seconds - first.seconds) / (last.bytes - first.bytes);
    return std::clamp(first.seconds - slope * first.bytes, 0.0, first.seconds / 2);
}

double CostCurve::best_rate() const {
    if (!algorithms.empty()) {
        double rate = 0;  // of the one that ends as the fastest
        for (const CostLine& line : algorithms) {
            rate = std::max(rate, line.beta > 0 ? 1 / line.beta : INFINITY);
        }
        return rate;
    }
    if (points.empty()) {
        return beta > 0 ? 1 / beta : INFINITY;
    }
    // Inside a segment bytes / (time - latency) has no inner maximum, so its ends decide; beyond
    // the last point the slope does.
    const double floor = latency();
    double rate = 1 / last_slope(points);
    for (const CostPoint& point : points) {
        rate = std::max(rate, point.seconds > floor       ? point.bytes / (point.seconds - floor)
                              : &point == &points.front() ? 0
                                                          : INFINITY);
    }
    return rate;
}

double CostCurve::bytes_within(double limit) const {
    if (!algorithms.empty()) {
        double most = 0;
        for (const CostLine& line : algorithms) {
            if (limit > line.alpha) {
                most = std::max(most, line.beta > 0 ? (limit - line.alpha) / line.beta : INFINITY);
            }
        }
        return most;
    }
    if (points.empty()) {
        if (limit <= alpha) {
            return 0;
        }
        return beta > 0 ? (limit - alpha) / beta : INFINITY;
    }
    if (limit < points.front().seconds) {
        return 0;
    }
    if (limit >= points.back().seconds) {
        return points.back().bytes + (limit - points.back().seconds) / last_slope(points);
    }
    // The time never falls with the size (checked), so the last segment that starts within the
    // limit holds the answer.
    for (std::size_t i = points.size() - 1; i > 0; --i) {
        const CostPoint& lo = points[i - 1];
        const CostPoint& hi = points[i];
        if (lo.seconds <= limit) {
            const double span = hi.seconds - lo.seconds;
            const double at = span > 0 ? std::min(1.0, (limit - lo.seconds) / span) : 1.0;
            return straight ? lo.bytes + at * (hi.bytes - lo.bytes)
                            : lo.bytes * std::pow(hi.bytes / lo.bytes, at);
        }
    }
    return points.front().bytes;
}

std::string CostCurve::problem() const {
    if (!valid(alpha)) {
        return "alpha: not a time";
    }
    if (!valid(beta)) {
        return "beta: not a time per byte";
    }
    for (std::size_t i = 0; i < algorithms.size(); ++i) {
        if (!valid(algorithms[i].alpha) || !valid(algorithms[i].beta)) {
            return "algorithms[" + std::to_string(i) + "]: not a time, or not one per byte";
        }
    }
    for (std::size_t i = 0; i < points.size(); ++i) {
        const std::string at = "points[" + std::to_string(i) + "]";
        if (!(valid(points[i].bytes) && points[i].bytes > 0)) {
            return at + ".bytes: not a size";
        }
        if (!(valid(points[i].seconds) && points[i].seconds > 0)) {
            return at + ".seconds: not a time";
        }
        if (i > 0 && points[i].bytes <= points[i - 1].bytes) {
            return at + ".bytes: sizes must ascend";
        }
        if (i > 0 && points[i].seconds < points[i - 1].seconds) {
            return at + ".seconds: falls with size (smooth the measurement first)";
        }
    }
    return {};
}

double Link::seconds(double bytes, double share) const {
    double sum = per_message;
    if (hops.empty()) {
        return sum + share * cost.seconds(bytes);
    }
    for (const Hop& hop : hops) {
        sum += share * hop.cost.seconds(bytes);
    }
    return sum;
}

double Link::occupancy(double bytes, double share) const {
    double most = 0;
    if (hops.empty()) {
        most = share * cost.seconds(bytes);
    }
    for (const Hop& hop : hops) {
        most = std::max(most, share * hop.cost.seconds(bytes));
    }
    return per_message + most;
}

double Link::latency() const {
    double sum = per_message;
    if (hops.empty()) {
        return sum + cost.latency();
    }
    for (const Hop& hop : hops) {
        sum += hop.cost.latency();
    }
    return sum;
}

double Link::best_rate() const {
    if (hops.empty()) {
        return cost.best_rate();
    }
    double rate = INFINITY;
    for (std::size_t i = 0; i < hops.size(); ++i) {
        // A resource crossed twice (into and out of a node) carries the message twice.
        double per_byte = 0;
        for (const Hop& other : hops) {
            if (other.resource == hops[i].resource) {
                per_byte += 1 / other.cost.best_rate();
            }
        }
        rate = std::min(rate, per_byte > 0 ? 1 / per_byte : INFINITY);
    }
    return rate;
}

double Link::bytes_within(double limit) const {
    if (hops.empty()) {
        return cost.bytes_within(limit - per_message);
    }
    if (limit <= latency()) {
        return 0;
    }
    double lo = 0;
    double hi = 1e15;
    for (int i = 0; i < 100; ++i) {
        const double mid = 0.5 * (lo + hi);
        (seconds(mid) <= limit ? lo : hi) = mid;
    }
    return lo;
}

// Of the link alone: its curves and its numbers.
std::string Link::problem() const {
    if (name.empty()) {
        return "name: empty";
    }
    if (std::string why = cost.problem(); !why.empty()) {
        return why;
    }
    for (std::size_t h = 0; h < hops.size(); ++h) {
        if (const std::string why = hops[h].cost.problem(); !why.empty()) {
            return "hops[" + std::to_string(h) + "]." + why;
        }
    }
    if (!valid(per_message)) {
        return "per_message: not a time";
    }
    if (!valid(compute_slowdown) || !valid(overlap_penalty)) {
        return "compute_slowdown, overlap_penalty: must be 0 or more";
    }
    if (in_flight == 0 || in_flight > 1024) {
        return "in_flight: outside 1..1024";
    }
    return {};
}

std::string Fabric::problem() const {
    if (links.empty()) {
        return "links: there is none";
    }
    if (links.size() > 64) {
        return "links: more than 64";
    }
    for (std::size_t i = 0; i < links.size(); ++i) {
        const Link& link = links[i];
        const std::string at = "links[" + std::to_string(i) + "].";
        const auto same = [&](const Link& other) { return other.name == link.name; };
        const auto here = links.begin() + static_cast<std::ptrdiff_t>(i);
        if (std::any_of(links.begin(), here, same)) {
            return at + "name: \"" + link.name + "\" is taken";
        }
        if (const std::string why = link.problem(); !why.empty()) {
            return at + why;
        }
        const auto named = [&](const Group& g) { return g.name == link.group; };
        if (!link.group.empty() && std::none_of(groups.begin(), groups.end(), named)) {
            return at + "group: \"" + link.group + "\" is not among the groups";
        }
    }
    for (std::size_t i = 0; i < groups.size(); ++i) {
        if (!(valid(groups[i].rate) && groups[i].rate > 0)) {
            return "groups[" + std::to_string(i) + "].rate: must be more than 0";
        }
    }
    return {};
}

double Fabric::best_rate() const {
    double sum = 0;
    for (const Link& link : links) {
        if (link.group.empty()) {
            sum += link.best_rate();
        }
    }
    for (const Group& group : groups) {
        double inside = 0;
        for (const Link& link : links) {
            if (link.group == group.name) {
                inside += link.best_rate();
            }
        }
        sum += std::min(inside, group.rate);
    }
    return sum;
}

Fabric Fabric::merged() const {
    Fabric one;
    one.name = name;
    Link all;
    all.name = "striped";
    all.source = "all links of the fabric, water-filled";
    for (const Link& link : links) {
        if (!link.beyond.empty()) {
            all.beyond += (all.beyond.empty() ? "" : "; ") + link.name + " " + link.beyond;
        }
        if (link.most_bytes > 0) {  // of the part that it gets of a large message
            const double part = link.best_rate() / best_rate();
            all.least_bytes = std::max(all.least_bytes, link.least_bytes / part);
            all.most_bytes =
                std::min(all.most_bytes > 0 ? all.most_bytes : INFINITY, link.most_bytes / part);
        }
        all.compute_slowdown = std::max(all.compute_slowdown, link.compute_slowdown);
        all.overlap_penalty = std::max(all.overlap_penalty, link.overlap_penalty);
    }
    const bool lines = std::all_of(links.begin(), links.end(), [](const Link& link) {
        return link.hops.empty() && link.cost.points.empty() && link.cost.algorithms.empty() &&
               link.latency() == 0;
    });
    const double cap = best_rate();
    if (lines) {
        all.cost.beta = 1 / cap;
    } else {
        double previous = 0;
        for (double bytes = 4096; bytes <= 4.0 * (1U << 30); bytes *= 2) {
            const double seconds =
                std::max({water_fill(*this, bytes).seconds, bytes / cap, previous});
            all.cost.points.push_back({bytes, seconds});
            previous = seconds;
        }
    }
    one.links.push_back(std::move(all));
    return one;
}

}  // namespace deft::planner
