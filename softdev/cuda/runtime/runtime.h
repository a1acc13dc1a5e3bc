// SPDX-License-Identifier: Apache-2.0
// The runtime API on top of the driver API: same streams, events and memory. It adds the implicit
// primary context, the last error of each thread, and kernels by the addresses that nvcc's host
// code registers.
#pragma once

#pragma GCC visibility push(default)
#include <cuda_runtime_api.h>
#pragma GCC visibility pop

#include "softdev/cuda/softdev.h"

#define SOFTDEV_RUNTIME extern "C" __attribute__((visibility("default")))

namespace softdev::runtime {

struct ThreadState {
    int device = 0;
    cudaError_t last_error = cudaSuccess;
    bool per_thread_default = false;  ///< in a _ptsz or _ptds call: stream 0 is the thread's own
};
ThreadState& thread_state();

/// The result as the runtime's error, which becomes the thread's last one. The numbers are the
/// same.
cudaError_t finish(CUresult result);
cudaError_t finish(cudaError_t result);

/// Makes the thread's device current unless a context is.
CUresult ensure_context();

/// The driver's handle for a stream argument.
CUstream stream_of(cudaStream_t stream);

class PerThreadDefault {
public:
    PerThreadDefault() { thread_state().per_thread_default = true; }
    ~PerThreadDefault() { thread_state().per_thread_default = false; }
    PerThreadDefault(const PerThreadDefault&) = delete;
    PerThreadDefault& operator=(const PerThreadDefault&) = delete;
};

/// Runs a driver call in the implicit context.
template <typename F>
cudaError_t in_context(F f) {
    const CUresult ready = ensure_context();
    return finish(ready != CUDA_SUCCESS ? ready : f());
}

}  // namespace softdev::runtime
