// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "shim/control/backoff.h"

namespace deft::director {

// How long nothing is planned after a change of the job's iteration has ended a plan. A plan that
// was in force for kWorthwhile iterations has earned its making: the next one is made at once,
// however often evaluations come. Of the shorter ones kFree in a row are made at once; each further
// one doubles the pause. So a job whose iteration changes all the time has one staging in kMost
// iterations, and one whose iteration settles late gets its plan after all. Pure.
class PlanBackoff {
public:
    static constexpr std::uint64_t kWorthwhile = 20;
    static constexpr std::uint32_t kFree = 20;
    static constexpr std::uint64_t kFirst = 16;  // iterations
    static constexpr std::uint64_t kMost = 1024;

    // A plan of iterations of `length` gradient calls has ended before call `ordinal`, after so
    // many iterations in force. The pause in iterations.
    std::uint64_t ended(std::uint64_t ordinal, std::uint64_t length, std::uint64_t iterations) {
        if (iterations >= kWorthwhile) {
            backoff_.succeeded();
        }
        const std::uint64_t pause = iterations < kWorthwhile ? backoff_.failed() : 0;
        until_ = ordinal + pause * std::max<std::uint64_t>(length, 1);
        return pause;
    }
    bool holds(std::uint64_t ordinal) const { return ordinal < until_; }

private:
    Backoff backoff_{kFirst, kMost, kFree};
    std::uint64_t until_ = 0;
};

}  // namespace deft::director
