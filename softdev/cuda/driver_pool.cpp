// SPDX-License-Identifier: Apache-2.0
// Driver API: stream-ordered allocation and the pools it comes from. Nothing is cached: a pool is
// an account, its bytes go back when they are freed.
#include <algorithm>
#include <map>
#include <memory>

#include "softdev/cuda/capture.h"
#include "softdev/cuda/memory.h"
#include "softdev/cuda/report.h"
#include "softdev/cuda/submit.h"
#include "softdev/cuda/thread.h"

using softdev::Call;
using softdev::device;

namespace {

struct Pool {
    int device = 0;
    bool is_default = false;
    std::uint64_t id = 0;
    std::size_t high = 0;
    cuuint64_t release_threshold = 0;
    std::map<int, int> reuse;  ///< the three switches, which change nothing here
};

struct Pools {
    softdev::HandleTable<Pool, softdev::HandleKind::pool> all;
    std::map<int, CUmemoryPool> defaults;
    std::map<int, CUmemoryPool> current;
    std::uint64_t next_id = 1;
};

Pools& pools() {
    static auto* const value = new Pools;
    return *value;
}

CUmemoryPool add_pool(int ordinal, bool is_default) {
    auto pool = std::make_shared<Pool>();
    pool->device = ordinal;
    pool->is_default = is_default;
    pool->id = pools().next_id++;
    return static_cast<CUmemoryPool>(pools().all.add(std::move(pool)));
}

CUmemoryPool default_pool(int ordinal) {
    CUmemoryPool& pool = pools().defaults[ordinal];
    if (pool == nullptr) {
        pool = add_pool(ordinal, true);
    }
    return pool;
}

CUmemoryPool current_pool(int ordinal) {
    CUmemoryPool pool = pools().current[ordinal];
    return pools().all.find(pool) != nullptr ? pool : default_pool(ordinal);
}

Pool* find_pool(Call& call, CUmemoryPool handle) {
    Pool* pool = pools().all.find(handle);
    if (pool == nullptr) {
        softdev::report("%s: %p is %s", call.name(), static_cast<void*>(handle),
                        pools().all.state(handle) == softdev::HandleState::destroyed
                            ? "a destroyed memory pool"
                            : "no memory pool");
        call.fail(CUDA_ERROR_INVALID_VALUE);
    }
    return pool;
}

bool known_device(int ordinal) {
    return ordinal >= 0 && ordinal < static_cast<int>(device().primary.size());
}

CUresult allocate(Call& call, CUdeviceptr* pointer, std::size_t bytes, const CUmemoryPool* from,
                  CUstream handle) {
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (pointer == nullptr || bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Pool* pool = find_pool(call, from != nullptr ? *from : current_pool(stream->context->device));
    if (pool == nullptr) {
        return call.result();
    }
    if (const CUresult refused = softdev::may_submit(*stream); refused != CUDA_SUCCESS) {
        return refused;
    }
    // The bytes are those of the pool's device, which may be another than the stream's.
    softdev::Context& owner = pool->device == stream->context->device
                                  ? *stream->context
                                  : *device().primary[static_cast<std::size_t>(pool->device)];
    softdev::Allocation* a = softdev::allocate(owner, bytes, softdev::MemoryKind::async, 0);
    if (a == nullptr) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    a->pool = pool->id;
    pool->high = std::max(pool->high, softdev::pool_bytes_used(pool->id));
    if (stream->capture != nullptr) {
        stream->capture->graph->memory.push_back(a->base);
    }
    // The address is known at once, but the memory may be used only in the order of this operation.
    const softdev_access_t access{reinterpret_cast<void*>(a->base), bytes, 1};
    softdev::Work work;
    work.kind = softdev::OpKind::marker;
    work.label = call.name();
    work.accesses = {&access, 1};
    const CUresult result = softdev::submit(call, stream, std::move(work));
    *pointer = a->base;
    return result;
}

}  // namespace

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr* pointer, std::size_t bytes, CUstream stream) {
    SOFTDEV_CALL(call);
    return allocate(call, pointer, bytes, nullptr, stream);
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr* pointer, std::size_t bytes, CUmemoryPool pool,
                                         CUstream stream) {
    SOFTDEV_CALL(call);
    return allocate(call, pointer, bytes, &pool, stream);
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (pool == nullptr || properties == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        return CUDA_ERROR_NOT_SUPPORTED;  // nothing is shared between processes here
    }
    if (!known_device(properties->location.id)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pool = add_pool(properties->location.id, false);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool handle) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    const Pool* pool = find_pool(call, handle);
    if (pool == nullptr) {
        return call.result();
    }
    if (pool->is_default) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pools().all.remove(handle);  // what was allocated from it lives until it is freed
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool handle, std::size_t) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    return find_pool(call, handle) != nullptr ? CUDA_SUCCESS : call.result();
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                       void* value) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    Pool* pool = find_pool(call, handle);
    if (pool == nullptr) {
        return call.result();
    }
    if (value == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
            pool->reuse[attribute] = *static_cast<int*>(value);
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
            pool->release_threshold = *static_cast<cuuint64_t*>(value);
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            if (*static_cast<cuuint64_t*>(value) != 0) {
                return CUDA_ERROR_INVALID_VALUE;  // may only be reset
            }
            pool->high = softdev::pool_bytes_used(pool->id);
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                       void* value) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    Pool* pool = find_pool(call, handle);
    if (pool == nullptr) {
        return call.result();
    }
    if (value == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: {
            const auto set = pool->reuse.find(attribute);
            *static_cast<int*>(value) = set != pool->reuse.end() ? set->second : 1;
            return CUDA_SUCCESS;
        }
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
            *static_cast<cuuint64_t*>(value) = pool->release_threshold;
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
            *static_cast<cuuint64_t*>(value) = softdev::pool_bytes_used(pool->id);
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            *static_cast<cuuint64_t*>(value) = pool->high;
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

// Every device reaches all memory here.
CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc*, std::size_t) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    return find_pool(call, handle) != nullptr ? CUDA_SUCCESS : call.result();
}

CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation*) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (find_pool(call, handle) == nullptr) {
        return call.result();
    }
    if (flags == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice ordinal) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (pool == nullptr || !known_device(ordinal)) {
        return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
    }
    *pool = default_pool(ordinal);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice ordinal) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (pool == nullptr || !known_device(ordinal)) {
        return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
    }
    *pool = current_pool(ordinal);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (!known_device(ordinal)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    const Pool* pool = find_pool(call, handle);
    if (pool == nullptr) {
        return call.result();
    }
    if (pool->device != ordinal) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    pools().current[ordinal] = handle;
    return CUDA_SUCCESS;
}

// ---- sharing between processes, which there is not -------------------------------------------

CUresult CUDAAPI cuMemPoolExportToShareableHandle(void*, CUmemoryPool, CUmemAllocationHandleType,
                                                  unsigned long long) {
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult CUDAAPI cuMemPoolImportFromShareableHandle(CUmemoryPool*, void*, CUmemAllocationHandleType,
                                                    unsigned long long) {
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult CUDAAPI cuMemPoolExportPointer(CUmemPoolPtrExportData*, CUdeviceptr) {
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult CUDAAPI cuMemPoolImportPointer(CUdeviceptr*, CUmemoryPool, CUmemPoolPtrExportData*) {
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle*, CUevent) {
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult CUDAAPI cuIpcOpenEventHandle(CUevent*, CUipcEventHandle) {
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle*, CUdeviceptr) {
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr*, CUipcMemHandle, unsigned) {
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr) {
    return CUDA_ERROR_NOT_SUPPORTED;
}
