// SPDX-License-Identifier: Apache-2.0
// Engine: tables made from the plan before the first event.
#include "planner/simulator/engine.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace deft::planner {

using namespace engine;

void Engine::prepare_links() {
    std::vector<std::string> names;
    for (std::uint32_t j = 0; j < fabric_.links.size(); ++j) {
        const Link& link = fabric_.links[j];
        std::vector<std::uint32_t> route;
        const auto find = [&](const std::string& name) {
            const auto at = std::find(names.begin(), names.end(), name);
            const auto index = static_cast<std::uint32_t>(at - names.begin());
            if (at == names.end()) {
                names.push_back(name);
                resources_.emplace_back();
            }
            resources_[index].in_flight = std::max(resources_[index].in_flight, link.in_flight);
            return index;
        };
        if (link.hops.empty()) {
            route.push_back(find(std::string("\1") + link.name));
        }
        for (const Hop& hop : link.hops) {
            route.push_back(find(hop.resource));
        }
        route_.push_back(std::move(route));
        std::uint32_t group = kNone;
        for (std::uint32_t g = 0; g < fabric_.groups.size(); ++g) {
            if (!link.group.empty() && fabric_.groups[g].name == link.group) {
                group = g;
            }
        }
        group_.push_back(group);
    }
    flying_.assign(fabric_.links.size(), 0);
    rate_.assign(resources_.size(), 0.0);
    wanted_.assign(fabric_.groups.size(), 0.0);
}

void Engine::prepare_messages() {
    by_link_.resize(fabric_.links.size());
    heads_.resize(fabric_.links.size());
    for (std::uint32_t x = 0; x < plan_.transfers.size(); ++x) {
        const Transfer& t = plan_.transfers[x];
        auto& line = by_link_[t.link];
        const bool joins =
            !line.empty() &&
            plan_.transfers[messages_[line.back()].parts.back()].message == t.message;
        if (!joins) {
            line.push_back(static_cast<std::uint32_t>(messages_.size()));
            messages_.push_back({t.link,
                                 t.iteration,
                                 t.stage,
                                 0,
                                 t.operation == Operation::AllReduce ? 1.0 : 0.5,
                                 t.generation.newest(),
                                 {}});
        }
        Message& message = messages_[line.back()];
        message.bytes += static_cast<double>(t.bytes());
        message.newest = std::max(message.newest, t.generation.newest());
        message.parts.push_back(x);
    }
}

void Engine::prepare_deliveries() {
    const std::size_t n = profile_.size();
    const auto period = static_cast<std::int32_t>(plan_.period);
    effects_.resize(plan_.transfers.size());
    std::vector<std::vector<std::uint32_t>> of_bucket(n);
    for (std::uint32_t x = 0; x < plan_.transfers.size(); ++x) {
        if (plan_.transfers[x].operation != Operation::ReduceScatter) {
            of_bucket[plan_.transfers[x].bucket].push_back(x);
        }
    }
    for (const Delivery& d : plan_.deliveries) {
        for (const std::uint32_t x : of_bucket[d.bucket]) {
            const Transfer& t = plan_.transfers[x];
            const std::int32_t apart = t.generation.first - d.generation.first;
            if (t.generation.count == d.generation.count && apart % period == 0 &&
                t.begin < d.end && d.begin < t.end) {
                effects_[x].push_back({d.iteration, d.bucket, apart / period});
            }
        }
    }
    count_pending();
}

// How many transfers each update, and each bucket in it, waits for.
void Engine::count_pending() {
    const std::size_t n = profile_.size();
    const auto period = static_cast<std::int32_t>(plan_.period);
    pending_all_.assign(iterations_, 0);
    pending_.assign(iterations_ * n, 0);
    done_all_.assign(iterations_, 0.0);
    done_.assign(iterations_ * n, 0.0);
    scattering_.assign(iterations_ * n, 0);
    const std::uint32_t periods = (iterations_ + plan_.period - 1) / plan_.period;
    for (std::uint32_t x = 0; x < plan_.transfers.size(); ++x) {
        const Transfer& t = plan_.transfers[x];
        for (std::int64_t q = 0; q <= periods + 1; ++q) {
            const std::int64_t newest = q * period + t.generation.newest();
            if (newest < 0) {
                continue;
            }
            if (t.operation == Operation::ReduceScatter && newest < iterations_) {
                ++scattering_[static_cast<std::size_t>(newest) * n + t.bucket];
            }
            for (const Effect& e : effects_[x]) {
                const std::int64_t at = (q + e.periods) * period + e.iteration;
                if (at >= 0 && at < iterations_) {
                    ++pending_all_[static_cast<std::size_t>(at)];
                    ++pending_[static_cast<std::size_t>(at) * n + e.bucket];
                }
            }
        }
    }
}

}  // namespace deft::planner
