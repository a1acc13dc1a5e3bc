// SPDX-License-Identifier: Apache-2.0
// Driver API: allocation, freeing and questions about pointers.
#include <algorithm>
#include <memory>

#include "softdev/cuda/capture.h"
#include "softdev/cuda/memory.h"
#include "softdev/cuda/report.h"
#include "softdev/cuda/submit.h"
#include "softdev/cuda/thread.h"

using softdev::Allocation;
using softdev::Call;
using softdev::MemoryKind;

namespace {

CUresult allocate(Call& call, void** pointer, std::size_t bytes, MemoryKind kind, unsigned flags) {
    if (pointer == nullptr || bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult refused = softdev::unsafe_call(); refused != CUDA_SUCCESS) {
        return refused;
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
    } else if (a->freed_by != nullptr) {
        softdev::report("%s: %p is freed already", call.name(), pointer);
    } else if (a->on_device() != on_device || a->kind == MemoryKind::registered) {
        softdev::report("%s: %p is of another kind of memory", call.name(), pointer);
    } else {
        return a;
    }
    call.fail(CUDA_ERROR_INVALID_VALUE);
    return nullptr;
}

// Gives a range back when the last operation that was queued before is complete.
class LaterRelease {
public:
    LaterRelease(std::uintptr_t base, const char* how) : base_(base), how_(how) {}
    ~LaterRelease() { softdev::release(base_, how_); }
    LaterRelease(const LaterRelease&) = delete;
    LaterRelease& operator=(const LaterRelease&) = delete;

private:
    std::uintptr_t base_;
    const char* how_;
};

// Pinned memory is the job's no more at once, and its bytes go when the work that may still use
// them is over. It does not wait: a kernel that runs may itself wait for the thread that frees (a
// collective of another communicator).
CUresult free_host(Call& call, std::uintptr_t base) {
    if (base == 0) {
        return CUDA_SUCCESS;
    }
    if (const CUresult refused = softdev::unsafe_call(); refused != CUDA_SUCCESS) {
        return refused;
    }
    Allocation* a = to_free(call, base, false);
    if (a == nullptr) {
        return call.result();
    }
    a->freed_by = "cuMemFreeHost";
    const auto later = std::make_shared<LaterRelease>(base, a->freed_by);
    const auto keep = [&](const softdev::Stream& stream) {
        if (!stream.idle()) {
            stream.last->keeps.push_back(later);
        }
    };
    // All contexts' streams reach pinned memory.
    for (const auto& context : softdev::device().primary) {
        if (context->legacy != nullptr) {
            keep(*context->legacy);
        }
        for (const softdev::StreamPtr& stream : context->streams) {
            keep(*stream);
        }
    }
    return CUDA_SUCCESS;
}

// cuMemFree waits for the device first, as the real one does.
CUresult free_now(Call& call, std::uintptr_t base) {
    if (base == 0) {
        return CUDA_SUCCESS;
    }
    if (const CUresult refused = softdev::unsafe_call(); refused != CUDA_SUCCESS) {
        return refused;
    }
    Allocation* a = to_free(call, base, true);
    if (a == nullptr) {
        return call.result();
    }
    const CUresult result = softdev::synchronize_context(call.lock(), *a->context, call.name());
    if (result == CUDA_ERROR_LAUNCH_TIMEOUT) {
        return result;
    }
    if (softdev::find_allocation(base) != a) {
        softdev::report("%s: two threads free %p", call.name(), reinterpret_cast<void*>(base));
        return CUDA_ERROR_INVALID_VALUE;
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
    return free_now(call, pointer);
}

CUresult CUDAAPI cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
    SOFTDEV_CALL(call);
    constexpr unsigned kKnown =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    if ((flags & ~kKnown) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return allocate(call, pointer, bytes, MemoryKind::host, flags);
}

CUresult CUDAAPI cuMemAllocHost(void** pointer, std::size_t bytes) {
    return cuMemHostAlloc(pointer, bytes, 0);
}

CUresult CUDAAPI cuMemFreeHost(void* pointer) {
    SOFTDEV_CALL(call);
    return free_host(call, reinterpret_cast<std::uintptr_t>(pointer));
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

// There is no virtual memory management, but NCCL 2.30 asks this whether there is any or not.
CUresult CUDAAPI cuMemGetAllocationGranularity(std::size_t* granularity,
                                               const CUmemAllocationProp* properties,
                                               CUmemAllocationGranularity_flags) {
    SOFTDEV_CALL(call);
    if (granularity == nullptr || properties == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *granularity = std::size_t{2} << 20;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr* pointer, std::size_t bytes, unsigned flags) {
    SOFTDEV_CALL(call);
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return allocate(call, reinterpret_cast<void**>(pointer), bytes, MemoryKind::managed, flags);
}

CUresult CUDAAPI cuMemHostRegister(void* pointer, std::size_t bytes, unsigned flags) {
    SOFTDEV_CALL(call);
    if (pointer == nullptr || bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult refused = softdev::unsafe_call(); refused != CUDA_SUCCESS) {
        return refused;
    }
    return softdev::register_host(call.context(), pointer, bytes, flags) != nullptr
               ? CUDA_SUCCESS
               : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

CUresult CUDAAPI cuMemHostUnregister(void* pointer) {
    SOFTDEV_CALL(call);
    const Allocation* a = softdev::find_allocation(pointer);
    if (a == nullptr || a->kind != MemoryKind::registered ||
        a->base != reinterpret_cast<std::uintptr_t>(pointer)) {
        softdev::report("%s: %p is not registered", call.name(), pointer);
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    // As cuMemFreeHost it does not wait for kernels. The bytes stay the job's.
    softdev::release(reinterpret_cast<std::uintptr_t>(pointer), call.name());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr pointer, CUstream handle) {
    SOFTDEV_CALL(call);
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (pointer == 0) {
        return CUDA_SUCCESS;
    }
    Allocation* a = to_free(call, pointer, true);
    if (a == nullptr) {
        return call.result();
    }
    const softdev_access_t access{reinterpret_cast<void*>(a->base), a->bytes, 1};
    softdev::Work work;
    work.label = call.name();
    work.accesses = {&access, 1};
    if (stream->capture != nullptr) {
        // Memory of the graph lives as long as the graph here.
        const auto& own = stream->capture->graph->memory;
        if (std::find(own.begin(), own.end(), a->base) == own.end()) {
            return softdev::invalidate(*stream->capture, CUDA_ERROR_INVALID_VALUE);
        }
        work.task = softdev::make_task([] { return CUDA_SUCCESS; });
        return softdev::submit(call, stream, std::move(work));
    }
    work.task = softdev::make_task([base = a->base] {
        std::lock_guard<std::mutex> lock(softdev::device().mutex);
        softdev::release(base, "cuMemFreeAsync");
        return CUDA_SUCCESS;
    });
    // Only now, and before the operation can run: later uses are errors, whatever stream they are
    // on.
    const CUresult result = softdev::submit(call, stream, std::move(work));
    a->freed_by = result == CUDA_SUCCESS ? "cuMemFreeAsync" : nullptr;
    return result;
}
