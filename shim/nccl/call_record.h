// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/collective_choice.h"
#include "shim/nccl/call.h"

namespace deft {

// One call as the hook saw it.
struct CallRecord {
    static constexpr std::uint64_t kNoOrdinal = ~std::uint64_t{0};

    std::uint64_t comm_hash = 0;
    std::uint64_t count = 0;
    std::int64_t issued_ns = 0;
    std::uint64_t stream = 0;
    std::uint64_t buffer = 0;            // where the result goes; differs between ranks
    std::uint64_t group = 0;             // number of the NCCL group it was in; 0: none
    std::uint64_t mark = 0;              // as the call's: SumMark
    std::uint64_t ordinal = kNoOrdinal;  // of the communicator's calls that may carry gradients
    std::uint64_t tuned = kNoOrdinal;    // of those that may be tuned
    std::uint64_t order = 0;             // that it was carried out by, as in tuning::Pick
    int entry = -1;
    int sample = -1;
    CollectiveOffer offer;  // what NCCL had for it
    std::uint32_t comm_serial = 0;
    int nranks = -1;
    int device = -1;
    int op = -1;
    int root = -1;
    int events = -1;  // pair of the device's event pool that times it; -1: not timed
    Function function = Function::AllReduce;
    std::uint8_t type = 0;
    bool in_place = false;
};

}  // namespace deft
