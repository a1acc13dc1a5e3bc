// SPDX-License-Identifier: Apache-2.0
// The calling thread's group: its depth, and the communicators it is making, whose handles are
// valid only when the outermost ncclGroupEnd has returned.
#pragma once

#include <cstdint>

#include "shim/interpose/nccl_table.h"

namespace deft::group {

// A communicator on its way.
struct Pending {
    deft_nccl_comm_t* where;
    const NcclTable* table;
    std::uint64_t hash;
    int rank;    // -1 unknown
    int nranks;  // -1 unknown
    bool watched;
};

unsigned depth() noexcept;
void start() noexcept;
// Leaves one level; true if that was the outermost.
bool end() noexcept;

// Notes a communicator made inside a group; outside one, registers it now if `result` allows.
void made(const Pending& pending, int result) noexcept;
// After the outermost end with this result: registers what is pending. A group that failed drops
// it.
void settle(int result) noexcept;

}  // namespace deft::group
