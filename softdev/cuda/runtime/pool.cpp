// SPDX-License-Identifier: Apache-2.0
// Runtime API: memory pools, and memory of other processes, which there is not.
#include "softdev/cuda/runtime/runtime.h"

using softdev::runtime::in_context;
using softdev::runtime::stream_of;

cudaError_t CUDARTAPI cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
    static_assert(sizeof(cudaMemPoolProps) == sizeof(CUmemPoolProps), "the same structure");
    return in_context(
        [&] { return cuMemPoolCreate(pool, reinterpret_cast<const CUmemPoolProps*>(properties)); });
}
cudaError_t CUDARTAPI cudaMemPoolDestroy(cudaMemPool_t pool) {
    return in_context([&] { return cuMemPoolDestroy(pool); });
}
cudaError_t CUDARTAPI cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute,
                                              void* value) {
    return in_context([&] {
        return cuMemPoolSetAttribute(pool, static_cast<CUmemPool_attribute>(attribute), value);
    });
}
cudaError_t CUDARTAPI cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute,
                                              void* value) {
    return in_context([&] {
        return cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(attribute), value);
    });
}
cudaError_t CUDARTAPI cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t bytes) {
    return in_context([&] { return cuMemPoolTrimTo(pool, bytes); });
}
cudaError_t CUDARTAPI cudaMallocFromPoolAsync(void** pointer, std::size_t bytes, cudaMemPool_t pool,
                                              cudaStream_t stream) {
    return in_context([&] {
        return cuMemAllocFromPoolAsync(reinterpret_cast<CUdeviceptr*>(pointer), bytes, pool,
                                       stream_of(stream));
    });
}

cudaError_t CUDARTAPI cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
    return in_context([&] {
        return cuIpcGetMemHandle(reinterpret_cast<CUipcMemHandle*>(handle),
                                 reinterpret_cast<CUdeviceptr>(pointer));
    });
}
cudaError_t CUDARTAPI cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle,
                                           unsigned flags) {
    return in_context([&] {
        CUipcMemHandle same;
        static_assert(sizeof same == sizeof handle, "the same structure");
        __builtin_memcpy(&same, &handle, sizeof same);
        return cuIpcOpenMemHandle(reinterpret_cast<CUdeviceptr*>(pointer), same, flags);
    });
}
cudaError_t CUDARTAPI cudaIpcCloseMemHandle(void* pointer) {
    return in_context([&] { return cuIpcCloseMemHandle(reinterpret_cast<CUdeviceptr>(pointer)); });
}
