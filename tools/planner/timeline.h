// SPDX-License-Identifier: Apache-2.0
// One period of a plan as people and tools like to see it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "planner/simulator/simulator.h"

namespace deft::tools {

// What a picture shows: the bars of a few iterations from the middle of a run, times from 0.
struct Timeline {
    std::string title;
    std::vector<std::string> links;
    std::vector<planner::Interval> bars;
    double length = 0;             // seconds
    std::uint32_t iterations = 0;  // in it; 0: not said
};

Timeline timeline_of(const planner::Plan& plan, const planner::Profile& profile,
                     const planner::Fabric& fabric, const planner::Simulation& simulation);

// Rows of `columns` characters: F forward, B backward, digits and letters transfers by bucket.
std::string text_timeline(const Timeline& timeline, int columns = 100);
// "forward 3", "all-reduce bucket 7 [0, 4096)"
std::string label(const planner::Interval& bar);

std::string svg_timeline(const std::vector<Timeline>& timelines);
// chrome://tracing, Perfetto: one process per timeline, one thread per row; microseconds.
nlohmann::json chrome_trace(const std::vector<Timeline>& timelines);

}  // namespace deft::tools
