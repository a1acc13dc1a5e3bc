// SPDX-License-Identifier: Apache-2.0
// The event loop behind simulate(): one run over a fixed number of iterations.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "planner/simulator/compute_program.h"
#include "planner/simulator/simulator.h"
#include "planner/simulator/steady_state.h"

namespace deft::planner {

// What the Engine's tables are made of.
namespace engine {

constexpr double kNever = INFINITY;
constexpr std::uint32_t kNone = ~std::uint32_t{0};
// Periods that differ by less than this part of their compute are alike.
constexpr double kAlike = 1e-6;

// Transfers of one link that travel together.
struct Message {
    std::uint32_t link = 0;
    std::uint32_t iteration = 0;
    Stage stage = Stage::Backward;
    double bytes = 0;
    double share = 1;
    std::int32_t newest = 0;  // iteration of its newest gradient, from the start of the period
    std::vector<std::uint32_t> parts;  // indices into Plan::transfers
};

// A message under way in some period.
struct Flight {
    std::uint32_t message = 0;
    std::uint32_t period = 0;
    std::uint32_t hop = 0;
    double latency_ends = kNever;  // simulated time; set when the resource takes it
    double volume = 0;             // seconds of moving bytes left at full rate
    double demand = 0;             // bytes per second at full rate
    double start = 0;
};

struct Resource {
    std::deque<Flight> queue;  // the first `in_flight` are taken, the first of them moves bytes
    std::size_t taken = 0;
    std::uint32_t in_flight = 1;
};

// What a transfer's end allows: a delivery so many periods later, or a dependent all-gather.
struct Effect {
    std::uint32_t iteration = 0;
    std::uint32_t bucket = 0;
    std::int32_t periods = 0;
};

}  // namespace engine

class Engine {
public:
    Engine(const Plan& plan, const Profile& profile, const Fabric& fabric,
           const Simulation& simulation, std::uint32_t iterations, double links_from)
        : plan_(plan),
          profile_(profile),
          fabric_(fabric),
          simulation_(simulation),
          iterations_(iterations),
          links_from_(links_from),
          program_(profile, plan.barrier, simulation, iterations) {
        prepare_links();
        prepare_messages();
        prepare_deliveries();
        changes_ = simulation.rate_changes;
        std::stable_sort(changes_.begin(), changes_.end(),
                         [](const RateChange& a, const RateChange& b) { return a.time < b.time; });
        factor_.assign(fabric.links.size(), 1.0);
        busy_.assign(fabric.links.size(), 0.0);
        cycle_start_.assign(iterations + 1, engine::kNever);
        exposed_at_.assign(iterations + 1, 0.0);
        last_seen_.assign(plan.transfers.size(), {});
    }

    SimulationResult run();
    // The same, but ends with the first period from which on all are alike, if there is one;
    // `reach`: periods that a period depends on.
    SimulationResult run_until_steady(std::uint32_t reach) {
        const double least = engine::kAlike * profile_.compute();
        steady_.emplace(plan_.transfers.size(), plan_.period, reach, least);
        return run();
    }

private:
    void prepare_links();
    void prepare_messages();
    void prepare_deliveries();
    void count_pending();
    void settle();
    void launch();
    bool launch_next(std::uint32_t link);
    double release(const engine::Message& message, std::uint32_t period) const;
    double head_release(std::uint32_t link);
    void enter(std::uint32_t resource, engine::Flight flight);
    void take(engine::Resource& resource);
    void complete(engine::Resource& resource);
    void set_rates();
    double next_event();
    void advance(double until);
    void pass_marks(double work);
    void draw(const ComputeProgram::Mark& mark, double at);
    void complete_all();
    void summarise();
    void land(const engine::Flight& flight);

    const Plan& plan_;
    const Profile& profile_;
    const Fabric& fabric_;
    const Simulation& simulation_;
    std::uint32_t iterations_;
    const double links_from_;  // no transfer starts before
    ComputeProgram program_;

    std::vector<engine::Message> messages_;
    std::vector<std::vector<std::uint32_t>> by_link_;  // messages in launch order
    struct Head {
        std::uint32_t index = 0;
        std::uint32_t period = 0;
        double from = engine::kNever;  // release of this message, once it is known for good
    };
    std::vector<Head> heads_;
    std::vector<engine::Resource> resources_;
    std::vector<std::vector<std::uint32_t>> route_;  // link -> resources
    std::vector<std::uint32_t> group_;               // link -> group or kNone
    std::vector<std::uint32_t> flying_;              // messages under way per link

    std::vector<std::vector<engine::Effect>> effects_;  // by transfer
    std::vector<std::uint32_t> pending_all_;            // by iteration
    std::vector<std::uint32_t> pending_;                // by iteration and bucket
    std::vector<std::uint32_t> scattering_;             // by newest iteration and bucket
    std::vector<double> done_all_;                      // work clock at which pending reached zero
    std::vector<double> done_;

    std::vector<double> rate_;    // per resource: of its moving flight
    std::vector<double> wanted_;  // per group: bytes per second its links would move
    std::vector<double> factor_;
    std::vector<RateChange> changes_;
    std::size_t next_change_ = 0;
    std::size_t next_mark_ = 0;
    double now_ = 0;
    double work_ = 0;
    double work_rate_ = 1;
    double waited_ = 0;
    std::vector<double> busy_;
    std::vector<double> cycle_start_;
    std::vector<double> exposed_at_;
    struct Span {
        std::uint32_t period = 0;
        double start = 0;
        double finish = 0;
    };
    std::vector<Span> last_seen_;  // last instance of each transfer
    std::optional<SteadyState> steady_;
    SimulationResult result_;
};

}  // namespace deft::planner
