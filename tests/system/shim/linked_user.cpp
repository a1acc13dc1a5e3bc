// SPDX-License-Identifier: Apache-2.0
// A module linked to NCCL: a shared library that a program opens, as Python opens an extension.
#include "tests/system/shim/user.h"

extern "C" __attribute__((visibility("default"))) void user_run(int iterations, const char* label) {
    run_job({&ncclGetVersion, &ncclGetUniqueId, &ncclGetErrorString, &ncclCommInitRank,
             &ncclAllReduce, &ncclBcast, &ncclCommDestroy},
            iterations, label);
}

// One call on a communicator made by somebody else.
extern "C" __attribute__((visibility("default"))) int user_all_reduce(ncclComm_t comm) {
    static float buffer[16];
    return ncclAllReduce(buffer, buffer, 16, ncclFloat, ncclSum, comm, nullptr);
}

extern "C" __attribute__((visibility("default"))) int user_make(ncclComm_t* comm) {
    ncclUniqueId id{};
    const int result = ncclGetUniqueId(&id);
    return result != ncclSuccess ? result : ncclCommInitRank(comm, 1, id, 0);
}
