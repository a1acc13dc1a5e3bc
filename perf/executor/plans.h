// SPDX-License-Identifier: Apache-2.0
// Plans made by hand, and what they must deliver, computed from the plan alone.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/model/plan.h"
#include "shim/executor/script.h"

namespace deft::executor::test {

using planner::Delivery;
using planner::Generation;
using planner::Plan;
using planner::Transfer;

// Where a bucket is cut, and the link of each part.
struct Part {
    double share = 1;
    std::uint32_t link = 0;
};

// Every `merge` iterations' gradients are summed and delivered `delay` iterations after the newest.
inline Plan uniform_plan(const std::vector<std::uint64_t>& bytes, std::uint32_t merge,
                         std::uint32_t delay, const std::vector<Part>& parts = {{1, 0}},
                         std::uint32_t links = 2) {
    Plan plan;
    plan.policy = "test";
    plan.period = merge;
    plan.bucket_bytes = bytes;
    for (std::uint32_t l = 0; l < links; ++l) {
        plan.links.push_back("link" + std::to_string(l));
    }
    const std::int32_t newest = static_cast<std::int32_t>(merge) - 1;
    for (std::uint32_t b = 0; b < bytes.size(); ++b) {
        std::uint64_t begin = 0;
        for (std::size_t p = 0; p < parts.size(); ++p) {
            std::uint64_t end = p + 1 == parts.size()
                                    ? bytes[b]
                                    : begin + static_cast<std::uint64_t>(
                                                  static_cast<double>(bytes[b]) * parts[p].share) /
                                                  512 * 512;
            end = std::min(end, bytes[b]);
            if (begin < end) {
                Transfer t;
                t.bucket = b;
                t.begin = begin;
                t.end = end;
                t.link = parts[p].link;
                t.generation = {0, merge};
                t.iteration = static_cast<std::uint32_t>(newest);
                t.order = static_cast<std::uint32_t>(plan.transfers.size());
                plan.transfers.push_back(t);
            }
            begin = end;
        }
        Delivery d;
        d.bucket = b;
        d.end = bytes[b];
        const std::uint32_t at = static_cast<std::uint32_t>(newest) + delay;
        d.iteration = at % merge;
        d.generation = {-static_cast<std::int32_t>(at / merge * merge), merge};
        plan.deliveries.push_back(d);
    }
    return plan;
}

// Iterations (from 0 on) whose gradients byte `at` of the bucket gets in iteration t's update.
inline std::vector<std::int64_t> delivered_iterations(const Plan& plan, std::int64_t t,
                                                      std::uint32_t bucket, std::uint64_t at) {
    std::vector<std::int64_t> found;
    for (const Delivery& d : plan.deliveries) {
        if (d.bucket != bucket || at < d.begin || at >= d.end || t % plan.period != d.iteration) {
            continue;
        }
        const std::int64_t shift = t - d.iteration;
        for (std::int64_t i = d.generation.first; i <= d.generation.newest(); ++i) {
            if (i + shift >= 0) {
                found.push_back(i + shift);
            }
        }
    }
    return found;
}

}  // namespace deft::executor::test
