// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "shim/executor/executor.h"

namespace deft::executor {

struct Executor::Counters {
    std::atomic<std::uint64_t> iterations{0}, executed{0}, forwarded{0}, launched{0},
        launched_bytes{0}, delivered{0}, predicted{0}, zeroed{0}, empty{0}, dropped{0};
    std::atomic<std::uint64_t> lane_bytes[ExecutorStats::kLanes] = {};
    static void add(std::atomic<std::uint64_t>& counter, std::uint64_t n = 1) {
        counter.fetch_add(n, std::memory_order_relaxed);
    }
};

}  // namespace deft::executor
