// SPDX-License-Identifier: Apache-2.0
// Splitting one transfer over unequal links so that all parts end together.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/model/fabric.h"

namespace deft::planner {

struct WaterFilling {
    double seconds = 0;         // when the last part ends, all links idle at the start
    std::vector<double> bytes;  // per link; 0: the link is not worth its latency
};

// For lines alpha + beta*s: s_j = (T - alpha_j)/beta_j with T = (s + sum alpha/beta)/(sum 1/beta)
// over the links with alpha_j < T. For any other curve T is found by bisection. `busy_until`, if
// not empty, says when each link becomes free. Links of a group share its rate.
WaterFilling water_fill(const Fabric& fabric, double bytes,
                        const std::vector<double>& busy_until = {});

// The same in whole elements: shares are multiples of `grain` bytes and sum to `bytes`; shares
// below `least` bytes are given to the fastest link instead.
std::vector<std::uint64_t> split_bytes(const WaterFilling& filling, std::uint64_t bytes,
                                       std::uint64_t grain, std::uint64_t least);

}  // namespace deft::planner
