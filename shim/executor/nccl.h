// SPDX-License-Identifier: Apache-2.0
// The few functions of NCCL that lanes are driven with.
#pragma once

#include "deft/abi/nccl.h"

namespace deft::executor {

// Taken from the table of the library that made the job's communicator: a lane must belong to the
// same one. Null where the library has no such function; AllReduce, CommInitRank, CommDestroy and
// CommAbort must be there.
struct Nccl {
    int (*CommInitRank)(deft_nccl_comm_t*, int, deft_nccl_unique_id_t, int) = nullptr;
    int (*CommInitRankConfig)(deft_nccl_comm_t*, int, deft_nccl_unique_id_t, int,
                              deft_nccl_config_t*) = nullptr;
    int (*CommDestroy)(deft_nccl_comm_t) = nullptr;
    int (*CommAbort)(deft_nccl_comm_t) = nullptr;
    int (*CommGetAsyncError)(deft_nccl_comm_t, int*) = nullptr;
    int (*AllReduce)(const void*, void*, size_t, int, int, deft_nccl_comm_t,
                     deft_cuda_stream_t) = nullptr;
    int (*ReduceScatter)(const void*, void*, size_t, int, int, deft_nccl_comm_t,
                         deft_cuda_stream_t) = nullptr;
    int (*AllGather)(const void*, void*, size_t, int, deft_nccl_comm_t,
                     deft_cuda_stream_t) = nullptr;
    int (*GroupStart)() = nullptr;
    int (*GroupSimulateEnd)(deft_nccl_sim_info_t*) = nullptr;
    const char* (*GetErrorString)(int) = nullptr;
    int version = 0;  // 22809

    // From anything with members of these names, such as NcclTable.
    template <typename Table>
    static Nccl from(const Table& table) {
        return {table.CommInitRank,     table.CommInitRankConfig, table.CommDestroy,
                table.CommAbort,        table.CommGetAsyncError,  table.AllReduce,
                table.ReduceScatter,    table.AllGather,          table.GroupStart,
                table.GroupSimulateEnd, table.GetErrorString,     table.version};
    }
    bool moves_shards() const { return ReduceScatter != nullptr && AllGather != nullptr; }
    bool complete() const {
        return CommInitRank != nullptr && CommDestroy != nullptr && CommAbort != nullptr &&
               AllReduce != nullptr;
    }
    const char* text(int result) const {
        return GetErrorString != nullptr ? GetErrorString(result) : "error";
    }
};

}  // namespace deft::executor
