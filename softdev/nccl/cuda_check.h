// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include "softdev/nccl/error.h"

#pragma weak cuGetErrorString
#pragma weak cuStreamIsCapturing

namespace softdev::nccl {

inline const char* cuda_text(CUresult result) {
    const char* text = nullptr;
    if (cuGetErrorString == nullptr || cuGetErrorString(result, &text) != CUDA_SUCCESS ||
        text == nullptr) {
        return "unknown error";
    }
    return text;
}

inline void cuda_check(CUresult result, const char* what) {
    if (result != CUDA_SUCCESS) {
        throw Error(ncclUnhandledCudaError,
                    format("Cuda failure '%s' in %s", cuda_text(result), what));
    }
}

inline bool capturing(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (cuStreamIsCapturing != nullptr) {
        cuda_check(cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing");
    }
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace softdev::nccl
