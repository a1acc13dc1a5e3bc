// SPDX-License-Identifier: Apache-2.0
#include "planner/simulator/simulator.h"

#include <algorithm>

#include "planner/simulator/engine.h"
#include "planner/solver/plan_floor.h"

namespace deft::planner {
namespace {

// A run that does not become steady ends after so many transfers, but not before so many periods.
constexpr std::size_t kTransfers = 4000;
constexpr std::uint32_t kPeriods = 32;

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

// Seconds per iteration the busiest link is held at most, its latencies one by one.
double load(const Plan& plan, const Fabric& fabric) {
    std::vector<double> held(fabric.links.size(), 0.0);
    for (const Transfer& t : plan.transfers) {
        const double share = t.operation == Operation::AllReduce ? 1 : 0.5;
        held[t.link] += fabric.links[t.link].seconds(static_cast<double>(t.bytes()), share);
    }
    return *std::max_element(held.begin(), held.end()) / plan.period;
}

// Whether a transfer slows no compute and none of another link down, nor compute a transfer, and no
// two overlap on a link, whose updates may then take turns. A link's backlog alone changes from
// period to period here, and with it when updates are there.
bool undisturbed(const Fabric& fabric) {
    return fabric.groups.empty() &&
           std::all_of(fabric.links.begin(), fabric.links.end(), [](const Link& link) {
               return link.hops.empty() && link.in_flight <= 1 && link.compute_slowdown == 0 &&
                      link.overlap_penalty == 0;
           });
}

// Runs of a plan whose updates lag. They hide an overload for as long as the lag grows, which is
// for ever where it is slight: so each begins once with idle links and once with full queues.
class LaggingRuns {
public:
    LaggingRuns(const Plan& plan, const Profile& profile, const Fabric& fabric,
                const Simulation& simulation, std::uint32_t back)
        : plan_(plan), profile_(profile), fabric_(fabric), simulation_(simulation), back_(back) {}

    SimulationResult run() const { return undisturbed(fabric_) ? quick() : steady(); }

private:
    Engine engine(std::uint32_t periods, double links_from) const {
        return Engine(plan_, profile_, fabric_, simulation_, periods * plan_.period, links_from);
    }
    // When every queue is full, of iterations that take so long.
    double full(double iteration) const { return (back_ + 1) * plan_.period * iteration; }

    // The slowest link soon rules from full queues.
    SimulationResult quick() const {
        SimulationResult run = engine(back_ + 2, 0).run();
        if (run.stuck || load(plan_, fabric_) <= 0.95 * run.iteration) {
            return run;
        }
        return slower(run, engine(2 * back_ + 4, full(run.iteration)).run());
    }

    // What disturbs depends on what is under way at the same time, and that moves for long, or
    // swings between two states.
    SimulationResult steady() const {
        const std::uint32_t few = 2 * back_ + 3;
        SimulationResult run = engine(few, 0).run_until_steady(back_);
        if (run.steady || run.stuck) {
            return run;
        }
        const std::size_t affordable =
            kTransfers / std::max<std::size_t>(1, plan_.transfers.size());
        const std::uint32_t most =
            std::max({few, kPeriods, static_cast<std::uint32_t>(affordable)});
        run = engine(most, 0).run_until_steady(back_);
        if (run.steady || run.stuck) {
            return run;
        }
        return slower(run, engine(most, full(run.iteration)).run_until_steady(back_));
    }

    static const SimulationResult& slower(const SimulationResult& run,
                                          const SimulationResult& other) {
        return !other.stuck && other.iteration > run.iteration ? other : run;
    }

    const Plan& plan_;
    const Profile& profile_;
    const Fabric& fabric_;
    const Simulation& simulation_;
    const std::uint32_t back_;
};

}  // namespace

SimulationResult simulate(const Plan& plan, const Profile& profile, const Fabric& fabric,
                          const Simulation& simulation) {
    if (simulation.iterations != 0) {
        return Engine(plan, profile, fabric, simulation, simulation.iterations, 0).run();
    }
    const std::uint32_t back = reach(plan) / plan.period + 1;
    if (simulation.jitter > 0 || !simulation.rate_changes.empty()) {
        // No two periods are alike.
        return Engine(plan, profile, fabric, simulation, (back + 2) * plan.period, 0).run();
    }
    const bool lags = std::any_of(plan.deliveries.begin(), plan.deliveries.end(),
                                  [](const Delivery& d) { return d.delay() > 0; });
    // Where nothing is late every iteration begins with idle links: one period is like any other.
    if (!lags) {
        return Engine(plan, profile, fabric, simulation, plan.period, 0).run();
    }
    SimulationResult run = LaggingRuns(plan, profile, fabric, simulation, back).run();
    // Two links nearly alike hide a hair of an overload even so.
    const double least = run.stuck ? 0 : held_at_least(plan, profile, fabric);
    if (run.iteration < least) {
        run.exposed += least - run.iteration;
        run.iteration = least;
    }
    return run;
}

}  // namespace deft::planner
