// SPDX-License-Identifier: Apache-2.0
// The two kinds of calls that plans are made for. Each is numbered by itself, and a plan is for one
// of them: the calls of the other pass it by.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shim/nccl/call.h"

namespace deft {

enum class Series : std::uint8_t {
    Sums,    // all-reduces that may carry gradients
    Shards,  // reduce-scatters that may, and all-gathers
};
inline constexpr std::size_t kSeries = 2;

constexpr bool moves_shards(Function function) {
    return function == Function::ReduceScatter || function == Function::AllGather;
}

// Of a function that plans know.
constexpr Series series_of(Function function) {
    return moves_shards(function) ? Series::Shards : Series::Sums;
}

}  // namespace deft
