// SPDX-License-Identifier: Apache-2.0
// Version, unique id, error texts, memory, groups.
#include <cuda.h>

#include "softdev/nccl/api.h"
#include "softdev/nccl/bootstrap.h"
#include "softdev/nccl/cuda_check.h"
#include "softdev/nccl/env.h"

using namespace softdev::nccl;

SOFTNCCL_API ncclResult_t pncclGetVersion(int* version) {
    if (version == nullptr) {
        return ncclInvalidArgument;
    }
    *version = nccl_version();
    return ncclSuccess;
}
SOFTNCCL_ALIAS(ncclResult_t, ncclGetVersion, (int*))

SOFTNCCL_API ncclResult_t pncclGetUniqueId(ncclUniqueId* id) {
    return api("GetUniqueId", [&] {
        log_version();
        require_pointer(id, "GetUniqueId", "out");
        *id = make_unique_id();
        return ncclSuccess;
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclGetUniqueId, (ncclUniqueId*))

SOFTNCCL_API const char* pncclGetErrorString(ncclResult_t code) {
    switch (code) {
        case ncclSuccess:
            return "no error";
        case ncclUnhandledCudaError:
            return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
        case ncclSystemError:
            return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
        case ncclInternalError:
            return "internal error - please report this issue to the NCCL developers";
        case ncclInvalidArgument:
            return "invalid argument (run with NCCL_DEBUG=WARN for details)";
        case ncclInvalidUsage:
            return "invalid usage (run with NCCL_DEBUG=WARN for details)";
        case ncclRemoteError:
            return "remote process exited or there was a network error";
        case ncclInProgress:
            return "NCCL operation in progress";
        default:
            // ncclTimeout of nccl.h 2.30.
            return static_cast<int>(code) == 8 && nccl_version() >= 23000 ? "timeout"
                                                                          : "unknown result code";
    }
}
SOFTNCCL_ALIAS(const char*, ncclGetErrorString, (ncclResult_t))

SOFTNCCL_API const char* pncclGetLastError(ncclComm_t) {
    return last_error();
}
SOFTNCCL_ALIAS(const char*, ncclGetLastError, (ncclComm_t))

SOFTNCCL_API void pncclResetDebugInit() {
    log_reset();
}
SOFTNCCL_ALIAS(void, ncclResetDebugInit, ())

SOFTNCCL_API ncclResult_t pncclMemAlloc(void** pointer, size_t bytes) {
    return api("MemAlloc", [&] {
        if (pointer == nullptr || bytes == 0) {
            throw Error(ncclInvalidArgument, "MemAlloc : pointer is NULL or size is 0");
        }
        Communicator(1, 0, {}).use_current_device();
        CUdeviceptr memory = 0;
        cuda_check(cuMemAlloc(&memory, bytes), "ncclMemAlloc");
        *pointer = reinterpret_cast<void*>(memory);
        return ncclSuccess;
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclMemAlloc, (void**, size_t))

SOFTNCCL_API ncclResult_t pncclMemFree(void* pointer) {
    return api("MemFree", [&] {
        if (pointer != nullptr) {
            Communicator(1, 0, {}).use_current_device();
            cuda_check(cuMemFree(reinterpret_cast<CUdeviceptr>(pointer)), "ncclMemFree");
        }
        return ncclSuccess;
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclMemFree, (void*))

SOFTNCCL_API ncclResult_t pncclGroupStart() {
    group_start();
    return ncclSuccess;
}
SOFTNCCL_ALIAS(ncclResult_t, ncclGroupStart, ())

SOFTNCCL_API ncclResult_t pncclGroupEnd() {
    return api("GroupEnd", [] { return group_end(); });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclGroupEnd, ())

SOFTNCCL_API ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t* info) {
    return api("GroupSimulateEnd", [&] { return group_simulate_end(info); });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t*))
