// SPDX-License-Identifier: Apache-2.0
// A module linked to NCCL: a shared library that a program opens, as Python opens an extension.
#include "tests/system/shim/nccl/user.h"

#ifndef CALLS_ONLY  // no address of a function is taken
extern "C" __attribute__((visibility("default"))) void user_run(int iterations, const char* label) {
    run_job({&ncclGetVersion, &ncclGetUniqueId, &ncclGetErrorString, &ncclCommInitRank,
             &ncclAllReduce, &ncclBcast, &ncclCommDestroy},
            iterations, label);
}
#endif

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

// Their last act is the call: the compiler makes it a jump, and NCCL returns to the module's
// caller.
extern "C" __attribute__((visibility("default"))) int user_group_start() {
    return ncclGroupStart();
}

extern "C" __attribute__((visibility("default"))) int user_group_end() {
    return ncclGroupEnd();
}

extern "C" __attribute__((visibility("default"))) int user_destroy(ncclComm_t comm) {
    return ncclCommDestroy(comm);
}
