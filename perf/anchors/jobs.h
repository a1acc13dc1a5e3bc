// SPDX-License-Identifier: Apache-2.0
// The jobs of ddl-benchmarks, from their public scripts: what they compute, and with which
// optimizer.
#pragma once

#include "perf/anchors/ddl_benchmarks.h"
#include "planner/model/profile.h"

namespace deft::anchors {

struct Job {
    planner::Profile tensors;  // a bucket for each tensor; compute without the optimizer's
    // Seconds of GPU that the optimizer takes after the last sum, of what one GPU was measured to
    // take: its passes over the parameters at the card's memory rate.
    double optimizer = 0;
    double launches = 0;  // kernels that one step of the optimizer starts
    double modules = 0;   // that have parameters of their own
};

const Job& job(int model);

}  // namespace deft::anchors
