// SPDX-License-Identifier: Apache-2.0
// Messages over several links: cut so that their parts end together, or whole ones spread.
#pragma once

#include <map>
#include <vector>

#include "planner/model/plan.h"

namespace deft::planner {

// How messages are cut over the links of a fabric; sizes repeat, between buckets and between plans.
// The fabric and the options must outlive it.
class Shares {
public:
    Shares(const Fabric& fabric, const Options& options) : fabric_(fabric), options_(options) {}

    // Bytes for each link.
    const std::vector<std::uint64_t>& of(std::uint64_t bytes);

private:
    const Fabric& fabric_;
    const Options& options_;
    std::map<std::uint64_t, std::vector<std::uint64_t>> known_;
};

// A plan made for one merged link, its messages cut over the links of the real fabric.
Plan spread(const Plan& plan, const Profile& profile, const Fabric& fabric, const Options& options,
            Shares& cut);

// Whole buckets over the links, largest first, each where it ends first: the link of each bucket.
std::vector<std::uint32_t> largest_first(const Profile& profile, const Fabric& fabric);

// Generations of `merge` iterations, sent as their gradients become ready in the last of them and
// used `delay` iterations later. Whole buckets on these links, or cut over all where there is none.
Plan generations(const Profile& profile, const Fabric& fabric, const Options& options,
                 std::uint32_t merge, std::uint32_t delay, const std::vector<std::uint32_t>& whole,
                 Shares& cut);

}  // namespace deft::planner
