// SPDX-License-Identifier: Apache-2.0
// Driver API: allocation, freeing and questions about pointers.
#include <cstring>

#include "tests/softdev/cuda/memory.h"
#include "tests/softdev/cuda/report.h"
#include "tests/softdev/cuda/submit.h"
#include "tests/softdev/cuda/thread.h"

using softdev::Allocation;
using softdev::Call;
using softdev::MemoryKind;

namespace {

CUresult allocate(Call& call, void** pointer, std::size_t bytes, MemoryKind kind, unsigned flags) {
    if (pointer == nullptr || bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Allocation* a = softdev::allocate(call.context(), bytes, kind, flags);
    if (a == nullptr) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pointer = reinterpret_cast<void*>(a->base);
    return CUDA_SUCCESS;
}

// The allocation that begins at the address and that this call may free; misuse is reported.
Allocation* to_free(Call& call, std::uintptr_t base, bool on_device) {
    Allocation* a = softdev::find_allocation(base);
    const auto* pointer = reinterpret_cast<const void*>(base);
    if (a == nullptr) {
        // Says "freed by ..." for a double free, and "does not know" for a foreign pointer.
        if (softdev::check_range(base, 1, softdev::Use::kernel, call.name(), "") == CUDA_SUCCESS) {
            softdev::report("%s: %p was not allocated here", call.name(), pointer);
        }
    } else if (a->base != base) {
        softdev::report("%s: %p lies inside an allocation that begins at %p", call.name(), pointer,
                        reinterpret_cast<const void*>(a->base));
    } else if (a->freeing) {
        softdev::report("%s: %p is freed already by cuMemFreeAsync", call.name(), pointer);
    } else if (a->on_device() != on_device || a->kind == MemoryKind::registered) {
        softdev::report("%s: %p is of another kind of memory", call.name(), pointer);
    } else {
        return a;
    }
    call.fail(CUDA_ERROR_INVALID_VALUE);
    return nullptr;
}

// cuMemFree and cuMemFreeHost wait for the device first, as the real ones do.
CUresult free_now(Call& call, std::uintptr_t base, bool on_device) {
    if (base == 0) {
        return CUDA_SUCCESS;
    }
    Allocation* a = to_free(call, base, on_device);
    if (a == nullptr) {
        return call.result();
    }
    const CUresult result = softdev::synchronize_context(call.lock(), *a->context, call.name());
    if (result == CUDA_ERROR_LAUNCH_TIMEOUT) {
        return result;
    }
    softdev::release(base, call.name());
    return result;
}

}  // namespace

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* pointer, std::size_t bytes) {
    SOFTDEV_CALL(call);
    return allocate(call, reinterpret_cast<void**>(pointer), bytes, MemoryKind::device, 0);
}

CUresult CUDAAPI cuMemFree(CUdeviceptr pointer) {
    SOFTDEV_CALL(call);
    return free_now(call, pointer, true);
}

CUresult CUDAAPI cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
    SOFTDEV_CALL(call);
    return allocate(call, pointer, bytes, MemoryKind::host, flags);
}

CUresult CUDAAPI cuMemAllocHost(void** pointer, std::size_t bytes) {
    return cuMemHostAlloc(pointer, bytes, 0);
}

CUresult CUDAAPI cuMemFreeHost(void* pointer) {
    SOFTDEV_CALL(call);
    return free_now(call, reinterpret_cast<std::uintptr_t>(pointer), false);
}

CUresult CUDAAPI cuMemGetInfo(std::size_t* free, std::size_t* total) {
    SOFTDEV_CALL(call);
    if (free == nullptr || total == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *total = softdev::settings().memory_bytes;
    *free = *total - softdev::device_bytes_used(call.context().device);
    return CUDA_SUCCESS;
}
