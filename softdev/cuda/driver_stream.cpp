// SPDX-License-Identifier: Apache-2.0
// Driver API: streams and host functions.
#include <algorithm>

#include "softdev/cuda/capture.h"
#include "softdev/cuda/report.h"
#include "softdev/cuda/submit.h"
#include "softdev/cuda/thread.h"

using softdev::Call;
using softdev::device;

namespace {

// A stream that captures has no state to ask for, and asking is unsafe while others capture.
CUresult may_look(const softdev::Stream& stream) {
    if (stream.capture != nullptr) {
        return softdev::invalidate(*stream.capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    if (const CUresult refused = softdev::legacy_implicit(stream, true); refused != CUDA_SUCCESS) {
        return refused;
    }
    return softdev::unsafe_call();
}

}  // namespace

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
    if (const CUresult refused = may_look(*stream); refused != CUDA_SUCCESS) {
        return refused;
    }
    return softdev::synchronize_stream(call.lock(), stream, call.name());
}

CUresult CUDAAPI cuStreamQuery(CUstream handle) {
    SOFTDEV_CALL(call);
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (const CUresult refused = may_look(*stream); refused != CUDA_SUCCESS) {
        return refused;
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
    if (stream->capture != nullptr || event->capture != nullptr || flags != 0) {
        return softdev::capture_wait(stream, event, flags == CU_EVENT_WAIT_EXTERNAL);
    }
    if (const CUresult refused = softdev::may_submit(*stream); refused != CUDA_SUCCESS) {
        return refused;
    }
    softdev::wait_event(stream, *event);
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

CUresult CUDAAPI cuStreamGetCtx_v2(CUstream handle, CUcontext* context, CUgreenCtx* green) {
    if (green != nullptr) {
        *green = nullptr;
    }
    return cuStreamGetCtx(handle, context);
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
    softdev::Work work;
    work.kind = softdev::OpKind::host_function;
    work.task = softdev::make_task([fn, data] {
        fn(data);
        return CUDA_SUCCESS;
    });
    work.label = "host function";
    work.tells = true;
    return softdev::submit(call, stream, std::move(work));
}

// The older form: the callback is told the stream and whether it is well. Not in captures.
CUresult CUDAAPI cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void* data,
                                     unsigned flags) {
    SOFTDEV_CALL(call);
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (callback == nullptr || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (stream->capture != nullptr) {
        return softdev::invalidate(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    softdev::Work work;
    work.kind = softdev::OpKind::host_function;
    work.label = call.name();
    work.tells = true;
    work.task = softdev::make_task([handle, callback, data] {
        callback(handle, CUDA_SUCCESS, data);
        return CUDA_SUCCESS;
    });
    return softdev::submit(call, stream, std::move(work));
}
