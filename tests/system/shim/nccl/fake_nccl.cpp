// SPDX-License-Identifier: Apache-2.0
// A tiny NCCL for the binding tests: no data moves, but every call checks that it was sent to the
// copy that made the communicator. FAKE_VERSION tells the copies apart. Like the real library it
// has each function as strong pncclX and weak ncclX at one address, and makes some of its own calls
// through the PLT, where a preload meets them.
#include <nccl.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

struct ncclComm {
    int version;
    int rank;
    int nranks;
    std::atomic<int> calls;
};

// Calls of this library that came back through the PLT, for the tests to read.
extern "C" __attribute__((visibility("default"))) int fake_nested_broadcasts;
int fake_nested_broadcasts = 0;

// Calls that have come to this copy; each process-wide.
struct FakeCalls {
    int made, group_starts, group_ends, all_reduces, destroyed;
};
extern "C" __attribute__((visibility("default"))) FakeCalls fake_calls;
FakeCalls fake_calls = {};

namespace {

ncclResult_t check(ncclComm_t comm) {
    if (comm == nullptr) {
        return ncclInvalidArgument;
    }
    if (comm->version != FAKE_VERSION) {
        return ncclInternalError;  // a communicator of another copy: the shim forwarded wrongly
    }
    ++comm->calls;
    return ncclSuccess;
}

ncclComm_t make(int rank, int nranks) {
    auto* const comm = static_cast<ncclComm*>(std::calloc(1, sizeof(ncclComm)));
    comm->version = FAKE_VERSION;
    comm->rank = rank;
    comm->nranks = nranks;
    return comm;
}

}  // namespace

extern "C" {
#define EXPORT __attribute__((visibility("default")))
// gcc warns where an alias lacks an attribute of its target; clang takes this one for an exception
// specification.
#ifdef __clang__
#define ALIAS(name) __attribute__((visibility("default"), weak, alias("p" #name)))
#else
#define ALIAS(name) __attribute__((visibility("default"), weak, alias("p" #name), nothrow))
#endif

EXPORT ncclResult_t pncclGetVersion(int* version) {
    *version = FAKE_VERSION;
    return ncclSuccess;
}
ALIAS(ncclGetVersion) ncclResult_t ncclGetVersion(int*);

EXPORT ncclResult_t pncclGetUniqueId(ncclUniqueId* id) {
    std::memset(id, 0, sizeof(*id));
    std::memcpy(id->internal, "fake", 4);
    return ncclSuccess;
}
ALIAS(ncclGetUniqueId) ncclResult_t ncclGetUniqueId(ncclUniqueId*);

EXPORT const char* pncclGetErrorString(ncclResult_t result) {
    return result == ncclSuccess ? "fake: fine" : "fake: wrong";
}
ALIAS(ncclGetErrorString) const char* ncclGetErrorString(ncclResult_t);

EXPORT ncclResult_t pncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
    if (std::memcmp(id.internal, "fake", 4) != 0 || rank < 0 || rank >= nranks) {
        return ncclInvalidArgument;
    }
    ++fake_calls.made;
    *comm = make(rank, nranks);
    return ncclSuccess;
}
ALIAS(ncclCommInitRank) ncclResult_t ncclCommInitRank(ncclComm_t*, int, ncclUniqueId, int);

EXPORT ncclResult_t pncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank,
                                            ncclConfig_t* config) {
    if (config != nullptr && config->blocking == 0) {
        const ncclResult_t result = pncclCommInitRank(comm, nranks, id, rank);
        return result == ncclSuccess ? ncclInProgress : result;
    }
    return pncclCommInitRank(comm, nranks, id, rank);
}
ALIAS(ncclCommInitRankConfig)
ncclResult_t ncclCommInitRankConfig(ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*);

EXPORT ncclResult_t pncclCommInitAll(ncclComm_t* comms, int ndev, const int*) {
    ncclUniqueId id;
    if (ncclGetUniqueId(&id) != ncclSuccess) {  // through the PLT, as NCCL does
        return ncclInternalError;
    }
    for (int rank = 0; rank < ndev; ++rank) {
        comms[rank] = make(rank, ndev);
    }
    return ncclSuccess;
}
ALIAS(ncclCommInitAll) ncclResult_t ncclCommInitAll(ncclComm_t*, int, const int*);

EXPORT ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int, ncclComm_t* child,
                                   ncclConfig_t*) {
    const ncclResult_t result = check(comm);
    *child = color == NCCL_SPLIT_NOCOLOR || result != ncclSuccess ? nullptr : make(0, 1);
    return result;
}
ALIAS(ncclCommSplit)
ncclResult_t ncclCommSplit(ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*);

EXPORT ncclResult_t pncclCommDestroy(ncclComm_t comm) {
    ++fake_calls.destroyed;
    const ncclResult_t result = check(comm);
    if (result == ncclSuccess) {
        comm->version = 0;
        std::free(comm);
    }
    return result;
}
ALIAS(ncclCommDestroy) ncclResult_t ncclCommDestroy(ncclComm_t);
EXPORT ncclResult_t pncclCommAbort(ncclComm_t comm) {
    return pncclCommDestroy(comm);
}
ALIAS(ncclCommAbort) ncclResult_t ncclCommAbort(ncclComm_t);
EXPORT ncclResult_t pncclCommFinalize(ncclComm_t comm) {
    return check(comm);
}
ALIAS(ncclCommFinalize) ncclResult_t ncclCommFinalize(ncclComm_t);

EXPORT ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
    *error = ncclSuccess;
    return check(comm);
}
ALIAS(ncclCommGetAsyncError) ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t*);
EXPORT ncclResult_t pncclCommCount(const ncclComm_t comm, int* count) {
    *count = comm->nranks;
    return check(comm);
}
ALIAS(ncclCommCount) ncclResult_t ncclCommCount(const ncclComm_t, int*);
EXPORT ncclResult_t pncclCommUserRank(const ncclComm_t comm, int* rank) {
    *rank = comm->rank;
    return check(comm);
}
ALIAS(ncclCommUserRank) ncclResult_t ncclCommUserRank(const ncclComm_t, int*);
EXPORT ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int* device) {
    *device = 0;
    return check(comm);
}
ALIAS(ncclCommCuDevice) ncclResult_t ncclCommCuDevice(const ncclComm_t, int*);

EXPORT ncclResult_t pncclGroupStart() {
    ++fake_calls.group_starts;
    return ncclSuccess;
}
ALIAS(ncclGroupStart) ncclResult_t ncclGroupStart();
EXPORT ncclResult_t pncclGroupEnd() {
    ++fake_calls.group_ends;
    return ncclSuccess;
}
ALIAS(ncclGroupEnd) ncclResult_t ncclGroupEnd();

EXPORT ncclResult_t pncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t,
                                   ncclComm_t comm, cudaStream_t) {
    ++fake_calls.all_reduces;
    ncclResult_t error = ncclSuccess;
    if (comm != nullptr && ncclCommGetAsyncError(comm, &error) != ncclSuccess) {  // through the PLT
        return ncclInternalError;
    }
    return check(comm);
}
ALIAS(ncclAllReduce)
ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                           cudaStream_t);

EXPORT ncclResult_t pncclBroadcast(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t comm,
                                   cudaStream_t) {
    ++fake_nested_broadcasts;
    return check(comm);
}
ALIAS(ncclBroadcast)
ncclResult_t ncclBroadcast(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t,
                           cudaStream_t);

EXPORT ncclResult_t pncclBcast(void* buffer, size_t count, ncclDataType_t type, int root,
                               ncclComm_t comm, cudaStream_t stream) {
    return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);  // through the PLT
}
ALIAS(ncclBcast)
ncclResult_t ncclBcast(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);

}  // extern "C"
