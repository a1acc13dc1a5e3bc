// SPDX-License-Identifier: Apache-2.0
// Other ways than the usual one in which a test job makes its communicator and its calls.
#pragma once

#include <cuda.h>
#include <nccl.h>
#include <unistd.h>

#include <string>

#include "tests/system/shim/exchange_id.h"

namespace deft::test {

// What a call of a nonblocking communicator comes to. The test's own limit ends a job that never
// hears.
inline int wait_done(int result, ncclComm_t comm) {
    ncclResult_t state = static_cast<ncclResult_t>(result);
    while (state == ncclInProgress) {
        if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) {
            return ncclSystemError;
        }
        ::usleep(50);
    }
    return state;
}

inline int make_nonblocking(ncclComm_t* comm, int rank, int ranks, const std::string& file) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclUniqueId id = exchange_id(rank, file);
    const int result = ncclCommInitRankConfig(comm, ranks, id, rank, &config);
    return wait_done(result, *comm);
}

// Of two ids, each made by another rank.
inline int make_scalable(ncclComm_t* comm, int rank, int ranks, const std::string& file) {
    ncclUniqueId ids[2];
    ids[0] = exchange_id(rank, file);
    ids[1] = exchange_id(rank == 1 ? 0 : 1, file + ".second");
    return ncclCommInitRankScalable(comm, ranks, rank, 2, ids, nullptr);
}

// As frameworks do: an operation that is made for the call and gone behind it, though the call may
// stand in a group that is still open.
inline int all_reduce_doubled(float* at, size_t count, ncclComm_t comm, CUstream stream) {
    float factor = 2;
    ncclRedOp_t doubled = ncclSum;
    int result =
        ncclRedOpCreatePreMulSum(&doubled, &factor, ncclFloat, ncclScalarHostImmediate, comm);
    if (result == ncclSuccess) {
        result = ncclAllReduce(at, at, count, ncclFloat, doubled, comm, stream);
        const int destroyed = ncclRedOpDestroy(doubled, comm);
        result = result != ncclSuccess ? result : destroyed;
    }
    return result;
}

}  // namespace deft::test
