// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <cstdint>
#include <vector>

#include "softdev/nccl/socket.h"

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

// The ranks that meet at the `index`-th of `ids` roots, as NCCL deals them out: equal runs, the
// first ones longer by one where it does not divide.
struct RootGroup {
    int first;
    int count;
};
RootGroup root_group(int nranks, int ids, int index);
int root_of_rank(int nranks, int ids, int rank);

// Says hello to the rank's root and gets every rank's control address: from the root where there
// is one, else from neighbour to neighbour. Throws Error: a rank that never came (named), another
// NCCL version, another number of ranks, the same rank twice, a root that is gone.
std::vector<Address> check_in(const std::vector<ncclUniqueId>& ids, int nranks, int rank,
                              const Address& own, const Patience& patience);

// bootstrap_ring.cpp: every rank knows the next one's listener and learns all addresses in
// nranks - 1 rounds. Throws Error naming the neighbour that does not come.
std::vector<Address> gather_on_ring(int nranks, int rank, uint64_t magic, int listener,
                                    const Address& next, const Address& own,
                                    const Patience& patience);

}  // namespace softdev::nccl
