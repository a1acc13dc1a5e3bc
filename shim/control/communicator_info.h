// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>

#include "shim/nccl/config_choices.h"
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
    // Numbered calls it has had before anything was planned, by Series.
    std::array<std::uint64_t, kSeries> calls{};
    std::uint64_t tuned_calls = 0;  // and calls that may be tuned
    const char* network = nullptr;  // the name that its network was chosen by; null: NCCL chose
    tuning::JobLimits limits;       // as the job had said by then
    ConfigChoices choices;          // of its configuration
    std::int64_t made_in_ns = 0;    // how long it took to make it, ranks that came late included

    // How long a lane may take to open, to connect, and for its trials: twice as long as the
    // communicator took, which has as many ranks, within reason.
    std::chrono::milliseconds lane_deadline() const {
        using std::chrono::milliseconds;
        const milliseconds twice(2 * made_in_ns / 1'000'000);
        return std::clamp<milliseconds>(twice, std::chrono::minutes(1), std::chrono::minutes(10));
    }
    // Of a whole staging, but for the time in which the job comes to the call of the trials.
    std::chrono::milliseconds stage_deadline() const { return 3 * lane_deadline(); }
};

}  // namespace deft::director
