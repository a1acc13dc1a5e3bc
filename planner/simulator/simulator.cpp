// SPDX-License-Identifier: Apache-2.0
#include "planner/simulator/simulator.h"

#include <algorithm>

#include "planner/simulator/engine.h"
#include "planner/solver/plan_floor.h"

namespace deft::planner {
namespace {

// Iterations the oldest gradient of a transfer or an update reaches back.
std::uint32_t reach(const Plan& plan) {
    std::int32_t most = 0;
    for (const Transfer& t : plan.transfers) {
        most = std::max(most, -t.generation.first);
    }
    for (const Delivery& d : plan.deliveries) {
        most = std::max(most, static_cast<std::int32_t>(d.iteration) - d.generation.first);
    }
    return static_cast<std::uint32_t>(most);
}

// Seconds per iteration the busiest link is held at most: latencies one by one, under compute.
double load(const Plan& plan, const Fabric& fabric) {
    std::vector<double> held(fabric.links.size(), 0.0);
    std::vector<double> bytes(fabric.groups.size(), 0.0);
    for (const Transfer& t : plan.transfers) {
        const Link& link = fabric.links[t.link];
        const double share = t.operation == Operation::AllReduce ? 1 : 0.5;
        held[t.link] +=
            link.seconds(static_cast<double>(t.bytes()), share) * (1 + link.overlap_penalty);
        for (std::size_t g = 0; g < fabric.groups.size(); ++g) {
            bytes[g] +=
                fabric.groups[g].name == link.group ? share * static_cast<double>(t.bytes()) : 0.0;
        }
    }
    double most = 0;
    for (const double seconds : held) {
        most = std::max(most, seconds);
    }
    for (std::size_t g = 0; g < bytes.size(); ++g) {
        most = std::max(most, bytes[g] / fabric.groups[g].rate);
    }
    return most / plan.period;
}

}  // namespace

SimulationResult simulate(const Plan& plan, const Profile& profile, const Fabric& fabric,
                          const Simulation& simulation) {
    if (simulation.iterations != 0) {
        return Engine(plan, profile, fabric, simulation, simulation.iterations, 0).run();
    }
    const std::uint32_t back = reach(plan) / plan.period + 1;
    const bool lags = std::any_of(plan.deliveries.begin(), plan.deliveries.end(),
                                  [](const Delivery& d) { return d.delay() > 0; });
    // Where nothing is late every iteration begins with idle links: one period is like any other.
    if (!lags && simulation.jitter <= 0 && simulation.rate_changes.empty()) {
        return Engine(plan, profile, fabric, simulation, plan.period, 0).run();
    }
    SimulationResult run =
        Engine(plan, profile, fabric, simulation, (back + 2) * plan.period, 0).run();
    // Updates that may lag hide an overload for as long as the lag grows, which is for ever where
    // it is slight. Start from the other side: with every queue full.
    if (lags && !run.stuck && load(plan, fabric) > 0.95 * run.iteration) {
        const double full = (back + 1) * plan.period * run.iteration;
        SimulationResult other =
            Engine(plan, profile, fabric, simulation, (2 * back + 4) * plan.period, full).run();
        if (!other.stuck && other.iteration > run.iteration) {
            run = std::move(other);
        }
        // Two links nearly alike hide a hair of it even so.
        const double least =
            simulation.rate_changes.empty() ? held_at_least(plan, profile, fabric) : 0;
        if (run.iteration < least) {
            run.exposed += least - run.iteration;
            run.iteration = least;
        }
    }
    return run;
}

}  // namespace deft::planner
