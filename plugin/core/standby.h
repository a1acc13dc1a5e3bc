// SPDX-License-Identifier: Apache-2.0
// Which paths of a mixed connection are kept for fail-over only. Pure.
#pragma once

#include <algorithm>

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
    // ... and it gets another try after this long, then twice as long each time.
    static constexpr Nanos kFirstRest = 10 * kSecond;
    static constexpr Nanos kLongestRest = 300 * kSecond;

    bool out() const { return gives_way_ || rests_until_ != 0; }
    bool gives_way() const { return gives_way_; }
    // Whether one is up that it gives way to (Dialer::gives_way_to()).
    void give_way(bool gives_way) { gives_way_ = gives_way; }
    // `rate`: of this path, `sum`: of all that are up, it included. True if out() has changed.
    bool tick(double rate, double sum, Nanos now) {
        if (gives_way_) {
            return false;  // whatever its rate is
        }
        if (rests_until_ != 0) {
            if (now < rests_until_) {
                return false;
            }
            rests_until_ = slow_since_ = 0;
            return true;
        }
        if (rate >= kLeast * sum) {
            slow_since_ = 0;
            return false;
        }
        slow_since_ = slow_since_ == 0 ? now : slow_since_;
        if (now - slow_since_ < kFor) {
            return false;
        }
        rest_ = rest_ == 0 ? kFirstRest : std::min(2 * rest_, kLongestRest);
        rests_until_ = now + rest_;
        return true;
    }

private:
    bool gives_way_ = false;
    Nanos slow_since_ = 0;
    Nanos rests_until_ = 0;
    Nanos rest_ = 0;
};

}  // namespace deft::net
