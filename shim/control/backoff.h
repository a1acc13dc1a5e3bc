// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace deft::director {

// How long to wait after each of several failures in a row: not at all after fewer than `free` of
// them, then `first`, then twice as long each time, `most` at most. In whatever unit the caller
// counts. Pure.
class Backoff {
public:
    constexpr Backoff(std::uint64_t first, std::uint64_t most, std::uint32_t free = 0)
        : first_(first), most_(most), free_(free) {}

    // The pause after one more failure.
    std::uint64_t failed() {
        ++failures_;
        pause_ = failures_ < free_ ? 0 : std::clamp(2 * pause_, first_, most_);
        return pause_;
    }
    void succeeded() { failures_ = pause_ = 0; }
    // In a row.
    std::uint32_t failures() const { return failures_; }

private:
    std::uint64_t first_;
    std::uint64_t most_;
    std::uint32_t free_;
    std::uint32_t failures_ = 0;
    std::uint64_t pause_ = 0;
};

}  // namespace deft::director
