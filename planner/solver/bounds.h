// SPDX-License-Identifier: Apache-2.0
// What no plan can beat.
#pragma once

#include "planner/model/plan.h"

namespace deft::planner {

// Least seconds per iteration of any plan that keeps the rule of `barrier`, delivers at most
// `max_delay` iterations late and merges at most `max_merge` iterations. Latencies and per-message
// costs count as nothing and cuts as free, so real plans stay above it.
//   max_delay 0, Barrier::Update: F + max(B, max_k ready_k + sum_{i>=k} s_i / rate)
//   max_delay 0, Barrier::Layer:  the preemptive optimum on one link of this rate
//   max_delay > 0:                max(F + B, sum s_i / rate)
// where rate is the most all links move together, times max_merge.
double lower_bound(const Profile& profile, const Fabric& fabric, Barrier barrier,
                   std::uint32_t max_delay, std::uint32_t max_merge);

// The bound over all plans that `options` allow.
double lower_bound(const Profile& profile, const Fabric& fabric, const Options& options);

// The bound for what this plan does: its barrier, largest delay and merge. Of mixed ages, every
// iteration waits for its fresh bytes and carries all of them.
double lower_bound(const Plan& plan, const Profile& profile, const Fabric& fabric);

}  // namespace deft::planner
