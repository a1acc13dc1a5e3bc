// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "planner/model/fabric.h"
#include "shim/control/communicator_info.h"
#include "shim/executor/lanes.h"

namespace deft::director {

// What decides whether lanes can be made beside a job. Versions as NCCL and CUDA number them
// (22809, 12030); variables of the environment, null where they are not set.
struct Surroundings {
    int nccl_version = 0;
    int driver_version = 0;
    const char* order_implicit = nullptr;   // NCCL_LAUNCH_ORDER_IMPLICIT
    const char* race_fatal = nullptr;       // NCCL_LAUNCH_RACE_FATAL
    const char* max_connections = nullptr;  // CUDA_DEVICE_MAX_CONNECTIONS
    const char* comm_blocking = nullptr;    // NCCL_COMM_BLOCKING

    static Surroundings process(int nccl_version);
};

// Why they cannot; empty: they can.
std::string why_no_lanes(const Surroundings& around);

// The networks that DEFT_LANES names for lanes beside the communicator's own, as far as they can be
// had; a WARN says why they cannot. Reads NCCL_NET: on the application's thread and after NCCL's
// own start, which may set it from nccl.conf.
std::vector<std::string> networks_to_use(const CommunicatorInfo& info);

// The networks that lanes use beside the job's own, which was chosen by the name `own` (null: NCCL
// chose), from those that DEFT_LANES names. `deft`: NCCL's IB carries the job and deft has links
// apart from it. Pure.
std::vector<std::string> networks_beside(std::vector<std::string> networks, const char* own,
                                         bool deft);

// What lanes were measured with, as links: the job's own network first, then the others. Pure.
std::vector<planner::Link> measured_links(const std::vector<executor::LaneSpeed>& speeds,
                                          const std::vector<std::string>& others);

// The least that lanes of this process have taken for a byte on a network, among so many ranks, and
// now `per_byte`. Lanes of several communicators are timed at the same time, and share it. The
// shim's background thread.
double fastest_per_byte(const std::string& network, int nranks, double per_byte);

}  // namespace deft::director
