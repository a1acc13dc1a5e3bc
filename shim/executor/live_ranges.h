// SPDX-License-Identifier: Apache-2.0
// First half of compiling a plan: which bytes live together, and what becomes of each gradient.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shim/executor/script.h"

namespace deft::executor {

// Gradients of iterations (newest - count, newest], summed, delivered `delay` iterations after the
// newest. Numbered so that 0 <= newest < period; it repeats every period.
struct Sum {
    std::int64_t newest = 0;
    std::uint32_t count = 1;
    std::uint32_t delay = 0;

    std::int64_t first() const { return newest - count + 1; }
    std::int64_t update() const { return newest + delay; }
    bool operator==(const Sum&) const = default;
};

struct Piece {
    std::uint32_t region = 0;
    std::uint32_t sum = 0;  // index in LiveRange::sums
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint32_t lane = 0;
    planner::Operation operation = planner::Operation::AllReduce;
    std::int64_t order = 0;   // in the plan, in the period of its sum
    std::int64_t launch = 0;  // call (iteration * buckets + position) in which it is sent
};

struct LiveRange {
    Region region;
    std::vector<Sum> sums;  // by newest; together every iteration exactly once
    bool direct = false;    // always sent from and into the caller's buffers
};

struct LiveRanges {
    std::uint32_t period = 1;
    std::uint32_t buckets = 0;
    std::uint32_t orders = 1;       // transfers of one period
    std::vector<LiveRange> ranges;  // by bucket, begin
    std::vector<Piece> pieces;

    std::int64_t calls() const { return std::int64_t{period} * buckets; }
    // The call in which a bucket's gradient of an iteration appears.
    std::int64_t call(std::int64_t iteration, std::uint32_t bucket) const {
        return iteration * buckets + bucket;
    }
};

// Finds the live ranges of all bytes and checks that each gradient is sent and delivered exactly
// once; in halves, each of them once. Fills in when each piece is launched: as soon as its last
// gradient is in and what the plan sends before it on the lane has been launched, at the latest
// when it must be delivered. Where layers wait for their own, that is the last call of the
// iteration.
LiveRanges find_live_ranges(const planner::Plan& plan, std::span<const Shape> shapes,
                            const CompileOptions& options, std::string& problem);

}  // namespace deft::executor
