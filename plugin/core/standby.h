// SPDX-License-Identifier: Apache-2.0
// Which paths of a mixed connection are kept for fail-over only. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "plugin/core/clock.h"

namespace deft::net {

// One path. A link that is less than a twentieth of all that a connection has gains it less than a
// piece costs that comes late; one that shares its wire with another gains it nothing; a reserve
// costs others something.
class Standby {
public:
    static constexpr double kLeast = 0.05;  // of the sum
    // One slow stretch may have met a crowd: only a link that is slow for so long is kept back ...
    static constexpr Nanos kFor = kSecond;
    // ... or one that looks faster, but not by more than this, and gets no larger part of what goes
    // out meanwhile, of so many bytes at least. A shaped link looks fast as it lets bursts through;
    // and next to a path that costs no CPU its bytes cost more than they bring.
    static constexpr double kLooks = 0.15;
    static constexpr std::uint64_t kEnough = 16 << 20;
    // ... and it gets another try after this long, then twice as long each time.
    static constexpr Nanos kFirstRest = 10 * kSecond;
    static constexpr Nanos kLongestRest = 300 * kSecond;

    bool out() const { return gives_way_ || rests_until_ != 0; }
    bool gives_way() const { return gives_way_; }
    // Whether one is up that it gives way to (Dialer::gives_way_to()).
    void give_way(bool gives_way) { gives_way_ = gives_way; }
    // It is not up: what it did not carry meanwhile says nothing.
    void away() { stretch_since_ = 0; }
    // Of this path, and of all that are up, it included.
    struct Sample {
        double rate = 0;
        double sum = 0;
        std::uint64_t delivered = 0;  // bytes, ever
        std::uint64_t all = 0;
    };
    // True if out() has changed.
    bool tick(const Sample& path, Nanos now) {
        if (gives_way_) {
            stretch_since_ = slow_since_ = 0;
            return false;  // whatever its rate is
        }
        if (rests_until_ != 0) {
            if (now < rests_until_) {
                return false;
            }
            rests_until_ = slow_since_ = 0;
            begin_stretch(path, now);
            return true;
        }
        const bool little = carries_little(path, now);
        slow_since_ = path.rate >= kLeast * path.sum ? 0 : slow_since_ == 0 ? now : slow_since_;
        if (!little && (slow_since_ == 0 || now - slow_since_ < kFor)) {
            return false;
        }
        rest_ = rest_ == 0 ? kFirstRest : std::min(2 * rest_, kLongestRest);
        rests_until_ = now + rest_;
        return true;
    }

private:
    void begin_stretch(const Sample& path, Nanos now) {
        stretch_since_ = now;
        delivered_before_ = path.delivered;
        all_before_ = path.all;
    }
    // One that carries nothing may have had nothing to carry: small messages take the best path.
    bool carries_little(const Sample& path, Nanos now) {
        const std::uint64_t all = path.all - all_before_;
        if (stretch_since_ != 0 && (now - stretch_since_ < kFor || all < kEnough)) {
            return false;
        }
        const auto part = static_cast<double>(path.delivered - delivered_before_);
        const bool little = stretch_since_ != 0 && part > 0 &&
                            part < kLeast * static_cast<double>(all) &&
                            path.rate < kLooks * path.sum;
        begin_stretch(path, now);
        return little;
    }

    bool gives_way_ = false;
    Nanos stretch_since_ = 0;
    std::uint64_t delivered_before_ = 0;
    std::uint64_t all_before_ = 0;
    Nanos slow_since_ = 0;
    Nanos rests_until_ = 0;
    Nanos rest_ = 0;
};

}  // namespace deft::net
