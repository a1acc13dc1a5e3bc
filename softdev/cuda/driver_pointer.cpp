// SPDX-License-Identifier: Apache-2.0
// Driver API: questions about pointers.
#include <cstring>

#include "softdev/cuda/memory.h"
#include "softdev/cuda/report.h"
#include "softdev/cuda/thread.h"

using softdev::Allocation;
using softdev::Call;
using softdev::MemoryKind;

namespace {

// Pinned memory that is freed is the job's no more, though its bytes may stay for a while.
template <typename Pointer>
const Allocation* known_allocation(Pointer pointer) {
    const Allocation* a = softdev::find_allocation(pointer);
    const bool gone = a != nullptr && a->kind == MemoryKind::host && a->freed_by != nullptr;
    return gone ? nullptr : a;
}

template <typename T>
CUresult put(void* data, T value) {
    std::memcpy(data, &value, sizeof value);
    return CUDA_SUCCESS;
}

CUresult answer(void* data, CUpointer_attribute attribute, CUdeviceptr pointer,
                const Allocation& a) {
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            return put(data, a.context->handle);
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            return put<unsigned>(data, a.on_device() ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            if (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER && a.on_device() &&
                a.kind != MemoryKind::managed) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            return put(data, pointer);
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
            return put(data, 0);
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            return put<unsigned long long>(data, a.id);
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            return put(data, a.kind == MemoryKind::managed ? 1 : 0);
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            return put(data, a.context->device);
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            return put<CUdeviceptr>(data, a.base);
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            return put(data, a.bytes);
        case CU_POINTER_ATTRIBUTE_MAPPED:
            return put(data, 1);
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
            return put<unsigned>(data, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
            return put<unsigned long long>(data, 0);
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
            return put(data, 0);
        default:
            return CUDA_ERROR_NOT_SUPPORTED;
    }
}

}  // namespace

CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                       CUdeviceptr pointer) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    const Allocation* a = known_allocation(pointer);
    if (data == nullptr || a == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return answer(data, attribute, pointer, *a);
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes,
                                        void** data, CUdeviceptr pointer) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (count == 0 || attributes == nullptr || data == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // A pointer that is not CUDA's is no error here: each answer is a zero of its type.
    const Allocation* a = known_allocation(pointer);
    for (unsigned i = 0; i < count; ++i) {
        if (a != nullptr) {
            answer(data[i], attributes[i], pointer, *a);
            continue;
        }
        switch (attributes[i]) {
            case CU_POINTER_ATTRIBUTE_CONTEXT:
            case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
                put<unsigned long long>(data[i], 0);
                break;
            case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
                put(data[i], -2);
                break;
            default:
                put(data[i], 0);
        }
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                       CUdeviceptr pointer) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Allocation* a = known_allocation(pointer);
    return a != nullptr && a->on_device() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr pointer) {
    SOFTDEV_CALL(call);
    const Allocation* a = known_allocation(pointer);
    if (a == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (base != nullptr) {
        *base = a->base;
    }
    if (bytes != nullptr) {
        *bytes = a->bytes;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr* device_pointer, void* pointer,
                                           unsigned flags) {
    SOFTDEV_CALL(call);
    const Allocation* a = known_allocation(pointer);
    if (device_pointer == nullptr || flags != 0 || a == nullptr || a->on_device()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *device_pointer = reinterpret_cast<CUdeviceptr>(pointer);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostGetFlags(unsigned* flags, void* pointer) {
    SOFTDEV_CALL(call);
    const Allocation* a = known_allocation(pointer);
    if (flags == nullptr || a == nullptr || a->on_device()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = a->flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
}

// No dma-buf: there is no device memory that a NIC could reach but by its host address.
CUresult CUDAAPI cuMemGetHandleForAddressRange(void*, CUdeviceptr, std::size_t,
                                               CUmemRangeHandleType, unsigned long long) {
    SOFTDEV_CALL(call);
    return CUDA_ERROR_NOT_SUPPORTED;
}
