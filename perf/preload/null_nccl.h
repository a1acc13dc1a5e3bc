// SPDX-License-Identifier: Apache-2.0
// The calls of the NCCL that does nothing (null_nccl.c).
#pragma once

#include <cstddef>

#include "deft/abi/nccl.h"

extern "C" {
int ncclGetUniqueId(deft_nccl_unique_id_t* id);
int ncclCommInitRank(deft_nccl_comm_t* comm, int nranks, deft_nccl_unique_id_t id, int rank);
int ncclAllReduce(const void* send, void* receive, std::size_t count, int type, int op,
                  deft_nccl_comm_t comm, deft_cuda_stream_t stream);
}
