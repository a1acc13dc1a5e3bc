// SPDX-License-Identifier: Apache-2.0
// The measured systems as plans for the simulator: six constants for all models, links, methods and
// numbers of GPUs.
#pragma once

#include "perf/anchors/jobs.h"
#include "planner/model/fabric.h"

namespace deft::anchors {

// None is bound to a row, a model or, but for the rates, to a link. What stands here is what one
// would expect before any row is seen: fit() starts there.
struct Constants {
    double wire = 1.2e9;    // 10GbE between nodes: bytes per second of each rank's ring
    double node = 6e9;      // over PCIe inside a node, which is slower than 100 Gb InfiniBand
    double hop = 10e-6;     // seconds per ring step, most of which are inside nodes
    double message = 1e-4;  // seconds a message of Horovod's: negotiation without its cache, launch
    double launch = 1e-5;   // seconds of host to start a kernel of the optimizer
    double module = 5e-3;   // ByteScheduler: seconds of host per module with parameters

    static constexpr int kCount = 6;
    double& at(int i) {
        double* const fields[] = {&wire, &node, &hop, &message, &launch, &module};
        return *fields[i];
    }
};

// What a method sends over: Horovod's methods a message for each tensor or group. ByteScheduler
// runs on Horovod's own fusion buffer (its script leaves that at 64 MB), so its many small messages
// travel together and none pays a start-up.
planner::Fabric link_of(const Constants& constants, int link, int method, int gpus);

// The job as Horovod runs it: the host waits for the last sum and starts the optimizer's kernels
// only then, so that their launches are not hidden any more.
planner::Profile profile_of(const Job& job, const Constants& constants);

// Simulated seconds per iteration.
double system_seconds(const Job& job, const Constants& constants, int link, int method, int gpus);

// The same for a row; indices as in ddl_benchmarks.h.
double simulated(const Constants& constants, int model, int link, int method, int size);

}  // namespace deft::anchors
