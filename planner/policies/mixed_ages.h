// SPDX-License-Identifier: Apache-2.0
// Plans of mixed age: only the bytes that backward ends with are an iteration late.
#pragma once

#include <vector>

#include "planner/policies/spreading.h"

namespace deft::planner {

// Every iteration's gradients, sent as they become ready. The first `fresh` bytes of the buckets,
// in send order, are used by their own iteration's update, the rest by the next one. Whole buckets
// on these links, or cut over all where there is none; the one in which `fresh` ends is cut there.
Plan mixed_ages(const Profile& profile, const Fabric& fabric, const Options& options,
                std::uint64_t fresh, const std::vector<std::uint32_t>& whole, Shares& cut);

// No plan of mixed age with so many fresh bytes takes fewer seconds per iteration.
double mixed_ages_floor(const Profile& profile, double rate, std::uint64_t fresh);

// Most bytes that may be fresh in an iteration of at most so many seconds, by whole buckets first
// and then, where Options::allow_split, by a cut of the next one. The fewest late bytes there are,
// where links share nothing: a late byte waits for no fresh one that an update waits for.
// Less Options::slack.
std::uint64_t most_fresh(const Profile& profile, const Fabric& fabric, const Options& options,
                         double seconds, const std::vector<std::uint32_t>& whole, Shares& cut);

// The plan of those: the fewest late bytes for the time of everything late. On one link, or cut
// over all.
Plan least_late(const Profile& profile, const Fabric& fabric, const Options& options);

}  // namespace deft::planner
