// SPDX-License-Identifier: Apache-2.0
// Iteration times that need no simulation: one serial link, ideal preemption, nothing per message.
#pragma once

#include <vector>

#include "planner/model/profile.h"

namespace deft::planner {

// costs[i]: seconds an all-reduce of bucket i takes on the one link.

// Everything after backward.
double time_no_overlap(const Profile& profile, const std::vector<double>& costs);

// First ready first sent, the update waits for all (PyTorch DDP).
double time_ddp(const Profile& profile, const std::vector<double>& costs);

// First ready first sent, forward of a layer waits for its own gradient only (Poseidon).
double time_wfbp(const Profile& profile, const std::vector<double>& costs);

// Best possible order with preemption (ideal ByteScheduler, P3): Jackson's rule, since release
// times and tails order the buckets oppositely. T = max over k of ready_k + sum_{i>=k} c_i + q_k.
double time_optimal(const Profile& profile, const std::vector<double>& costs);

// DeAR: reduce-scatters as gradients become ready, then, after backward and all of them,
// all-gathers in forward order, each needed by its layer only. Both take half of an all-reduce.
double time_dear(const Profile& profile, const std::vector<double>& costs);

// Delay-1, no dependencies inside the iteration: max(F + B, phi C / sum of link speeds).
double time_delayed(const Profile& profile, const std::vector<double>& costs, double speeds,
                    double phi);

}  // namespace deft::planner
