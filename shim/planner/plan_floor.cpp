// SPDX-License-Identifier: Apache-2.0
#include "shim/planner/plan_floor.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

namespace deft::planner {
namespace {

// What is sent in a cycle of its own and waited for in it: when each bucket is there, at the
// earliest, from the start of that cycle's backward; the slowest by what is left to compute then.
struct Finish {
    double last = 0;    // of all messages
    double needed = 0;  // of all buckets, with the forward that needs them
};

Finish first_come_first_served(const Plan& plan, const Profile& profile, const Fabric& fabric) {
    const std::vector<double> tails = profile.tails();
    std::vector<double> scattered(profile.size(), 0.0);
    std::vector<double> free(fabric.links.size(), 0.0);
    std::map<std::string, std::uint32_t> in_flight;
    const auto first_hop = [](const Link& link) {
        return link.hops.empty() ? std::string("\1") + link.name : link.hops.front().resource;
    };
    for (const Link& link : fabric.links) {
        std::uint32_t& most = in_flight[first_hop(link)];
        most = std::max(most, link.in_flight);
        for (const Hop& hop : link.hops) {
            std::uint32_t& there = in_flight[hop.resource];
            there = std::max(there, link.in_flight);
        }
    }
    Finish result;
    std::vector<double> piped(fabric.groups.size(), 0.0);
    std::vector<std::size_t> next(fabric.links.size(), 0);  // by link: transfers looked at
    for (std::size_t x = 0; x < plan.transfers.size(); ++x) {
        const Transfer& t = plan.transfers[x];
        if (x < next[t.link]) {
            continue;  // travelled with an earlier one
        }
        // The rest of its message: neighbours on this link with the same number.
        double bytes = 0;
        double ready = 0;
        std::vector<std::uint32_t> parts;
        std::size_t y = x;
        for (; y < plan.transfers.size(); ++y) {
            const Transfer& u = plan.transfers[y];
            if (u.link != t.link) {
                continue;
            }
            if (u.message != t.message) {
                break;
            }
            bytes += static_cast<double>(u.bytes());
            ready = std::max(ready, profile.buckets[u.bucket].ready);
            if (u.operation == Operation::AllGather) {
                ready = std::max(ready, scattered[u.bucket]);
            }
            parts.push_back(u.bucket);
        }
        next[t.link] = y;
        if (t.stage == Stage::Forward) {
            ready = std::max(ready, profile.backward);
        }
        const Link& link = fabric.links[t.link];
        const double share = t.operation == Operation::AllReduce ? 1 : 0.5;
        const CostCurve& cost = link.hops.empty() ? link.cost : link.hops.front().cost;
        const double latency = link.per_message + share * cost.latency();
        const double volume = share * (cost.seconds(bytes) - cost.latency());
        // Latencies may overlap, bytes move one message at a time.
        double& at = free[t.link];
        at = in_flight[first_hop(link)] > 1 ? std::max(at, ready + latency)
                                            : std::max(at, ready) + latency;
        // Until backward ends compute runs for sure, and bytes move slower.
        const double slower = 1 + link.overlap_penalty;
        const double moved = std::max(0.0, profile.backward - at) / slower;
        at = volume <= moved ? at + volume * slower
                             : std::max(at, profile.backward) + volume - moved;
        for (std::size_t g = 0; g < piped.size(); ++g) {
            if (fabric.groups[g].name == link.group) {
                piped[g] = std::max(piped[g], ready) + share * bytes / fabric.groups[g].rate;
            }
        }
        double finish = at;
        for (std::size_t h = 1; h < link.hops.size(); ++h) {
            finish += share * link.hops[h].cost.seconds(bytes);
        }
        for (const std::uint32_t bucket : parts) {
            if (t.operation == Operation::ReduceScatter) {
                scattered[bucket] = std::max(scattered[bucket], finish);
            } else {
                result.needed = std::max(result.needed, finish + tails[bucket]);
            }
        }
        result.last = std::max(result.last, finish);
    }
    for (const double at : piped) {
        result.last = std::max(result.last, at);
        if (!tails.empty()) {
            result.needed = std::max(result.needed, at + tails.front());  // the shortest tail
        }
    }
    return result;
}

}  // namespace

double held_at_least(const Plan& plan, const Profile& profile, const Fabric& fabric) {
    const double compute = profile.compute();
    struct Held {
        std::uint32_t in_flight = 1;
        double latency = 0;        // seconds per period that move no byte
        double volume = 0;         // seconds per period that do, at full rate
        double slower = INFINITY;  // the least overlap penalty of its links, plus 1
    };
    std::map<std::string, Held> all;
    for (const Link& link : fabric.links) {
        const auto raise = [&](const std::string& resource) {
            Held& h = all[resource];
            h.in_flight = std::max(h.in_flight, link.in_flight);
            h.slower = std::min(h.slower, 1 + link.overlap_penalty);
        };
        raise('\1' + link.name);
        for (const Hop& hop : link.hops) {
            raise(hop.resource);
        }
    }
    std::vector<double> piped(fabric.groups.size(), 0.0);
    std::vector<double> flown(fabric.links.size(), 0.0);
    std::vector<const Transfer*> open(fabric.links.size(), nullptr);  // message being summed
    std::vector<double> bytes(fabric.links.size(), 0.0);
    const auto close = [&](std::uint32_t j) {
        if (open[j] == nullptr) {
            return;
        }
        const Link& link = fabric.links[j];
        const double share = open[j]->operation == Operation::AllReduce ? 1 : 0.5;
        const auto add = [&](const std::string& resource, const CostCurve& cost, double extra) {
            Held& h = all[resource];
            const double latency = share * cost.latency() + extra;
            const double volume = share * (cost.seconds(bytes[j]) - cost.latency());
            // Latencies may overlap, bytes move one message at a time.
            h.latency += h.in_flight > 1 ? 0 : latency;
            h.volume += volume;
            flown[j] += (h.in_flight > 1 ? 0 : latency) + volume;
        };
        if (link.hops.empty()) {
            add('\1' + link.name, link.cost, link.per_message);
        }
        for (std::size_t h = 0; h < link.hops.size(); ++h) {
            add(link.hops[h].resource, link.hops[h].cost, h == 0 ? link.per_message : 0);
        }
        for (std::size_t g = 0; g < fabric.groups.size(); ++g) {
            piped[g] += fabric.groups[g].name == link.group ? share * bytes[j] : 0.0;
        }
        bytes[j] = 0;
    };
    for (const Transfer& t : plan.transfers) {
        if (open[t.link] != nullptr && open[t.link]->message != t.message) {
            close(t.link);
        }
        open[t.link] = &t;
        bytes[t.link] += static_cast<double>(t.bytes());
    }
    for (std::uint32_t j = 0; j < fabric.links.size(); ++j) {
        close(j);
    }
    const double period = plan.period;
    double most = compute;
    for (const auto& [name, h] : all) {
        const double latency = h.latency / period;
        const double volume = h.volume / period;
        // Latencies under compute as far as they go, bytes slower under the rest of it.
        const double under = std::max(0.0, compute - latency) / h.slower;
        most = std::max(most, std::max(compute, latency) + std::max(0.0, volume - under));
    }
    for (std::size_t g = 0; g < piped.size(); ++g) {
        most = std::max(most, piped[g] / fabric.groups[g].rate / period);
    }
    for (std::size_t j = 0; j < flown.size(); ++j) {
        // Whatever flies takes its part of the compute, or compute waits for it. A link of several
        // hops is in flight on all of them at once at the most.
        const double hops =
            static_cast<double>(std::max<std::size_t>(1, fabric.links[j].hops.size()));
        const double slowdown = fabric.links[j].compute_slowdown;
        most = std::max(most, compute + flown[j] / hops / period * slowdown / (1 + slowdown));
    }
    return most;
}

double plan_floor(const Plan& plan, const Profile& profile, const Fabric& fabric) {
    const double compute = profile.compute();
    double least = held_at_least(plan, profile, fabric);
    // Plans that send in one cycle of the period and deliver all of it `delay` updates later, at
    // most as many as the period has: the windows from sending to update do not overlap.
    std::uint32_t delay = 0;
    bool together = !plan.transfers.empty() && !plan.deliveries.empty();
    for (const Transfer& t : plan.transfers) {
        together = together && t.iteration == plan.transfers.front().iteration &&
                   t.generation.newest() == static_cast<std::int32_t>(t.iteration) &&
                   t.generation == plan.transfers.front().generation &&
                   (t.stage == Stage::Backward || plan.barrier == Barrier::Layer);
    }
    for (const Delivery& d : plan.deliveries) {
        delay = std::max(delay, d.delay());
        together = together && d.delay() == plan.deliveries.front().delay();
    }
    if (together && delay < plan.period) {
        const Finish finish = first_come_first_served(plan, profile, fabric);
        const double window =
            plan.barrier == Barrier::Layer && delay == 0
                ? std::max(compute, finish.needed)
                : std::max(delay * compute + profile.backward, finish.last) + profile.forward;
        least = std::max(least, (window + (plan.period - delay - 1) * compute) / plan.period);
    }
    return least;
}

}  // namespace deft::planner
