// SPDX-License-Identifier: Apache-2.0
// Other names of the same functions: those of the per-thread default stream (_ptsz, _ptds), where
// NULL means the calling thread's stream, and the plain names that cuda.h maps to newer ones. The
// oldest ABI's 32-bit device pointers are not offered: the plain names take today's parameters.
#include "softdev/cuda/thread.h"

#undef cuCtxDestroy
#undef cuCtxPopCurrent
#undef cuCtxPushCurrent
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuDevicePrimaryCtxSetFlags
#undef cuDeviceTotalMem
#undef cuEventDestroy
#undef cuEventElapsedTime
#undef cuMemAlloc
#undef cuMemAllocHost
#undef cuMemFree
#undef cuMemGetAddressRange
#undef cuMemGetInfo
#undef cuMemHostGetDevicePointer
#undef cuMemHostRegister
#undef cuIpcOpenMemHandle
#undef cuMemcpy2D
#undef cuMemcpy2DAsync
#undef cuMemcpy2DUnaligned
#undef cuMemcpyDtoD
#undef cuMemcpyDtoDAsync
#undef cuMemcpyDtoH
#undef cuMemcpyDtoHAsync
#undef cuMemcpyHtoD
#undef cuMemcpyHtoDAsync
#undef cuMemsetD16
#undef cuMemsetD32
#undef cuMemsetD8
#undef cuStreamBeginCapture
#undef cuStreamDestroy
#undef cuStreamGetCaptureInfo
#undef cuStreamUpdateCaptureDependencies
#undef cuStreamWaitValue32
#undef cuStreamWaitValue64
#undef cuStreamWriteValue32
#undef cuStreamWriteValue64

namespace {

class PerThreadDefault {
public:
    PerThreadDefault() { softdev::thread_state().per_thread_default = true; }
    ~PerThreadDefault() { softdev::thread_state().per_thread_default = false; }
    PerThreadDefault(const PerThreadDefault&) = delete;
    PerThreadDefault& operator=(const PerThreadDefault&) = delete;
};

}  // namespace

#define SOFTDEV_PER_THREAD(name, target, parameters, arguments) \
    SOFTDEV_EXPORT CUresult CUDAAPI name parameters {           \
        const PerThreadDefault per_thread;                      \
        return target arguments;                                \
    }
#define SOFTDEV_OLD_NAME(name, target, parameters, arguments) \
    SOFTDEV_EXPORT CUresult CUDAAPI name parameters {         \
        return target arguments;                              \
    }

// clang-format off
SOFTDEV_EXPORT CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream, CUstreamCaptureStatus*, cuuint64_t*);
SOFTDEV_EXPORT CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*,
                                                          const CUgraphNode**, size_t*);
SOFTDEV_EXPORT CUresult CUDAAPI cuStreamUpdateCaptureDependencies(CUstream, CUgraphNode*, size_t, unsigned);

SOFTDEV_PER_THREAD(cuMemcpyAsync_ptsz, cuMemcpyAsync, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream), (dst, src, ByteCount, hStream))
SOFTDEV_PER_THREAD(cuMemcpyPeerAsync_ptsz, cuMemcpyPeerAsync, (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount, CUstream hStream), (dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream))
SOFTDEV_PER_THREAD(cuMemsetD8Async_ptsz, cuMemsetD8Async, (CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream), (dstDevice, uc, N, hStream))
SOFTDEV_PER_THREAD(cuMemsetD16Async_ptsz, cuMemsetD16Async, (CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream), (dstDevice, us, N, hStream))
SOFTDEV_PER_THREAD(cuMemsetD32Async_ptsz, cuMemsetD32Async, (CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream), (dstDevice, ui, N, hStream))
SOFTDEV_PER_THREAD(cuStreamGetPriority_ptsz, cuStreamGetPriority, (CUstream hStream, int *priority), (hStream, priority))
SOFTDEV_PER_THREAD(cuStreamGetId_ptsz, cuStreamGetId, (CUstream hStream, unsigned long long *streamId), (hStream, streamId))
SOFTDEV_PER_THREAD(cuStreamGetFlags_ptsz, cuStreamGetFlags, (CUstream hStream, unsigned int *flags), (hStream, flags))
SOFTDEV_PER_THREAD(cuStreamGetDevice_ptsz, cuStreamGetDevice, (CUstream hStream, CUdevice *device), (hStream, device))
SOFTDEV_PER_THREAD(cuStreamGetCtx_ptsz, cuStreamGetCtx, (CUstream hStream, CUcontext *pctx), (hStream, pctx))
SOFTDEV_PER_THREAD(cuStreamGetCtx_v2_ptsz, cuStreamGetCtx_v2, (CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx), (hStream, pCtx, pGreenCtx))
SOFTDEV_PER_THREAD(cuStreamWaitEvent_ptsz, cuStreamWaitEvent, (CUstream hStream, CUevent hEvent, unsigned int Flags), (hStream, hEvent, Flags))
SOFTDEV_PER_THREAD(cuStreamEndCapture_ptsz, cuStreamEndCapture, (CUstream hStream, CUgraph *phGraph), (hStream, phGraph))
SOFTDEV_PER_THREAD(cuStreamIsCapturing_ptsz, cuStreamIsCapturing, (CUstream hStream, CUstreamCaptureStatus *captureStatus), (hStream, captureStatus))
SOFTDEV_PER_THREAD(cuStreamQuery_ptsz, cuStreamQuery, (CUstream hStream), (hStream))
SOFTDEV_PER_THREAD(cuStreamSynchronize_ptsz, cuStreamSynchronize, (CUstream hStream), (hStream))
SOFTDEV_PER_THREAD(cuEventRecord_ptsz, cuEventRecord, (CUevent hEvent, CUstream hStream), (hEvent, hStream))
SOFTDEV_PER_THREAD(cuEventRecordWithFlags_ptsz, cuEventRecordWithFlags, (CUevent hEvent, CUstream hStream, unsigned int flags), (hEvent, hStream, flags))
SOFTDEV_PER_THREAD(cuLaunchKernel_ptsz, cuLaunchKernel, (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra), (f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream, kernelParams, extra))
SOFTDEV_PER_THREAD(cuLaunchKernelEx_ptsz, cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra), (config, f, kernelParams, extra))
SOFTDEV_PER_THREAD(cuLaunchHostFunc_ptsz, cuLaunchHostFunc, (CUstream hStream, CUhostFn fn, void *userData), (hStream, fn, userData))
SOFTDEV_PER_THREAD(cuGraphInstantiateWithParams_ptsz, cuGraphInstantiateWithParams, (CUgraphExec *phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams), (phGraphExec, hGraph, instantiateParams))
SOFTDEV_PER_THREAD(cuGraphUpload_ptsz, cuGraphUpload, (CUgraphExec hGraphExec, CUstream hStream), (hGraphExec, hStream))
SOFTDEV_PER_THREAD(cuGraphLaunch_ptsz, cuGraphLaunch, (CUgraphExec hGraphExec, CUstream hStream), (hGraphExec, hStream))
SOFTDEV_PER_THREAD(cuMemFreeAsync_ptsz, cuMemFreeAsync, (CUdeviceptr dptr, CUstream hStream), (dptr, hStream))
SOFTDEV_PER_THREAD(cuMemAllocAsync_ptsz, cuMemAllocAsync, (CUdeviceptr *dptr, size_t bytesize, CUstream hStream), (dptr, bytesize, hStream))
SOFTDEV_PER_THREAD(cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyHtoDAsync_v2, (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream), (dstDevice, srcHost, ByteCount, hStream))
SOFTDEV_PER_THREAD(cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyDtoHAsync_v2, (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream), (dstHost, srcDevice, ByteCount, hStream))
SOFTDEV_PER_THREAD(cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyDtoDAsync_v2, (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream), (dstDevice, srcDevice, ByteCount, hStream))
SOFTDEV_PER_THREAD(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture_v2, (CUstream hStream, CUstreamCaptureMode mode), (hStream, mode))
SOFTDEV_PER_THREAD(cuStreamWriteValue32_v2_ptsz, cuStreamWriteValue32_v2, (CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags), (stream, addr, value, flags))
SOFTDEV_PER_THREAD(cuStreamWaitValue32_v2_ptsz, cuStreamWaitValue32_v2, (CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags), (stream, addr, value, flags))
SOFTDEV_PER_THREAD(cuStreamWriteValue64_v2_ptsz, cuStreamWriteValue64_v2, (CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags), (stream, addr, value, flags))
SOFTDEV_PER_THREAD(cuStreamWaitValue64_v2_ptsz, cuStreamWaitValue64_v2, (CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags), (stream, addr, value, flags))
SOFTDEV_PER_THREAD(cuMemcpy_ptds, cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount), (dst, src, ByteCount))
SOFTDEV_PER_THREAD(cuMemcpyPeer_ptds, cuMemcpyPeer, (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount), (dstDevice, dstContext, srcDevice, srcContext, ByteCount))
SOFTDEV_PER_THREAD(cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD_v2, (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount), (dstDevice, srcHost, ByteCount))
SOFTDEV_PER_THREAD(cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH_v2, (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount), (dstHost, srcDevice, ByteCount))
SOFTDEV_PER_THREAD(cuMemcpyDtoD_v2_ptds, cuMemcpyDtoD_v2, (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount), (dstDevice, srcDevice, ByteCount))
SOFTDEV_PER_THREAD(cuMemsetD8_v2_ptds, cuMemsetD8_v2, (CUdeviceptr dstDevice, unsigned char uc, size_t N), (dstDevice, uc, N))
SOFTDEV_PER_THREAD(cuMemsetD16_v2_ptds, cuMemsetD16_v2, (CUdeviceptr dstDevice, unsigned short us, size_t N), (dstDevice, us, N))
SOFTDEV_PER_THREAD(cuMemsetD32_v2_ptds, cuMemsetD32_v2, (CUdeviceptr dstDevice, unsigned int ui, size_t N), (dstDevice, ui, N))
SOFTDEV_PER_THREAD(cuStreamGetCaptureInfo_ptsz, cuStreamGetCaptureInfo, (CUstream hStream, CUstreamCaptureStatus* status, cuuint64_t* id), (hStream, status, id))
SOFTDEV_PER_THREAD(cuStreamGetCaptureInfo_v2_ptsz, cuStreamGetCaptureInfo_v2, (CUstream hStream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies, size_t* count), (hStream, status, id, graph, dependencies, count))
SOFTDEV_PER_THREAD(cuStreamGetCaptureInfo_v3_ptsz, cuStreamGetCaptureInfo_v3, (CUstream hStream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count), (hStream, status, id, graph, dependencies, edges, count))
SOFTDEV_PER_THREAD(cuStreamUpdateCaptureDependencies_ptsz, cuStreamUpdateCaptureDependencies, (CUstream hStream, CUgraphNode* nodes, size_t count, unsigned flags), (hStream, nodes, count, flags))
SOFTDEV_PER_THREAD(cuStreamUpdateCaptureDependencies_v2_ptsz, cuStreamUpdateCaptureDependencies_v2, (CUstream hStream, CUgraphNode* nodes, const CUgraphEdgeData* edges, size_t count, unsigned flags), (hStream, nodes, edges, count, flags))
SOFTDEV_PER_THREAD(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, (CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream), (dptr, bytesize, pool, hStream))
SOFTDEV_PER_THREAD(cuStreamAddCallback_ptsz, cuStreamAddCallback, (CUstream hStream, CUstreamCallback callback, void *userData, unsigned int flags), (hStream, callback, userData, flags))
SOFTDEV_PER_THREAD(cuMemcpy2D_v2_ptds, cuMemcpy2D_v2, (const CUDA_MEMCPY2D *pCopy), (pCopy))
SOFTDEV_PER_THREAD(cuMemcpy2DUnaligned_v2_ptds, cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *pCopy), (pCopy))
SOFTDEV_PER_THREAD(cuMemcpy2DAsync_v2_ptsz, cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *pCopy, CUstream hStream), (pCopy, hStream))

SOFTDEV_OLD_NAME(cuMemcpy2D, cuMemcpy2D_v2, (const CUDA_MEMCPY2D *pCopy), (pCopy))
SOFTDEV_OLD_NAME(cuMemcpy2DUnaligned, cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *pCopy), (pCopy))
SOFTDEV_OLD_NAME(cuMemcpy2DAsync, cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *pCopy, CUstream hStream), (pCopy, hStream))
SOFTDEV_OLD_NAME(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, (CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags), (pdptr, handle, Flags))
SOFTDEV_OLD_NAME(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice dev), (dev))
SOFTDEV_OLD_NAME(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, (CUdevice dev), (dev))
SOFTDEV_OLD_NAME(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2, (CUdevice dev, unsigned int flags), (dev, flags))
SOFTDEV_OLD_NAME(cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t *bytes, CUdevice dev), (bytes, dev))
SOFTDEV_OLD_NAME(cuMemGetInfo, cuMemGetInfo_v2, (size_t *free, size_t *total), (free, total))
SOFTDEV_OLD_NAME(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr *dptr, size_t bytesize), (dptr, bytesize))
SOFTDEV_OLD_NAME(cuMemFree, cuMemFree_v2, (CUdeviceptr dptr), (dptr))
SOFTDEV_OLD_NAME(cuMemGetAddressRange, cuMemGetAddressRange_v2, (CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr), (pbase, psize, dptr))
SOFTDEV_OLD_NAME(cuMemAllocHost, cuMemAllocHost_v2, (void **pp, size_t bytesize), (pp, bytesize))
SOFTDEV_OLD_NAME(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, (CUdeviceptr *pdptr, void *p, unsigned int Flags), (pdptr, p, Flags))
SOFTDEV_OLD_NAME(cuMemHostRegister, cuMemHostRegister_v2, (void *p, size_t bytesize, unsigned int Flags), (p, bytesize, Flags))
SOFTDEV_OLD_NAME(cuMemcpyHtoD, cuMemcpyHtoD_v2, (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount), (dstDevice, srcHost, ByteCount))
SOFTDEV_OLD_NAME(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount), (dstHost, srcDevice, ByteCount))
SOFTDEV_OLD_NAME(cuMemcpyDtoD, cuMemcpyDtoD_v2, (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount), (dstDevice, srcDevice, ByteCount))
SOFTDEV_OLD_NAME(cuMemsetD8, cuMemsetD8_v2, (CUdeviceptr dstDevice, unsigned char uc, size_t N), (dstDevice, uc, N))
SOFTDEV_OLD_NAME(cuMemsetD16, cuMemsetD16_v2, (CUdeviceptr dstDevice, unsigned short us, size_t N), (dstDevice, us, N))
SOFTDEV_OLD_NAME(cuMemsetD32, cuMemsetD32_v2, (CUdeviceptr dstDevice, unsigned int ui, size_t N), (dstDevice, ui, N))
SOFTDEV_OLD_NAME(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream), (dstDevice, srcHost, ByteCount, hStream))
SOFTDEV_OLD_NAME(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream), (dstHost, srcDevice, ByteCount, hStream))
SOFTDEV_OLD_NAME(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream), (dstDevice, srcDevice, ByteCount, hStream))
SOFTDEV_OLD_NAME(cuCtxDestroy, cuCtxDestroy_v2, (CUcontext ctx), (ctx))
SOFTDEV_OLD_NAME(cuCtxPopCurrent, cuCtxPopCurrent_v2, (CUcontext *pctx), (pctx))
SOFTDEV_OLD_NAME(cuCtxPushCurrent, cuCtxPushCurrent_v2, (CUcontext ctx), (ctx))
SOFTDEV_OLD_NAME(cuStreamDestroy, cuStreamDestroy_v2, (CUstream hStream), (hStream))
SOFTDEV_OLD_NAME(cuEventDestroy, cuEventDestroy_v2, (CUevent hEvent), (hEvent))
SOFTDEV_OLD_NAME(cuEventElapsedTime, cuEventElapsedTime_v2, (float *pMilliseconds, CUevent hStart, CUevent hEnd), (pMilliseconds, hStart, hEnd))
SOFTDEV_OLD_NAME(cuStreamWriteValue32, cuStreamWriteValue32_v2, (CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags), (stream, addr, value, flags))
SOFTDEV_OLD_NAME(cuStreamWaitValue32, cuStreamWaitValue32_v2, (CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags), (stream, addr, value, flags))
SOFTDEV_OLD_NAME(cuStreamWriteValue64, cuStreamWriteValue64_v2, (CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags), (stream, addr, value, flags))
SOFTDEV_OLD_NAME(cuStreamWaitValue64, cuStreamWaitValue64_v2, (CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags), (stream, addr, value, flags))

// CUDA 10.0's form, without a mode: global.
SOFTDEV_EXPORT CUresult CUDAAPI cuStreamBeginCapture(CUstream stream) {
    return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}
SOFTDEV_PER_THREAD(cuStreamBeginCapture_ptsz, cuStreamBeginCapture, (CUstream stream), (stream))
// clang-format on
