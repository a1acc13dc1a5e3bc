// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "shim/nccl/registry.h"
#include "shim/tuning/job_limits.h"

namespace deft::director {

// What a director is told about its communicator once that is ready.
struct CommunicatorInfo {
    const Communicator* entry = nullptr;  // may be another communicator's by now
    deft_nccl_comm_t comm = nullptr;
    const NcclTable* table = nullptr;
    std::uint32_t serial = 0;
    std::uint64_t hash = 0;  // equal on all its ranks; 0: unknown
    int rank = 0;
    int nranks = 0;
    int device = 0;
    std::uint64_t calls = 0;        // gradient calls it has had before anything was planned
    std::uint64_t tuned_calls = 0;  // and calls that may be tuned
    const char* network = nullptr;  // the name that its network was chosen by; null: NCCL chose
    tuning::JobLimits limits;       // as the job had said by then
};

}  // namespace deft::director
