// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/patience.h"

#include <algorithm>

namespace deft::net {
namespace {

// A slow link needs long for a large chunk: so many times what it was seen to need.
constexpr Nanos kExpectedTimes = 4;

}  // namespace

void Patience::tick(Nanos now, const Tick& tick) {
    const Nanos elapsed = last_ == 0 ? 0 : std::min(now - last_, kAway);
    last_ = now;
    if (!tick.waits) {
        moved();
    } else {
        waited_ += elapsed;
        counted_ += tick.dark ? 0 : elapsed;
    }
    expected_ = tick.expected;
    warned_ = std::min(warned_, waited_);
}

bool Patience::expired() const {
    const Nanos limit = std::max(limit_, kExpectedTimes * expected_);
    return counted_ > limit || waited_ > std::max(limit, kKernel);
}

bool Patience::warn_due() {
    const bool due = waited_ - warned_ >= kWarnEvery;
    warned_ = due ? waited_ : warned_;
    return due;
}

}  // namespace deft::net
