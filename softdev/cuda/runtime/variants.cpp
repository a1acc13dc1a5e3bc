// SPDX-License-Identifier: Apache-2.0
// The names that nvcc uses with --default-stream per-thread: stream 0 is the calling thread's own.
#include "softdev/cuda/runtime/runtime.h"

SOFTDEV_RUNTIME cudaError_t CUDARTAPI __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t,
                                                         cudaStream_t);

#define SOFTDEV_PER_THREAD(name, target, parameters, arguments) \
    SOFTDEV_RUNTIME cudaError_t CUDARTAPI name parameters {     \
        const softdev::runtime::PerThreadDefault per_thread;    \
        return target arguments;                                \
    }

// clang-format off
SOFTDEV_PER_THREAD(cudaMemcpyAsync_ptsz, cudaMemcpyAsync, (void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream), (dst, src, count, kind, stream))
SOFTDEV_PER_THREAD(cudaMemcpyPeerAsync_ptsz, cudaMemcpyPeerAsync, (void *dst, int dstDevice, const void *src, int srcDevice, size_t count, cudaStream_t stream), (dst, dstDevice, src, srcDevice, count, stream))
SOFTDEV_PER_THREAD(cudaMemsetAsync_ptsz, cudaMemsetAsync, (void *devPtr, int value, size_t count, cudaStream_t stream), (devPtr, value, count, stream))
SOFTDEV_PER_THREAD(cudaStreamGetPriority_ptsz, cudaStreamGetPriority, (cudaStream_t hStream, int *priority), (hStream, priority))
SOFTDEV_PER_THREAD(cudaStreamGetFlags_ptsz, cudaStreamGetFlags, (cudaStream_t hStream, unsigned int *flags), (hStream, flags))
SOFTDEV_PER_THREAD(cudaStreamGetId_ptsz, cudaStreamGetId, (cudaStream_t hStream, unsigned long long *streamId), (hStream, streamId))
SOFTDEV_PER_THREAD(cudaStreamWaitEvent_ptsz, cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned int flags), (stream, event, flags))
SOFTDEV_PER_THREAD(cudaStreamQuery_ptsz, cudaStreamQuery, (cudaStream_t stream), (stream))
SOFTDEV_PER_THREAD(cudaStreamSynchronize_ptsz, cudaStreamSynchronize, (cudaStream_t stream), (stream))
SOFTDEV_PER_THREAD(cudaStreamIsCapturing_ptsz, cudaStreamIsCapturing, (cudaStream_t stream, enum cudaStreamCaptureStatus *pCaptureStatus), (stream, pCaptureStatus))
SOFTDEV_PER_THREAD(cudaStreamBeginCapture_ptsz, cudaStreamBeginCapture, (cudaStream_t stream, enum cudaStreamCaptureMode mode), (stream, mode))
SOFTDEV_PER_THREAD(cudaStreamEndCapture_ptsz, cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t *pGraph), (stream, pGraph))
SOFTDEV_PER_THREAD(cudaStreamGetCaptureInfo_ptsz, cudaStreamGetCaptureInfo, (cudaStream_t stream, enum cudaStreamCaptureStatus *captureStatus_out, unsigned long long *id_out, cudaGraph_t *graph_out, const cudaGraphNode_t **dependencies_out, const cudaGraphEdgeData **edgeData_out, size_t *numDependencies_out), (stream, captureStatus_out, id_out, graph_out, dependencies_out, edgeData_out, numDependencies_out))
SOFTDEV_PER_THREAD(cudaEventRecord_ptsz, cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))
SOFTDEV_PER_THREAD(cudaEventRecordWithFlags_ptsz, cudaEventRecordWithFlags, (cudaEvent_t event, cudaStream_t stream, unsigned int flags), (event, stream, flags))
SOFTDEV_PER_THREAD(cudaLaunchHostFunc_ptsz, cudaLaunchHostFunc, (cudaStream_t stream, cudaHostFn_t fn, void *userData), (stream, fn, userData))
SOFTDEV_PER_THREAD(cudaMallocAsync_ptsz, cudaMallocAsync, (void **devPtr, size_t size, cudaStream_t hStream), (devPtr, size, hStream))
SOFTDEV_PER_THREAD(cudaFreeAsync_ptsz, cudaFreeAsync, (void *devPtr, cudaStream_t hStream), (devPtr, hStream))
SOFTDEV_PER_THREAD(cudaGraphLaunch_ptsz, cudaGraphLaunch, (cudaGraphExec_t graphExec, cudaStream_t stream), (graphExec, stream))
SOFTDEV_PER_THREAD(cudaLaunchKernel_ptsz, cudaLaunchKernel, (const void *func, dim3 gridDim, dim3 blockDim, void **args, size_t sharedMem, cudaStream_t stream), (func, gridDim, blockDim, args, sharedMem, stream))
SOFTDEV_PER_THREAD(cudaLaunchKernelExC_ptsz, cudaLaunchKernelExC, (const cudaLaunchConfig_t *config, const void *func, void **args), (config, func, args))
SOFTDEV_PER_THREAD(cudaMemcpy_ptds, cudaMemcpy, (void *dst, const void *src, size_t count, enum cudaMemcpyKind kind), (dst, src, count, kind))
SOFTDEV_PER_THREAD(cudaMemset_ptds, cudaMemset, (void *devPtr, int value, size_t count), (devPtr, value, count))
SOFTDEV_PER_THREAD(__cudaLaunchKernel_ptsz, __cudaLaunchKernel, (cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream), (kernel, grid, block, arguments, shared, stream))
// clang-format on
