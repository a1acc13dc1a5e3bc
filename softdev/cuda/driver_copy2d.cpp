// SPDX-License-Identifier: Apache-2.0
// Driver API: copies of rows with a pitch. There are no CUDA arrays.
#include <cstring>
#include <vector>

#include "softdev/cuda/capture.h"
#include "softdev/cuda/memory.h"
#include "softdev/cuda/report.h"
#include "softdev/cuda/submit.h"
#include "softdev/cuda/thread.h"

using softdev::Call;
using softdev::Use;

namespace {

constexpr std::size_t kRowsDeclared = 1024;  // above this a side counts as one range

struct Side {
    std::uintptr_t first = 0;  ///< first byte of the first row
    std::size_t pitch = 0;
    Use use = Use::kernel;
    bool pageable = false;

    std::size_t span(std::size_t width, std::size_t height) const {
        return pitch * (height - 1) + width;
    }
};

CUresult side_of(CUmemorytype type, const void* host, CUdeviceptr unified, std::size_t x,
                 std::size_t y, std::size_t pitch, const CUDA_MEMCPY2D& c, Side* out) {
    switch (type) {
        case CU_MEMORYTYPE_HOST:
            out->first = reinterpret_cast<std::uintptr_t>(host);
            out->use = Use::copy;
            break;
        case CU_MEMORYTYPE_DEVICE:
            out->first = unified;
            break;
        case CU_MEMORYTYPE_UNIFIED:
            out->first = unified;
            out->use = Use::copy;
            break;
        case CU_MEMORYTYPE_ARRAY:
            return CUDA_ERROR_NOT_SUPPORTED;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
    out->pitch = pitch != 0 ? pitch : c.WidthInBytes;
    if (out->pitch < c.WidthInBytes + x) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    out->first += y * out->pitch + x;
    return CUDA_SUCCESS;
}

void declare(const Side& side, const CUDA_MEMCPY2D& c, int write,
             std::vector<softdev_access_t>& accesses) {
    if (side.pageable) {
        return;
    }
    if (c.Height > kRowsDeclared || side.pitch == c.WidthInBytes) {
        accesses.push_back(
            {reinterpret_cast<void*>(side.first), side.span(c.WidthInBytes, c.Height), write});
        return;
    }
    for (std::size_t row = 0; row < c.Height; ++row) {
        accesses.push_back(
            {reinterpret_cast<void*>(side.first + row * side.pitch), c.WidthInBytes, write});
    }
}

CUresult copy(Call& call, CUstream handle, const CUDA_MEMCPY2D* c, bool synchronous) {
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (c == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (synchronous) {
        if (const CUresult refused = softdev::unsafe_call(); refused != CUDA_SUCCESS) {
            return refused;
        }
    }
    if (c->WidthInBytes == 0 || c->Height == 0) {
        return CUDA_SUCCESS;
    }
    Side to;
    Side from;
    CUresult result = side_of(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstXInBytes, c->dstY,
                              c->dstPitch, *c, &to);
    if (result == CUDA_SUCCESS) {
        result = side_of(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcXInBytes, c->srcY,
                         c->srcPitch, *c, &from);
    }
    const std::string place = " on " + stream->name();
    for (Side* side : {&to, &from}) {
        if (result == CUDA_SUCCESS) {
            result = softdev::check_range(side->first, side->span(c->WidthInBytes, c->Height),
                                          side->use, call.name(), place);
            side->pageable =
                side->use == Use::copy && softdev::find_allocation(side->first) == nullptr;
        }
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    // Between two such sides plain host memory counts as device memory with SOFTDEV_PAGEABLE=1.
    if (softdev::settings().pageable && to.pageable && from.pageable) {
        to.pageable = from.pageable = false;
    }
    if (stream->capture != nullptr && (to.pageable || from.pageable)) {
        return softdev::invalidate(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    std::vector<softdev_access_t> accesses;
    declare(from, *c, 0, accesses);
    declare(to, *c, 1, accesses);
    softdev::Work work;
    work.label = call.name();
    work.checked = true;
    work.accesses = {accesses.data(), accesses.size()};
    work.task = softdev::make_task([to, from, width = c->WidthInBytes, height = c->Height] {
        for (std::size_t row = 0; row < height; ++row) {
            std::memmove(reinterpret_cast<void*>(to.first + row * to.pitch),
                         reinterpret_cast<const void*>(from.first + row * from.pitch), width);
        }
        return CUDA_SUCCESS;
    });
    const bool wait = synchronous || to.pageable || from.pageable;
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

}  // namespace

CUresult CUDAAPI cuMemcpy2D(const CUDA_MEMCPY2D* c) {
    SOFTDEV_CALL(call);
    return copy(call, nullptr, c, true);
}

CUresult CUDAAPI cuMemcpy2DUnaligned(const CUDA_MEMCPY2D* c) {
    SOFTDEV_CALL(call);
    return copy(call, nullptr, c, true);
}

CUresult CUDAAPI cuMemcpy2DAsync(const CUDA_MEMCPY2D* c, CUstream stream) {
    SOFTDEV_CALL(call);
    return copy(call, stream, c, false);
}
