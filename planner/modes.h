// SPDX-License-Identifier: Apache-2.0
// What a mode of the library takes for an iteration, by a plan that it can carry out: every call of
// the job is a message of its own, and sums are all-reduces (shim/control/plan_choice.cpp).
#pragma once

#include <cstdint>

#include "planner/model/plan.h"

namespace deft::planner {

// Least part of a call on a network of its own, bytes. What a small one costs has been measured; it
// is the planner's own limit that would leave a third of 3 MB on the fastest network.
inline constexpr std::uint64_t kLeastPart = 256 * 1024;

// Seconds of an iteration, and the synchronous updates that it is worth (progress.h).
struct ModeTime {
    double seconds = 0;
    double progress = 1;
};

// Mode exact where layers wait for their own gradients only: the best order, no byte late.
ModeTime layerwise_time(const Profile&, const Fabric&, const Options&);

// Mode deft with every update one iteration late (DEFT_PLAN=delay1).
ModeTime late_time(const Profile&, const Fabric&, const Options&);

// Mode deft with whole updates of up to max_merge iterations and nothing late.
ModeTime merged_time(const Profile&, const Fabric&, const Options&);

}  // namespace deft::planner
