// SPDX-License-Identifier: Apache-2.0
// Whether a call may carry a gradient.
#pragma once

#include <cstdint>

#include "shim/nccl/call_record.h"

namespace deft {

// Payload of a call: the larger of what a rank gives and what it gets.
std::uint64_t payload_bytes(const CallRecord& record);

// True for a call that carries gradients in all likelihood: an all-reduce or reduce-scatter of
// floating-point numbers, sum or average (or a job's own scaled sum), kSmallestGradient bytes or
// more. Flags, norms, losses, barriers and integer maps are not.
bool carries_gradient(const CallRecord& record);
inline constexpr std::uint64_t kSmallestGradient = 1024;
// True for one below that size that may be a gradient all the same (a bias): several numbers,
// summed in place. One number is a metric.
bool may_be_small_gradient(const CallRecord& record);
// True for flags, metrics, barriers, maps: less than that, or no floating-point numbers.
bool is_small(const CallRecord& record);
// True for a call of one of the two Series, by what every rank knows of it: an all-reduce or a
// reduce-scatter that may carry a gradient, or an all-gather, of kSmallestGradient bytes a rank.
bool is_numbered(const CallRecord& record);

}  // namespace deft
