// SPDX-License-Identifier: Apache-2.0
#include "planner/solver/plan_floor.h"

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

// The transfers of one message: neighbours on its link with the same number.
struct Message {
    double bytes = 0;
    double ready = 0;                    // when the last of its gradients exists
    std::vector<std::uint32_t> buckets;  // of its parts
    std::size_t behind = 0;              // the first transfer that is not looked at
};

// Each message starts when its gradients are there and its link is free, in the plan's order.
class FirstComeFirstServed {
public:
    FirstComeFirstServed(const Plan& plan, const Profile& profile, const Fabric& fabric)
        : plan_(plan),
          profile_(profile),
          fabric_(fabric),
          tails_(profile.tails()),
          scattered_(profile.size(), 0.0),
          free_(fabric.links.size(), 0.0),
          piped_(fabric.groups.size(), 0.0) {
        for (const Link& link : fabric.links) {
            raise(first_hop(link), link.in_flight);
            for (const Hop& hop : link.hops) {
                raise(hop.resource, link.in_flight);
            }
        }
    }

    Finish run() {
        std::vector<std::size_t> next(fabric_.links.size(), 0);  // by link: transfers looked at
        for (std::size_t x = 0; x < plan_.transfers.size(); ++x) {
            const Transfer& t = plan_.transfers[x];
            if (x < next[t.link]) {
                continue;  // travelled with an earlier one
            }
            const Message message = message_at(x);
            next[t.link] = message.behind;
            send(t, message);
        }
        for (const double at : piped_) {
            result_.last = std::max(result_.last, at);
            if (!tails_.empty()) {
                result_.needed = std::max(result_.needed, at + tails_.front());  // the shortest
            }
        }
        return result_;
    }

private:
    static std::string first_hop(const Link& link) {
        return link.hops.empty() ? std::string("\1") + link.name : link.hops.front().resource;
    }

    void raise(const std::string& resource, std::uint32_t in_flight) {
        std::uint32_t& most = in_flight_[resource];
        most = std::max(most, in_flight);
    }

    Message message_at(std::size_t x) const {
        const Transfer& t = plan_.transfers[x];
        Message message;
        for (message.behind = x; message.behind < plan_.transfers.size(); ++message.behind) {
            const Transfer& u = plan_.transfers[message.behind];
            if (u.link != t.link) {
                continue;
            }
            if (u.message != t.message) {
                break;
            }
            message.bytes += static_cast<double>(u.bytes());
            message.ready = std::max(message.ready, profile_.buckets[u.bucket].ready);
            if (u.operation == Operation::AllGather) {
                message.ready = std::max(message.ready, scattered_[u.bucket]);
            }
            message.buckets.push_back(u.bucket);
        }
        if (t.stage == Stage::Forward) {
            message.ready = std::max(message.ready, profile_.backward);
        }
        return message;
    }

    void send(const Transfer& t, const Message& message) {
        const Link& link = fabric_.links[t.link];
        const double share = t.operation == Operation::AllReduce ? 1 : 0.5;
        double finish = leaves_link(t.link, share, message);
        for (std::size_t g = 0; g < piped_.size(); ++g) {
            if (fabric_.groups[g].name == link.group) {
                piped_[g] = std::max(piped_[g], message.ready) +
                            share * message.bytes / fabric_.groups[g].rate;
            }
        }
        for (std::size_t h = 1; h < link.hops.size(); ++h) {
            finish += share * link.hops[h].cost.seconds(message.bytes);
        }
        for (const std::uint32_t bucket : message.buckets) {
            if (t.operation == Operation::ReduceScatter) {
                scattered_[bucket] = std::max(scattered_[bucket], finish);
            } else {
                result_.needed = std::max(result_.needed, finish + tails_[bucket]);
            }
        }
        result_.last = std::max(result_.last, finish);
    }

    // When its last byte has left the link, or the first hop of it.
    double leaves_link(std::uint32_t j, double share, const Message& message) {
        const Link& link = fabric_.links[j];
        const CostCurve& cost = link.hops.empty() ? link.cost : link.hops.front().cost;
        const double latency = link.per_message + share * cost.latency();
        const double volume = share * (cost.seconds(message.bytes) - cost.latency());
        // Latencies may overlap, bytes move one message at a time.
        double& at = free_[j];
        at = in_flight_[first_hop(link)] > 1 ? std::max(at, message.ready + latency)
                                             : std::max(at, message.ready) + latency;
        // Until backward ends compute runs for sure, and bytes move slower.
        const double slower = 1 + link.overlap_penalty;
        const double moved = std::max(0.0, profile_.backward - at) / slower;
        at = volume <= moved ? at + volume * slower
                             : std::max(at, profile_.backward) + volume - moved;
        return at;
    }

    const Plan& plan_;
    const Profile& profile_;
    const Fabric& fabric_;
    const std::vector<double> tails_;
    std::vector<double> scattered_;  // by bucket: when its reduce-scatter has finished
    std::vector<double> free_;       // by link
    std::map<std::string, std::uint32_t> in_flight_;
    std::vector<double> piped_;  // by group
    Finish result_;
};

// How long the messages of a period hold each resource of a fabric.
class HeldResources {
public:
    explicit HeldResources(const Fabric& fabric)
        : fabric_(fabric), piped_(fabric.groups.size(), 0.0), flown_(fabric.links.size(), 0.0) {
        for (const Link& link : fabric.links) {
            raise('\1' + link.name, link);
            for (const Hop& hop : link.hops) {
                raise(hop.resource, link);
            }
        }
    }

    // A message on link j that moves this share of what an all-reduce of so many bytes does.
    void add(std::uint32_t j, double share, double bytes) {
        const Link& link = fabric_.links[j];
        const auto hold = [&](const std::string& resource, const CostCurve& cost, double extra) {
            Held& h = all_[resource];
            // Latencies may overlap, bytes move one message at a time.
            const double latency = h.in_flight > 1 ? 0 : share * cost.latency() + extra;
            const double volume = share * (cost.seconds(bytes) - cost.latency());
            h.latency += latency;
            h.volume += volume;
            flown_[j] += latency + volume;
        };
        if (link.hops.empty()) {
            hold('\1' + link.name, link.cost, link.per_message);
        }
        for (std::size_t h = 0; h < link.hops.size(); ++h) {
            hold(link.hops[h].resource, link.hops[h].cost, h == 0 ? link.per_message : 0);
        }
        for (std::size_t g = 0; g < fabric_.groups.size(); ++g) {
            piped_[g] += fabric_.groups[g].name == link.group ? share * bytes : 0.0;
        }
    }

    double iteration_at_least(double compute, double period) const {
        double most = compute;
        for (const auto& [name, h] : all_) {
            const double latency = h.latency / period;
            const double volume = h.volume / period;
            // Latencies under compute as far as they go, bytes slower under the rest of it.
            const double under = std::max(0.0, compute - latency) / h.slower;
            most = std::max(most, std::max(compute, latency) + std::max(0.0, volume - under));
        }
        for (std::size_t g = 0; g < piped_.size(); ++g) {
            most = std::max(most, piped_[g] / fabric_.groups[g].rate / period);
        }
        for (std::size_t j = 0; j < flown_.size(); ++j) {
            // Whatever flies takes its part of the compute, or compute waits for it. A link of
            // several hops is in flight on all of them at once at the most.
            const double hops =
                static_cast<double>(std::max<std::size_t>(1, fabric_.links[j].hops.size()));
            const double slowdown = fabric_.links[j].compute_slowdown;
            most = std::max(most, compute + flown_[j] / hops / period * slowdown / (1 + slowdown));
        }
        return most;
    }

private:
    struct Held {
        std::uint32_t in_flight = 1;
        double latency = 0;        // seconds per period that move no byte
        double volume = 0;         // seconds per period that do, at full rate
        double slower = INFINITY;  // the least overlap penalty of its links, plus 1
    };

    void raise(const std::string& resource, const Link& link) {
        Held& h = all_[resource];
        h.in_flight = std::max(h.in_flight, link.in_flight);
        h.slower = std::min(h.slower, 1 + link.overlap_penalty);
    }

    const Fabric& fabric_;
    std::map<std::string, Held> all_;
    std::vector<double> piped_;  // bytes, by group
    std::vector<double> flown_;  // seconds, by link
};

}  // namespace

double held_at_least(const Plan& plan, const Profile& profile, const Fabric& fabric) {
    HeldResources held(fabric);
    std::vector<const Transfer*> open(fabric.links.size(), nullptr);  // message being summed
    std::vector<double> bytes(fabric.links.size(), 0.0);
    const auto close = [&](std::uint32_t j) {
        if (open[j] != nullptr) {
            held.add(j, open[j]->operation == Operation::AllReduce ? 1 : 0.5, bytes[j]);
            bytes[j] = 0;
        }
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
    return held.iteration_at_least(profile.compute(), plan.period);
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
        const Finish finish = FirstComeFirstServed(plan, profile, fabric).run();
        const double window =
            plan.barrier == Barrier::Layer && delay == 0
                ? std::max(compute, finish.needed)
                : std::max(delay * compute + profile.backward, finish.last) + profile.forward;
        least = std::max(least, (window + (plan.period - delay - 1) * compute) / plan.period);
    }
    return least;
}

}  // namespace deft::planner
