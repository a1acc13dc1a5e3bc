// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace deft {

// Counts lines of a log, so that no fault that repeats fills a disk: 500 in ten seconds. Any
// thread; inexact by a few lines where several threads begin a new stretch at once.
class RateLimit {
public:
    static constexpr std::int64_t kStretch = 10;  // seconds
    static constexpr std::uint32_t kMost = 500;

    // A line at `now`, in seconds of any clock. False: it is one too many. `left_out`: how many
    // were, in the stretch that has ended with this line.
    bool admits(std::int64_t now, std::uint32_t& left_out) noexcept {
        std::int64_t begun = begun_.load(std::memory_order_relaxed);
        left_out = 0;
        if (now >= begun + kStretch &&
            begun_.compare_exchange_strong(begun, now, std::memory_order_relaxed)) {
            const std::uint32_t lines = lines_.exchange(0, std::memory_order_relaxed);
            left_out = lines > kMost ? lines - kMost : 0;
        }
        return lines_.fetch_add(1, std::memory_order_relaxed) < kMost;
    }

private:
    std::atomic<std::int64_t> begun_{INT64_MIN / 2};
    std::atomic<std::uint32_t> lines_{0};
};

}  // namespace deft
