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

// So many updates in so many iterations, at least as many as updates: each sums as many iterations
// as the next, or one more.
struct Frequency {
    std::uint32_t updates = 1;
    std::uint32_t iterations = 1;
};

// Generations at this frequency, sent as their gradients become ready in the last iteration of each
// and used `delay` iterations later. Whole buckets on these links, or cut over all where there is
// none.
Plan generations(const Profile& profile, const Fabric& fabric, const Options& options,
                 const Frequency& frequency, std::uint32_t delay,
                 const std::vector<std::uint32_t>& whole, Shares& cut);

}  // namespace deft::planner
