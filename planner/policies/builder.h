// SPDX-License-Identifier: Apache-2.0
// What the policies share: putting transfers into a plan.
#pragma once

#include <vector>

#include "planner/model/plan.h"

namespace deft::planner {

// Seconds an all-reduce of each bucket takes on one link.
std::vector<double> bucket_costs(const Profile& profile, const Link& link);

// Links from fastest to slowest for messages of this size.
std::vector<std::uint32_t> by_speed(const Fabric& fabric, double bytes);

// Whether no link shares a pipe with another, slows the compute down or is slowed down by it.
bool apart(const Fabric& fabric);

// The fabric with these of its links only, in this order.
Fabric only(const std::vector<std::uint32_t>& links, const Fabric& fabric);

// Collects transfers in launch order, each its own message unless fused.
class PlanBuilder {
public:
    PlanBuilder(const char* policy, Barrier barrier, std::uint32_t period = 1);

    Transfer& add(std::uint32_t bucket, std::uint64_t begin, std::uint64_t end, std::uint32_t link);
    // The next add() joins the message of the last one.
    void fuse() { fuse_ = true; }
    void deliver(std::uint32_t iteration, std::uint32_t bucket, std::uint64_t begin,
                 std::uint64_t end, Generation generation);
    Plan& plan() { return plan_; }
    Plan finish(const Profile& profile, const Fabric& fabric, const Options& options);

private:
    Plan plan_;
    std::uint32_t messages_ = 0;
    bool fuse_ = false;
};

// Cuts a bucket into `count` nearly equal ranges at multiples of `grain`; fewer if it is too small.
std::vector<std::uint64_t> cuts(std::uint64_t bytes, std::uint64_t count, std::uint64_t grain);

}  // namespace deft::planner
