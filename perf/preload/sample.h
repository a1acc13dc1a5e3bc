// SPDX-License-Identifier: Apache-2.0
// Times calls of some hundred nanoseconds.
#pragma once

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace deft::hook_cost {

struct Figures {  // ns per call
    double median = 0;
    double p90 = 0;
    double p99 = 0;
};

// Calls timed together: one reading of the clock costs as much as a call.
inline constexpr int kBatch = 16;

inline double now_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

inline double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values.empty() ? 0 : values[values.size() / 2];
}

// `call` gets its number in the batch; `between` runs behind each batch and is not timed.
template <typename Call, typename Between>
Figures sample(const Call& call, const Between& between, int batches) {
    std::vector<double> samples;
    for (int batch = 0; batch < batches; ++batch) {
        const double begin = now_ns();
        for (int i = 0; i < kBatch; ++i) {
            call(i);
        }
        samples.push_back((now_ns() - begin) / kBatch);
        between();
    }
    std::sort(samples.begin(), samples.end());
    const auto at = [&samples](double fraction) {
        const auto last = static_cast<double>(samples.size() - 1);
        return samples[static_cast<std::size_t>(fraction * last)];
    };
    return {at(0.5), at(0.9), at(0.99)};
}

// A job's pace: the observer's queue must not run full.
inline void keep_pace() {
    ::usleep(100);
}

}  // namespace deft::hook_cost
