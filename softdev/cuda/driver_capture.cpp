// SPDX-License-Identifier: Apache-2.0
// Driver API: stream capture.
#include <algorithm>
#include <set>

#include "softdev/cuda/capture.h"
#include "softdev/cuda/thread.h"

using softdev::Call;
using softdev::captures;

namespace {

// Whether what every stream of the capture captured last comes before the origin's end. Nodes that
// a stream was only told to follow do not count, nor does what such a call took away
// (cuStreamUpdateCaptureDependencies).
bool joined(const softdev::Capture& capture) {
    std::set<const softdev::GraphNode*> reached;
    std::vector<softdev::GraphNode*> open = capture.origin->capture_front;
    while (!open.empty()) {
        softdev::GraphNode* node = open.back();
        open.pop_back();
        if (reached.insert(node).second) {
            open.insert(open.end(), node->follows.begin(), node->follows.end());
        }
    }
    const auto counts = [&](const softdev::GraphNode* node) {
        return node == nullptr || reached.count(node) > 0;
    };
    return std::all_of(capture.left.begin(), capture.left.end(), counts) &&
           std::all_of(capture.streams.begin(), capture.streams.end(),
                       [&](const softdev::StreamPtr& stream) {
                           return stream.get() == capture.origin || counts(stream->capture_last);
                       });
}

struct CaptureInfo {
    CUstreamCaptureStatus* status = nullptr;
    cuuint64_t* id = nullptr;
    CUgraph* graph = nullptr;
    const CUgraphNode** dependencies = nullptr;
    const CUgraphEdgeData** edges = nullptr;
    std::size_t* count = nullptr;
};

CUresult capture_info(const char* name, CUstream handle, const CaptureInfo& info) {
    Call call(name);
    if (call.refused()) {
        return call.result();
    }
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (info.status == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult refused = softdev::legacy_implicit(*stream, false);
        refused != CUDA_SUCCESS) {
        return refused;
    }
    const auto& capture = stream->capture;
    *info.status = capture == nullptr     ? CU_STREAM_CAPTURE_STATUS_NONE
                   : capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                          : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (*info.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        return CUDA_SUCCESS;
    }
    if (info.id != nullptr) {
        *info.id = capture->id;
    }
    if (info.graph != nullptr) {
        *info.graph = capture->handle;
    }
    if (info.edges != nullptr) {
        *info.edges = nullptr;  // no edge here has data
    }
    // Valid until the next call on the stream, as documented: GraphNode pointers are the handles.
    if (info.dependencies != nullptr) {
        *info.dependencies = reinterpret_cast<const CUgraphNode*>(stream->capture_front.data());
    }
    if (info.count != nullptr) {
        *info.count = stream->capture_front.size();
    }
    return CUDA_SUCCESS;
}

CUresult update_dependencies(const char* name, CUstream handle, CUgraphNode* nodes,
                             std::size_t count, unsigned flags) {
    Call call(name);
    if (call.refused()) {
        return call.result();
    }
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (stream->capture == nullptr) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    if (stream->capture->invalidated) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count > 0 && nodes == nullptr)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::vector<softdev::GraphNode*> front;
    if (flags == CU_STREAM_ADD_CAPTURE_DEPENDENCIES) {
        front = stream->capture_front;
    }
    for (std::size_t i = 0; i < count; ++i) {
        softdev::GraphNode* node = stream->capture->graph->find(nodes[i]);
        if (node == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (std::find(front.begin(), front.end(), node) == front.end()) {
            front.push_back(node);
        }
    }
    stream->capture_front = front;
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
        stream->capture_last = nullptr;
    }
    return CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
    SOFTDEV_CALL(call);
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (stream->kind == softdev::StreamKind::legacy) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (stream->capture != nullptr) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    auto capture = std::make_shared<softdev::Capture>();
    capture->id = captures().next_id++;
    capture->mode = mode;
    capture->thread = softdev::thread_state().id;
    capture->graph = std::make_shared<softdev::Graph>();
    capture->handle = static_cast<CUgraph>(captures().graphs.add(capture->graph));
    capture->origin = stream.get();
    capture->streams.push_back(stream);
    captures().active.push_back(capture);
    stream->capture = capture;
    stream->capture_front.clear();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamEndCapture(CUstream handle, CUgraph* graph) {
    SOFTDEV_CALL(call);
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (graph == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *graph = nullptr;
    const std::shared_ptr<softdev::Capture> capture = stream->capture;
    if (capture == nullptr) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
        capture->thread != softdev::thread_state().id) {
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    if (capture->origin != stream.get()) {
        return softdev::invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    CUresult result = CUDA_SUCCESS;
    if (capture->invalidated) {
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else if (!joined(*capture)) {
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    const CUgraph made = capture->handle;
    softdev::end_capture(capture);
    if (result == CUDA_SUCCESS) {
        *graph = made;
    } else {
        captures().graphs.remove(made);
    }
    return result;
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
    CaptureInfo info;
    info.status = status;
    return capture_info(__func__, handle, info);
}

#undef cuStreamGetCaptureInfo
SOFTDEV_EXPORT CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream handle,
                                                       CUstreamCaptureStatus* status,
                                                       cuuint64_t* id) {
    CaptureInfo info;
    info.status = status;
    info.id = id;
    return capture_info(__func__, handle, info);
}

SOFTDEV_EXPORT CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream handle,
                                                          CUstreamCaptureStatus* status,
                                                          cuuint64_t* id, CUgraph* graph,
                                                          const CUgraphNode** dependencies,
                                                          std::size_t* count) {
    return capture_info(__func__, handle, {status, id, graph, dependencies, nullptr, count});
}

CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus* status,
                                           cuuint64_t* id, CUgraph* graph,
                                           const CUgraphNode** dependencies,
                                           const CUgraphEdgeData** edges, std::size_t* count) {
    return capture_info(__func__, handle, {status, id, graph, dependencies, edges, count});
}

#undef cuStreamUpdateCaptureDependencies
SOFTDEV_EXPORT CUresult CUDAAPI cuStreamUpdateCaptureDependencies(CUstream handle,
                                                                  CUgraphNode* nodes,
                                                                  std::size_t count,
                                                                  unsigned flags) {
    return update_dependencies(__func__, handle, nodes, count, flags);
}

CUresult CUDAAPI cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode* nodes,
                                                      const CUgraphEdgeData*, std::size_t count,
                                                      unsigned flags) {
    return update_dependencies(__func__, handle, nodes, count, flags);
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
        *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::swap(*mode, softdev::thread_state().capture_mode);
    return CUDA_SUCCESS;
}
