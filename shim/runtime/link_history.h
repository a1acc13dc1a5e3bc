// SPDX-License-Identifier: Apache-2.0
// What the links of this process had carried by when, of the latest minute or so: for a trace of
// the job. The background thread's alone.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace deft {

class LinkHistory {
public:
    static constexpr std::int64_t kApart = 1'000'000'000;  // ns
    static constexpr std::size_t kKept = 64;

    struct Sample {
        std::int64_t at = 0;                     // ns of the host's monotonic clock
        std::vector<std::uint64_t> sent, again;  // bytes, by link as in LinkStats
    };

    // Looks at the links of the process, unless it has done so less than kApart ago.
    void look(std::int64_t now);

    const std::deque<Sample>& samples() const { return samples_; }  // oldest first

private:
    std::deque<Sample> samples_;
};

}  // namespace deft
