// SPDX-License-Identifier: Apache-2.0
// Runtime API: memory.
#include <cstdint>

#include "softdev/cuda/runtime/runtime.h"

using softdev::runtime::finish;
using softdev::runtime::in_context;
using softdev::runtime::stream_of;
using softdev::runtime::thread_state;

// libcuda's forms for the per-thread default stream; cuda.h declares them only under a macro.
extern "C" {
CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, std::size_t bytes);
CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void* from, std::size_t bytes);
CUresult cuMemcpyDtoH_v2_ptds(void* to, CUdeviceptr from, std::size_t bytes);
CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, std::size_t bytes);
CUresult cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, std::size_t count);
}

namespace {

CUdeviceptr device_pointer(const void* p) {
    return reinterpret_cast<CUdeviceptr>(p);
}

}  // namespace

cudaError_t CUDARTAPI cudaMalloc(void** pointer, std::size_t bytes) {
    if (pointer != nullptr && bytes == 0) {
        *pointer = nullptr;  // the runtime allows what the driver does not
        return cudaSuccess;
    }
    return in_context([&] { return cuMemAlloc(reinterpret_cast<CUdeviceptr*>(pointer), bytes); });
}

cudaError_t CUDARTAPI cudaFree(void* pointer) {
    return in_context([&] { return cuMemFree(device_pointer(pointer)); });
}

cudaError_t CUDARTAPI cudaHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
    return in_context([&] { return cuMemHostAlloc(pointer, bytes, flags); });
}

cudaError_t CUDARTAPI cudaMallocHost(void** pointer, std::size_t bytes) {
    return cudaHostAlloc(pointer, bytes, 0);
}

cudaError_t CUDARTAPI cudaFreeHost(void* pointer) {
    return in_context([&] { return cuMemFreeHost(pointer); });
}

cudaError_t CUDARTAPI cudaMallocManaged(void** pointer, std::size_t bytes, unsigned flags) {
    return in_context(
        [&] { return cuMemAllocManaged(reinterpret_cast<CUdeviceptr*>(pointer), bytes, flags); });
}

cudaError_t CUDARTAPI cudaMallocAsync(void** pointer, std::size_t bytes, cudaStream_t stream) {
    return in_context([&] {
        return cuMemAllocAsync(reinterpret_cast<CUdeviceptr*>(pointer), bytes, stream_of(stream));
    });
}

cudaError_t CUDARTAPI cudaFreeAsync(void* pointer, cudaStream_t stream) {
    return in_context([&] { return cuMemFreeAsync(device_pointer(pointer), stream_of(stream)); });
}

cudaError_t CUDARTAPI cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    return in_context([&] { return cuMemGetInfo(free, total); });
}

cudaError_t CUDARTAPI cudaHostRegister(void* pointer, std::size_t bytes, unsigned flags) {
    return in_context([&] { return cuMemHostRegister(pointer, bytes, flags); });
}

cudaError_t CUDARTAPI cudaHostUnregister(void* pointer) {
    return in_context([&] { return cuMemHostUnregister(pointer); });
}

cudaError_t CUDARTAPI cudaHostGetDevicePointer(void** device, void* host, unsigned flags) {
    return in_context([&] {
        return cuMemHostGetDevicePointer(reinterpret_cast<CUdeviceptr*>(device), host, flags);
    });
}

cudaError_t CUDARTAPI cudaMemcpy(void* to, const void* from, std::size_t bytes,
                                 cudaMemcpyKind kind) {
    const bool own = thread_state().per_thread_default;
    return in_context([&]() -> CUresult {
        switch (kind) {
            case cudaMemcpyHostToDevice:
                return (own ? cuMemcpyHtoD_v2_ptds : cuMemcpyHtoD)(device_pointer(to), from, bytes);
            case cudaMemcpyDeviceToHost:
                return (own ? cuMemcpyDtoH_v2_ptds : cuMemcpyDtoH)(to, device_pointer(from), bytes);
            case cudaMemcpyDeviceToDevice:
                return (own ? cuMemcpyDtoD_v2_ptds : cuMemcpyDtoD)(device_pointer(to),
                                                                   device_pointer(from), bytes);
            case cudaMemcpyHostToHost:
            case cudaMemcpyDefault:
                return (own ? cuMemcpy_ptds : cuMemcpy)(device_pointer(to), device_pointer(from),
                                                        bytes);
        }
        return static_cast<CUresult>(cudaErrorInvalidMemcpyDirection);
    });
}

cudaError_t CUDARTAPI cudaMemcpyAsync(void* to, const void* from, std::size_t bytes,
                                      cudaMemcpyKind kind, cudaStream_t stream) {
    const CUstream s = stream_of(stream);
    return in_context([&]() -> CUresult {
        switch (kind) {
            case cudaMemcpyHostToDevice:
                return cuMemcpyHtoDAsync(device_pointer(to), from, bytes, s);
            case cudaMemcpyDeviceToHost:
                return cuMemcpyDtoHAsync(to, device_pointer(from), bytes, s);
            case cudaMemcpyDeviceToDevice:
                return cuMemcpyDtoDAsync(device_pointer(to), device_pointer(from), bytes, s);
            case cudaMemcpyHostToHost:
            case cudaMemcpyDefault:
                return cuMemcpyAsync(device_pointer(to), device_pointer(from), bytes, s);
        }
        return static_cast<CUresult>(cudaErrorInvalidMemcpyDirection);
    });
}

cudaError_t CUDARTAPI cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes,
                                          cudaStream_t stream) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t CUDARTAPI cudaMemcpyBatchAsync(void* const* to, const void* const* from,
                                           const std::size_t* bytes, std::size_t count,
                                           cudaMemcpyAttributes* attributes, std::size_t* indices,
                                           std::size_t attribute_count, cudaStream_t stream) {
    // The driver's form takes the same lists, not const.
    return in_context([&] {
        return cuMemcpyBatchAsync(reinterpret_cast<CUdeviceptr*>(const_cast<void**>(to)),
                                  reinterpret_cast<CUdeviceptr*>(const_cast<void**>(from)),
                                  const_cast<std::size_t*>(bytes), count,
                                  reinterpret_cast<CUmemcpyAttributes*>(attributes), indices,
                                  attribute_count, stream);
    });
}

cudaError_t CUDARTAPI cudaMemset(void* pointer, int value, std::size_t count) {
    const bool own = thread_state().per_thread_default;
    return in_context([&] {
        return (own ? cuMemsetD8_v2_ptds : cuMemsetD8)(device_pointer(pointer),
                                                       static_cast<unsigned char>(value), count);
    });
}

cudaError_t CUDARTAPI cudaMemsetAsync(void* pointer, int value, std::size_t count,
                                      cudaStream_t stream) {
    return in_context([&] {
        return cuMemsetD8Async(device_pointer(pointer), static_cast<unsigned char>(value), count,
                               stream_of(stream));
    });
}

cudaError_t CUDARTAPI cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                               const void* pointer) {
    if (attributes == nullptr) {
        return finish(cudaErrorInvalidValue);
    }
    return in_context([&] {
        unsigned type = 0;
        int device = 0;
        int managed = 0;
        CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                       CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                       CU_POINTER_ATTRIBUTE_IS_MANAGED};
        void* values[] = {&type, &device, &managed};
        const CUresult result = cuPointerGetAttributes(3, names, values, device_pointer(pointer));
        auto* address = const_cast<void*>(pointer);
        *attributes = cudaPointerAttributes{};
        attributes->type = managed != 0                   ? cudaMemoryTypeManaged
                           : type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
                           : type == CU_MEMORYTYPE_HOST   ? cudaMemoryTypeHost
                                                          : cudaMemoryTypeUnregistered;
        attributes->device = device;
        attributes->devicePointer =
            attributes->type != cudaMemoryTypeUnregistered ? address : nullptr;
        attributes->hostPointer = attributes->type != cudaMemoryTypeDevice ? address : nullptr;
        return result;
    });
}
