// SPDX-License-Identifier: Apache-2.0
// Leave one model out: constants fitted to one model's rows, judged on the other's.
#pragma once

#include <array>

#include "perf/anchors/ddl_benchmarks.h"

namespace deft::anchors {

// Rate, ring step and contention belong to a link and hold for every method; what a method pays on
// the host, for a message and for a tensor, holds for every link. 16 constants for 24 rows.
struct SharedConstants {
    struct OfLink {
        double rate = 1e9;      // bytes per second of each rank's ring
        double hop = 0;         // seconds per ring step
        double contention = 0;  // compute takes (1 + this) times as long while the link is busy
        double penalty = 0;     // transfers take (1 + this) times as long while compute runs
    };
    struct OfMethod {
        double framework = 0;    // seconds of compute lost per tensor
        double per_message = 0;  // seconds per message
    };
    std::array<OfLink, kLinks> links;
    std::array<OfMethod, kMethods> methods;

    static constexpr int kCount = 4 * kLinks + 2 * kMethods;
    double& at(int i);
};

// Simulated seconds per iteration of one row; indices as in ddl_benchmarks.h.
double simulated(const SharedConstants& constants, int link, int model, int method, int size);

// Deterministic: annealing from several random points, on the rows of one model.
SharedConstants fit_shared(int model);

// Of one link: what is simulated with the constants of the other model.
struct LeftOut {
    double error = 0;  // geometric mean of the larger of simulated / measured and its inverse, - 1
    int pairs = 0;     // of methods that were measured 2 % or more apart
    int wrong = 0;     // in the wrong order
    double seconds[kModels][kMethods][kSizes] = {};
};
LeftOut left_out(const std::array<SharedConstants, kModels>& fitted_to, int link);

}  // namespace deft::anchors
