// SPDX-License-Identifier: Apache-2.0
// Driver API: streams and host functions.
#include <algorithm>

#include "tests/softdev/cuda/report.h"
#include "tests/softdev/cuda/submit.h"
#include "tests/softdev/cuda/thread.h"

using softdev::Call;
using softdev::device;

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* handle, unsigned flags, int priority) {
    SOFTDEV_CALL(call);
    if (handle == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *handle = softdev::create_stream(call.context(), softdev::StreamKind::created, flags,
                                     std::clamp(priority, -5, 0))
                  ->handle;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamCreate(CUstream* handle, unsigned flags) {
    return cuStreamCreateWithPriority(handle, flags, 0);
}

CUresult CUDAAPI cuStreamDestroy(CUstream handle) {
    SOFTDEV_CALL(call);
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (stream->kind != softdev::StreamKind::created) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    softdev::destroy_stream(stream);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream handle) {
    SOFTDEV_CALL(call);
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    return softdev::synchronize_stream(call.lock(), stream, call.name());
}

CUresult CUDAAPI cuStreamQuery(CUstream handle) {
    SOFTDEV_CALL(call);
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (!softdev::stream_done(*stream)) {
        return CUDA_ERROR_NOT_READY;
    }
    softdev::order_stream(*stream);
    softdev::host_saw(stream->clock);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
    SOFTDEV_CALL(call);
    if ((flags & ~1u) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const softdev::StreamPtr stream = call.stream(handle);
    const auto event = stream != nullptr ? call.event(event_handle) : nullptr;
    if (event == nullptr) {
        return call.result();
    }
    const softdev::OpPtr op =
        softdev::enqueue(stream, softdev::OpKind::marker, nullptr, call.name());
    softdev::depend(op, event->record);
    stream->clock.join(event->clock);
    softdev::advance(stream);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetPriority(CUstream handle, int* priority) {
    SOFTDEV_CALL(call);
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (priority == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetFlags(CUstream handle, unsigned* flags) {
    SOFTDEV_CALL(call);
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (flags == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetId(CUstream handle, unsigned long long* id) {
    SOFTDEV_CALL(call);
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (id == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *id = stream->id;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCtx(CUstream handle, CUcontext* context) {
    SOFTDEV_CALL(call);
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *context = stream->context->handle;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetDevice(CUstream handle, CUdevice* ordinal) {
    SOFTDEV_CALL(call);
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (ordinal == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *ordinal = stream->context->device;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn fn, void* data) {
    SOFTDEV_CALL(call);
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (fn == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return softdev::submit(call, stream, softdev::OpKind::host_function,
                           softdev::make_task([fn, data] {
                               fn(data);
                               return CUDA_SUCCESS;
                           }),
                           "host function");
}
