/* SPDX-License-Identifier: Apache-2.0 */
/* An NCCL that does nothing, so that only the hook's own time is left to measure. */
#include <stdlib.h>
#include <string.h>

#include "deft/abi/nccl.h"

#define EXPORT __attribute__((visibility("default")))

struct place {
    int rank;
    int nranks;
};

EXPORT int pncclGetVersion(int* version) {
    *version = 22809;
    return DEFT_NCCL_SUCCESS;
}
EXPORT int ncclGetUniqueId(deft_nccl_unique_id_t* id) {
    memset(id, 0, sizeof(*id));
    return DEFT_NCCL_SUCCESS;
}
EXPORT int ncclCommInitRank(deft_nccl_comm_t* comm, int nranks, deft_nccl_unique_id_t id,
                            int rank) {
    (void)id;
    struct place* const place = malloc(sizeof(*place));
    if (place == NULL) {
        return DEFT_NCCL_SYSTEM_ERROR;
    }
    place->rank = rank;
    place->nranks = nranks;
    *comm = (deft_nccl_comm_t)place;
    return DEFT_NCCL_SUCCESS;
}
EXPORT int pncclCommUserRank(deft_nccl_comm_t comm, int* rank) {
    *rank = ((const struct place*)comm)->rank;
    return DEFT_NCCL_SUCCESS;
}
EXPORT int pncclCommCount(deft_nccl_comm_t comm, int* count) {
    *count = ((const struct place*)comm)->nranks;
    return DEFT_NCCL_SUCCESS;
}
EXPORT int pncclCommCuDevice(deft_nccl_comm_t comm, int* device) {
    (void)comm;
    *device = 0;
    return DEFT_NCCL_SUCCESS;
}
EXPORT int ncclAllReduce(const void* send, void* receive, size_t count, int type, int op,
                         deft_nccl_comm_t comm, deft_cuda_stream_t stream) {
    (void)send, (void)receive, (void)count, (void)type, (void)op, (void)comm, (void)stream;
    return DEFT_NCCL_SUCCESS;
}
