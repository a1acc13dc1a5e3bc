// SPDX-License-Identifier: Apache-2.0
// How fast a path delivers, learned from acknowledgements.
#pragma once

#include <cstdint>

#include "plugin/core/clock.h"

namespace deft::net {

// Averages the rate over stretches in which the path was never idle; a new rate is learned within
// a few hundred milliseconds of traffic. Not thread-safe.
class RateEstimator {
public:
    // First guess, before anything was measured.
    void reset(double bytes_per_second, Nanos latency);
    void posted(std::uint64_t bytes, Nanos now);
    // `bytes` were acknowledged; they had been posted at `posted_at`.
    void acknowledged(std::uint64_t bytes, Nanos posted_at, Nanos now);
    // A single piece took at least so long, its way there and back included: better than the first
    // guess, where nothing was measured yet.
    void probed(std::uint64_t bytes, Nanos elapsed, Nanos now);
    // Outstanding bytes will not be acknowledged on this path.
    void forget(Nanos now);

    double bytes_per_second() const { return rate_; }
    Nanos latency() const { return latency_; }
    std::uint64_t outstanding() const { return outstanding_; }
    bool measured() const { return samples_ > 0; }
    // When a chunk of `bytes` posted now would be acknowledged, seen from now.
    Nanos predicted(std::uint64_t bytes) const {
        return latency_ +
               static_cast<Nanos>(static_cast<double>(outstanding_ + bytes) * 1e9 / rate_);
    }
    // Lets an estimate that saw no traffic for long rise, so that a path once found slow is tried
    // again.
    void age(Nanos now);

private:
    void sample(std::uint64_t bytes, Nanos elapsed, Nanos now);

    double rate_ = 1e9;
    double first_guess_ = 1e9;
    Nanos latency_ = 100 * kMicrosecond;
    std::uint64_t outstanding_ = 0;
    Nanos stretch_start_ = 0;
    std::uint64_t stretch_bytes_ = 0;
    bool started_idle_ = true;
    int samples_ = 0;
    Nanos last_sample_ = 0;
};

}  // namespace deft::net
