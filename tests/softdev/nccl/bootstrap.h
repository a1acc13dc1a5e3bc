// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <cstdint>
#include <vector>

#include "tests/softdev/nccl/socket.h"

namespace softdev::nccl {

// The part of the unique id that NCCL reads; the rest is zero, or belongs to whoever wrote it
// there.
struct IdHead {
    uint64_t magic;
    Address root;
};
static_assert(sizeof(IdHead) == 36 || sizeof(IdHead) == 40);

IdHead read_id(const ncclUniqueId& id);

// Makes an id. Without NCCL_COMM_ID a thread of this process then waits for the ranks that bring
// it.
ncclUniqueId make_unique_id();
// With NCCL_COMM_ID nobody listens until rank 0 starts: this does it. Otherwise nothing.
void start_root_for_rank0(const ncclUniqueId& id);
bool id_from_environment();

// Says hello to the root and gets every rank's control address. Throws Error: a rank that never
// came (named), another NCCL version, another number of ranks, the same rank twice, a root that is
// gone.
std::vector<Address> check_in(const ncclUniqueId& id, int nranks, int rank, const Address& own,
                              const Patience& patience);
// Tells the root of an id that is not used to check in (ncclCommInitRankScalable) that it may end.
void dismiss_root(const ncclUniqueId& id, const Patience& patience);

}  // namespace softdev::nccl
