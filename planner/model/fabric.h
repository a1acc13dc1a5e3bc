// SPDX-License-Identifier: Apache-2.0
// The links a plan may use and what a collective costs on each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deft::planner {

struct CostPoint {
    double bytes = 0;
    double seconds = 0;
    bool operator==(const CostPoint&) const = default;
};

// Seconds of one algorithm for any size: alpha + beta * bytes.
struct CostLine {
    double alpha = 0;
    double beta = 0;
    bool operator==(const CostLine&) const = default;
};

// Seconds an all-reduce of some size takes on an idle link. Either a line alpha + beta * bytes, or
// measured points between which the time is linear in the logarithm of the size: one line is off
// by a third on real curves (nccl-tests on 8 A100, see docs/planner.md). Sizes that lie much
// further apart than a benchmark's tell nothing of how the time bends between them: it is linear in
// the size itself there, if `straight`. Below the first point the time is that of the first point;
// beyond the last it grows at the rate of the last two. Or several lines, one for each algorithm
// that is chosen between for every message (rings, trees): the fastest counts.
struct CostCurve {
    double alpha = 0;                  // seconds
    double beta = 0;                   // seconds per byte
    std::vector<CostPoint> points;     // ascending sizes; empty: the line
    std::vector<CostLine> algorithms;  // not empty: instead of points and the line
    bool straight = false;             // between the points, in the size and not in its logarithm

    bool operator==(const CostCurve&) const = default;

    double seconds(double bytes) const;
    // The part of every message that does not move bytes. The first size of a benchmark moves next
    // to none; of straight points it is what the line from the first to the last leaves at no
    // bytes, at most half of what the first takes.
    double latency() const;
    // Largest bytes per second any message size reaches once under way (latency left out).
    double best_rate() const;
    // Largest number of bytes done within `seconds`; 0 if the latency alone exceeds it.
    double bytes_within(double seconds) const;
    std::string problem() const;
};

// One leg of a collective that crosses several resources (reduce-scatter inside the node,
// all-reduce between nodes, all-gather inside the node). A resource serves one message at a time.
struct Hop {
    std::string resource;
    CostCurve cost;
    bool operator==(const Hop&) const = default;
};

struct Link {
    std::string name;
    std::string kind;        // "tcp", "ib", "roce", "nvlink", "pci"; empty: not told
    CostCurve cost;          // of a whole all-reduce; ignored when hops are given
    std::vector<Hop> hops;   // empty: one resource of its own
    double per_message = 0;  // seconds of launch and negotiation on top of the curve, per message
    double compute_slowdown = 0;  // compute takes (1 + this) times as long while the link is busy
    double overlap_penalty = 0;   // transfers take (1 + this) times as long while compute runs
    std::uint32_t in_flight = 1;  // messages whose latencies may overlap; bytes move one by one
    std::string group;            // contention group; empty: shares nothing
    std::string source;           // where the rate comes from
    std::string beyond;           // not empty: it is used where nobody measured it, and how
    double least_bytes = 0;       // messages whose times were measured; 0, 0: nobody says
    double most_bytes = 0;

    bool operator==(const Link&) const = default;

    // Time from start to end of a message alone on the idle link; `share` is 1 for an all-reduce,
    // 1/2 for a reduce-scatter or an all-gather, which move half of it.
    double seconds(double bytes, double share = 1) const;
    // Time the busiest resource is held: what packs into a window.
    double occupancy(double bytes, double share = 1) const;
    // Empty, or what is wrong with the link by itself.
    std::string problem() const;
    double latency() const;
    double best_rate() const;
    double bytes_within(double seconds) const;
};

// Links that share an upstream pipe: together they move at most `rate` bytes per second.
struct Group {
    std::string name;
    double rate = 0;
    bool operator==(const Group&) const = default;
};

struct Fabric {
    std::string name;
    std::vector<Link> links;  // links[0] is the reference: the one the job uses as it is
    std::vector<Group> groups;
    // deft's plugin stripes every message over all links: the planner sees one link with the sum
    // of their rates. Otherwise the links are separate and plans name them.
    bool striped = false;

    bool operator==(const Fabric&) const = default;

    std::string problem() const;
    // Upper bound on bytes per second over all links together, group limits respected.
    double best_rate() const;
    // What the planner sees when the plugin stripes: one link, water-filled over all of them.
    Fabric merged() const;
};

}  // namespace deft::planner
