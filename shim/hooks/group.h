// SPDX-License-Identifier: Apache-2.0
// The calling thread's group: its depth, and the communicators it is making, whose handles are
// valid only when the outermost ncclGroupEnd has returned.
#pragma once

#include <cstdint>

#include "shim/agreement/council.h"
#include "shim/nccl/nccl_table.h"
#include "shim/nccl/registry.h"

namespace deft::group {

// A communicator on its way.
struct Pending {
    deft_nccl_comm_t* where;
    const NcclTable* table;
    std::uint64_t hash;
    int rank;    // -1 unknown
    int nranks;  // -1 unknown
    bool watched;
    agreement::CouncilRef council;    // joined before the library was asked
    agreement::CouncilRef parent;     // of a child without an id: its parent's
    std::uint32_t parent_serial = 0;  // in the registry; 0: none
    const char* network = nullptr;    // as in the registry
    bool shares = false;
    const ConfigChoices* choices = nullptr;
    std::int64_t began_ns = 0;
};

unsigned depth() noexcept;
// Enters one level; the outermost is the group of this library. Null: which one is not known yet.
void start(const NcclTable* library) noexcept;
// True if a group has been started that no library has heard of.
bool waits() noexcept;
// Tells this library of all its levels. NCCL does nothing at a start that could come too late: the
// calls that follow are what matters.
void begin(const NcclTable* library) noexcept;
const NcclTable* library() noexcept;
// Leaves one level; true if that was the outermost.
bool end() noexcept;

// Notes a communicator made inside a group; outside one, registers it now if `result` allows.
// Returns the result for the job: `result`, unless DEFT_REQUIRE=1 turns it into an error (then the
// communicator is aborted).
int made(const Pending& pending, int result) noexcept;
// After the outermost end with this result: registers what is pending. A group that failed drops
// it. Returns the result for the job, as made() does.
int settle(int result) noexcept;
// Registers a communicator. Empty if there is no room for it.
CommunicatorPin enter(const Pending& pending, deft_nccl_comm_t comm) noexcept;

}  // namespace deft::group
