// SPDX-License-Identifier: Apache-2.0
// Executes a plan as discrete events: compute of every rank, links, shared pipes, delays.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/model/plan.h"

namespace deft::planner {

// From `time` on (seconds of simulated time) the link moves bytes at `factor` times its rate;
// 0: down. The slowest node of a collective sets its rate, so this is also one slow NIC.
struct RateChange {
    double time = 0;
    std::uint32_t link = 0;
    double factor = 1;
};

struct Simulation {
    std::uint32_t iterations = 0;  // 0: until periods repeat, or long enough to tell
    std::uint32_t ranks = 1;
    double jitter = 0;                   // each rank's compute is slower by up to this fraction
    std::uint64_t seed = 1;              // of the jitter; drawn anew for every rank and iteration
    std::vector<double> compute_factor;  // per rank (missing: 1), stragglers above 1
    std::vector<RateChange> rate_changes;
    bool timeline = false;
};

// One bar of a timeline, seconds of simulated time.
struct Interval {
    enum class Kind : std::uint8_t { Forward, Backward, Wait, Transfer };
    Kind kind = Kind::Wait;
    std::uint32_t iteration = 0;
    std::uint32_t bucket = 0;  // Transfer, Forward
    std::uint32_t link = 0;    // Transfer
    Operation operation = Operation::AllReduce;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    double start = 0;
    double finish = 0;
};

struct SimulationResult {
    // Mean seconds over the last whole period, or over the last half of a run that should have
    // come to repeat itself and has not; infinite: stuck.
    double iteration = 0;
    std::vector<double> iterations;  // start of backward to start of the next backward
    double exposed = 0;              // mean seconds per iteration in which compute waits
    std::vector<double> cycles;      // start of backward, first to last of the last whole period
    std::vector<double> link_busy;   // fraction of the measured time each link was busy
    std::vector<double> starts;      // per transfer of the plan, from the start of its period
    std::vector<double> finishes;
    std::vector<Interval> timeline;
    std::uint64_t events = 0;
    bool steady = false;  // ended because from here on all periods are alike
    bool stuck = false;   // a link that is down, or a plan that waits for itself
};

SimulationResult simulate(const Plan& plan, const Profile& profile, const Fabric& fabric,
                          const Simulation& simulation = {});

}  // namespace deft::planner
