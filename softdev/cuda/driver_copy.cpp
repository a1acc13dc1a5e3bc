// SPDX-License-Identifier: Apache-2.0
// Driver API: copies and fills, with the rules of what waits for what:
// https://docs.nvidia.com/cuda/cuda-driver-api/api-sync-behavior.html
#include <algorithm>
#include <cstring>
#include <iterator>

#include "softdev/cuda/bulk.h"
#include "softdev/cuda/capture.h"
#include "softdev/cuda/memory.h"
#include "softdev/cuda/report.h"
#include "softdev/cuda/submit.h"
#include "softdev/cuda/thread.h"

using softdev::Call;
using softdev::Use;

namespace {

// Smaller pageable sources are copied aside at once, as the real driver does; for larger ones the
// call waits.
constexpr std::size_t kStaged = 64 * 1024;

std::uintptr_t address_of(const void* p) {
    return reinterpret_cast<std::uintptr_t>(p);
}

struct Copy {
    std::uintptr_t to = 0;
    std::uintptr_t from = 0;
    std::size_t bytes = 0;
    Use to_use = Use::kernel;
    Use from_use = Use::kernel;
    bool wait = false;  ///< a synchronous call
};

// Plain host memory on a side that may be host memory. Between two such sides it counts as device
// memory with SOFTDEV_PAGEABLE=1.
bool pageable(std::uintptr_t address, Use use, std::uintptr_t other, Use other_use) {
    const auto plain = [](std::uintptr_t at, Use side) {
        return side == Use::copy && softdev::find_allocation(at) == nullptr;
    };
    return plain(address, use) && !(softdev::settings().pageable && plain(other, other_use));
}

CUresult copy(Call& call, CUstream handle, const Copy& c) {
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (c.wait) {
        if (const CUresult refused = softdev::unsafe_call(); refused != CUDA_SUCCESS) {
            return refused;
        }
    }
    if (c.bytes == 0) {
        return CUDA_SUCCESS;
    }
    const std::string place = " on " + stream->name();
    CUresult result = softdev::check_range(c.to, c.bytes, c.to_use, call.name(), place);
    if (result == CUDA_SUCCESS) {
        result = softdev::check_range(c.from, c.bytes, c.from_use, call.name(), place);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const bool from_pageable = pageable(c.from, c.from_use, c.to, c.to_use);
    const bool to_pageable = pageable(c.to, c.to_use, c.from, c.from_use);
    if (stream->capture != nullptr && (from_pageable || to_pageable)) {
        return softdev::invalidate(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    auto* to = reinterpret_cast<void*>(c.to);
    const auto* from = reinterpret_cast<const void*>(c.from);
    softdev_access_t accesses[2];
    softdev::Work work;
    work.label = call.name();
    work.checked = true;
    work.accesses.list = accesses;
    if (!from_pageable) {
        accesses[work.accesses.count++] = {from, c.bytes, 0};
    }
    if (!to_pageable) {
        accesses[work.accesses.count++] = {to, c.bytes, 1};
    }
    bool wait = c.wait || to_pageable;
    if (from_pageable && !wait && c.bytes <= kStaged) {
        const auto* begin = static_cast<const unsigned char*>(from);
        work.task =
            softdev::make_task([to, data = std::vector<unsigned char>(begin, begin + c.bytes)] {
                std::memcpy(to, data.data(), data.size());
                return CUDA_SUCCESS;
            });
    } else {
        if (from_pageable) {
            wait = true;
        }
        work.task = softdev::make_task([to, from, bytes = c.bytes] {
            softdev::bulk_copy(to, from, bytes);
            return CUDA_SUCCESS;
        });
    }
    softdev::OpPtr op;
    result = softdev::submit(call, stream, std::move(work), &op);
    if (result == CUDA_SUCCESS && wait) {
        const softdev::VectorClock seen = stream->clock;
        result = softdev::wait_for(call.lock(), op, call.name());
        if (result == CUDA_SUCCESS) {
            softdev::host_saw(seen);
        }
    }
    return result;
}

// As std::fill_n, at the speed of memcpy however this file is compiled.
template <typename T>
void fill_blocks(T* to, T value, std::size_t count) {
    T block[4096 / sizeof(T)];
    const std::size_t size = std::min(count, std::size(block));
    std::fill_n(block, size, value);
    const bool bulk = count * sizeof(T) >= softdev::kBulk;
    for (std::size_t at = 0; at < count; at += size) {
        const std::size_t bytes = std::min(size, count - at) * sizeof(T);
        bulk ? softdev::bulk_piece(to + at, block, bytes)
             : static_cast<void>(std::memcpy(to + at, block, bytes));
    }
    if (bulk) {
        softdev::bulk_done();
    }
}

template <typename T>
CUresult fill(Call& call, CUstream handle, CUdeviceptr to, T value, std::size_t count, bool sync) {
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (sync) {
        if (const CUresult refused = softdev::unsafe_call(); refused != CUDA_SUCCESS) {
            return refused;
        }
    }
    if (to % sizeof(T) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (count == 0) {
        return CUDA_SUCCESS;
    }
    const softdev_access_t access{reinterpret_cast<void*>(to), count * sizeof(T), 1};
    softdev::Work work;
    work.label = call.name();
    work.accesses = {&access, 1};
    work.task = softdev::make_task([to, value, count] {
        fill_blocks(reinterpret_cast<T*>(to), value, count);
        return CUDA_SUCCESS;
    });
    // A synchronous fill of device memory does not wait either; one of pinned host memory does.
    const softdev::Allocation* a = softdev::find_allocation(to);
    const bool wait = sync && (a == nullptr || !a->on_device());
    softdev::OpPtr op;
    CUresult result = softdev::submit(call, stream, std::move(work), &op);
    if (result == CUDA_SUCCESS && wait) {
        const softdev::VectorClock seen = stream->clock;
        result = softdev::wait_for(call.lock(), op, call.name());
        if (result == CUDA_SUCCESS) {
            softdev::host_saw(seen);
        }
    }
    return result;
}

// A synchronous copy between device ranges does not wait on the host; any other does.
bool sync_waits(CUdeviceptr to, CUdeviceptr from) {
    const softdev::Allocation* a = softdev::find_allocation(to);
    const softdev::Allocation* b = softdev::find_allocation(from);
    return a == nullptr || b == nullptr || !a->on_device() || !b->on_device();
}

}  // namespace

CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    SOFTDEV_CALL(call);
    return copy(call, nullptr, {to, from, bytes, Use::copy, Use::copy, sync_waits(to, from)});
}

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr to, const void* from, std::size_t bytes) {
    SOFTDEV_CALL(call);
    return copy(call, nullptr, {to, address_of(from), bytes, Use::kernel, Use::copy, true});
}

CUresult CUDAAPI cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t bytes) {
    SOFTDEV_CALL(call);
    return copy(call, nullptr, {address_of(to), from, bytes, Use::copy, Use::kernel, true});
}

CUresult CUDAAPI cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    SOFTDEV_CALL(call);
    return copy(call, nullptr, {to, from, bytes, Use::kernel, Use::kernel, sync_waits(to, from)});
}

CUresult CUDAAPI cuMemcpyPeer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext,
                              std::size_t bytes) {
    SOFTDEV_CALL(call);
    return copy(call, nullptr, {to, from, bytes, Use::kernel, Use::kernel, false});
}

CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                               CUstream stream) {
    SOFTDEV_CALL(call);
    return copy(call, stream, {to, from, bytes, Use::copy, Use::copy, false});
}

CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t bytes,
                                   CUstream stream) {
    SOFTDEV_CALL(call);
    return copy(call, stream, {to, address_of(from), bytes, Use::kernel, Use::copy, false});
}

CUresult CUDAAPI cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    SOFTDEV_CALL(call);
    return copy(call, stream, {address_of(to), from, bytes, Use::copy, Use::kernel, false});
}

CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                                   CUstream stream) {
    SOFTDEV_CALL(call);
    return copy(call, stream, {to, from, bytes, Use::kernel, Use::kernel, false});
}

CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext,
                                   std::size_t bytes, CUstream stream) {
    SOFTDEV_CALL(call);
    return copy(call, stream, {to, from, bytes, Use::kernel, Use::kernel, false});
}

// Copies in no order among each other; here they run one after the other.
CUresult CUDAAPI cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes,
                                       std::size_t count, CUmemcpyAttributes* attributes,
                                       std::size_t* indices, std::size_t attribute_count,
                                       CUstream stream) {
    SOFTDEV_CALL(call);
    const bool legacy = stream == nullptr || stream == CU_STREAM_LEGACY;
    if (to == nullptr || from == nullptr || bytes == nullptr || count == 0 ||
        attributes == nullptr || indices == nullptr || attribute_count == 0 ||
        attribute_count > count || legacy) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const softdev::StreamPtr known = call.stream(stream);
    if (known == nullptr) {
        return call.result();
    }
    if (known->capture != nullptr) {
        return softdev::invalidate(*known->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    for (std::size_t i = 0; i < count; ++i) {
        const CUresult result =
            copy(call, stream, {to[i], from[i], bytes[i], Use::copy, Use::copy, false});
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemsetD8(CUdeviceptr to, unsigned char value, std::size_t count) {
    SOFTDEV_CALL(call);
    return fill(call, nullptr, to, value, count, true);
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count,
                                 CUstream stream) {
    SOFTDEV_CALL(call);
    return fill(call, stream, to, value, count, false);
}

CUresult CUDAAPI cuMemsetD16(CUdeviceptr to, unsigned short value, std::size_t count) {
    SOFTDEV_CALL(call);
    return fill(call, nullptr, to, value, count, true);
}

CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr to, unsigned short value, std::size_t count,
                                  CUstream stream) {
    SOFTDEV_CALL(call);
    return fill(call, stream, to, value, count, false);
}

CUresult CUDAAPI cuMemsetD32(CUdeviceptr to, unsigned value, std::size_t count) {
    SOFTDEV_CALL(call);
    return fill(call, nullptr, to, value, count, true);
}

CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count,
                                  CUstream stream) {
    SOFTDEV_CALL(call);
    return fill(call, stream, to, value, count, false);
}
