// SPDX-License-Identifier: Apache-2.0
// Driver API: events.
#include "softdev/cuda/capture.h"
#include "softdev/cuda/submit.h"
#include "softdev/cuda/thread.h"

using softdev::Call;
using softdev::device;

namespace {

// Asking for an event is not possible while it belongs to a capture, and unsafe while others
// capture.
CUresult may_look(const softdev::Event& event) {
    if (event.capture != nullptr) {
        return event.capture->ended
                   ? CUDA_ERROR_CAPTURED_EVENT
                   : softdev::invalidate(*event.capture, CUDA_ERROR_CAPTURED_EVENT);
    }
    return softdev::unsafe_call();
}

}  // namespace

CUresult CUDAAPI cuEventCreate(CUevent* handle, unsigned flags) {
    SOFTDEV_CALL(call);
    if (handle == nullptr || (flags & ~7u) != 0 ||
        ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto event = std::make_shared<softdev::Event>();
    event->context = &call.context();
    event->flags = flags;
    *handle = static_cast<CUevent>(device().events.add(event));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventDestroy(CUevent handle) {
    SOFTDEV_CALL(call);
    if (call.event(handle) == nullptr) {
        return call.result();
    }
    device().events.remove(handle);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventRecord(CUevent handle, CUstream stream_handle) {
    return cuEventRecordWithFlags(handle, stream_handle, CU_EVENT_RECORD_DEFAULT);
}

CUresult CUDAAPI cuEventRecordWithFlags(CUevent handle, CUstream stream_handle, unsigned flags) {
    SOFTDEV_CALL(call);
    if ((flags & ~1u) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto event = call.event(handle);
    const softdev::StreamPtr stream = event != nullptr ? call.stream(stream_handle) : nullptr;
    if (stream == nullptr) {
        return call.result();
    }
    if (stream->context != event->context) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const bool external = flags == CU_EVENT_RECORD_EXTERNAL;
    if (external && stream->capture == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult refused = softdev::may_submit(*stream); refused != CUDA_SUCCESS) {
        return refused;
    }
    if (stream->capture != nullptr) {
        return softdev::capture_record(*stream, event, external);
    }
    softdev::record_event(stream, event);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuEventQuery(CUevent handle) {
    SOFTDEV_CALL(call);
    const auto event = call.event(handle);
    if (event == nullptr) {
        return call.result();
    }
    if (const CUresult refused = may_look(*event); refused != CUDA_SUCCESS) {
        return refused;
    }
    if (event->record != nullptr && !event->record->complete) {
        return CUDA_ERROR_NOT_READY;
    }
    softdev::host_saw(event->clock);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventSynchronize(CUevent handle) {
    SOFTDEV_CALL(call);
    const auto event = call.event(handle);
    if (event == nullptr) {
        return call.result();
    }
    if (const CUresult refused = may_look(*event); refused != CUDA_SUCCESS) {
        return refused;
    }
    const softdev::VectorClock seen = event->clock;
    const CUresult result = softdev::wait_for(call.lock(), event->record, call.name());
    if (result == CUDA_SUCCESS) {
        softdev::host_saw(seen);
    }
    return result;
}

CUresult CUDAAPI cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    SOFTDEV_CALL(call);
    const auto first = call.event(start);
    const auto second = first != nullptr ? call.event(end) : nullptr;
    if (second == nullptr) {
        return call.result();
    }
    if (milliseconds == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (first->capture != nullptr || second->capture != nullptr) {
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    if (((first->flags | second->flags) & CU_EVENT_DISABLE_TIMING) != 0 ||
        first->record == nullptr || second->record == nullptr ||
        first->context != second->context) {  // each device has a clock of its own
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!first->record->complete || !second->record->complete) {
        return CUDA_ERROR_NOT_READY;
    }
    *milliseconds =
        static_cast<float>(second->record->finished_ns - first->record->finished_ns) * 1e-6f;
    return CUDA_SUCCESS;
}
