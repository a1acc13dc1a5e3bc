// SPDX-License-Identifier: Apache-2.0
// Runtime API: streams, events, host functions, capture and graphs. The handles are the driver's.
#include "softdev/cuda/runtime/runtime.h"

using softdev::runtime::finish;
using softdev::runtime::in_context;
using softdev::runtime::stream_of;

cudaError_t CUDARTAPI cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags,
                                                   int priority) {
    return in_context([&] { return cuStreamCreateWithPriority(stream, flags, priority); });
}
cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return in_context([&] { return cuStreamCreate(stream, flags); });
}
cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t* stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream) {
    return in_context([&] { return cuStreamDestroy(stream); });
}
cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t stream) {
    return in_context([&] { return cuStreamSynchronize(stream_of(stream)); });
}
cudaError_t CUDARTAPI cudaStreamQuery(cudaStream_t stream) {
    return in_context([&] { return cuStreamQuery(stream_of(stream)); });
}
cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    return in_context([&] { return cuStreamWaitEvent(stream_of(stream), event, flags); });
}
cudaError_t CUDARTAPI cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    return in_context([&] { return cuStreamGetPriority(stream_of(stream), priority); });
}
cudaError_t CUDARTAPI cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
    return in_context([&] { return cuStreamGetFlags(stream_of(stream), flags); });
}
cudaError_t CUDARTAPI cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
    return in_context([&] { return cuStreamGetId(stream_of(stream), id); });
}

cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    return in_context([&] { return cuEventCreate(event, flags); });
}
cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t* event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t CUDARTAPI cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                               unsigned flags) {
    return in_context([&] { return cuEventRecordWithFlags(event, stream_of(stream), flags); });
}
cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}
cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event) {
    return in_context([&] { return cuEventQuery(event); });
}
cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event) {
    return in_context([&] { return cuEventSynchronize(event); });
}
cudaError_t CUDARTAPI cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
    return in_context([&] { return cuEventElapsedTime(ms, start, end); });
}
cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event) {
    return in_context([&] { return cuEventDestroy(event); });
}

cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* data) {
    return in_context([&] { return cuLaunchHostFunc(stream_of(stream), fn, data); });
}

cudaError_t CUDARTAPI cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    return in_context([&] {
        return cuStreamIsCapturing(stream_of(stream),
                                   reinterpret_cast<CUstreamCaptureStatus*>(status));
    });
}
cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    return in_context([&] {
        return cuStreamBeginCapture(stream_of(stream), static_cast<CUstreamCaptureMode>(mode));
    });
}
cudaError_t CUDARTAPI cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    return in_context([&] { return cuStreamEndCapture(stream_of(stream), graph); });
}
cudaError_t CUDARTAPI cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                               unsigned long long* id, cudaGraph_t* graph,
                                               const cudaGraphNode_t** dependencies,
                                               const cudaGraphEdgeData** edges,
                                               std::size_t* count) {
    return in_context([&] {
        cuuint64_t number = 0;
        const CUresult result = cuStreamGetCaptureInfo(
            stream_of(stream), reinterpret_cast<CUstreamCaptureStatus*>(status), &number, graph,
            dependencies, reinterpret_cast<const CUgraphEdgeData**>(edges), count);
        if (id != nullptr) {
            *id = number;
        }
        return result;
    });
}
cudaError_t CUDARTAPI cudaStreamUpdateCaptureDependencies(cudaStream_t stream,
                                                          cudaGraphNode_t* dependencies,
                                                          const cudaGraphEdgeData* edges,
                                                          std::size_t count, unsigned flags) {
    return in_context([&] {
        return cuStreamUpdateCaptureDependencies_v2(stream_of(stream), dependencies,
                                                    reinterpret_cast<const CUgraphEdgeData*>(edges),
                                                    count, flags);
    });
}
cudaError_t CUDARTAPI cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    return in_context([&] {
        return cuThreadExchangeStreamCaptureMode(reinterpret_cast<CUstreamCaptureMode*>(mode));
    });
}

cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                           unsigned long long flags) {
    return in_context([&] { return cuGraphInstantiate(exec, graph, flags); });
}
cudaError_t CUDARTAPI cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                                    unsigned long long flags) {
    return cudaGraphInstantiate(exec, graph, flags);
}
cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    return in_context([&] { return cuGraphLaunch(exec, stream_of(stream)); });
}
cudaError_t CUDARTAPI cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes,
                                        std::size_t* count) {
    return in_context([&] { return cuGraphGetNodes(graph, nodes, count); });
}
cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t exec) {
    return in_context([&] { return cuGraphExecDestroy(exec); });
}
cudaError_t CUDARTAPI cudaGraphDestroy(cudaGraph_t graph) {
    return in_context([&] { return cuGraphDestroy(graph); });
}
cudaError_t CUDARTAPI cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                               const cudaGraphNode_t* to,
                                               const cudaGraphEdgeData* edges, std::size_t count) {
    return in_context([&] {
        return cuGraphAddDependencies_v2(graph, from, to,
                                         reinterpret_cast<const CUgraphEdgeData*>(edges), count);
    });
}
cudaError_t CUDARTAPI cudaGraphAddEventRecordNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                  const cudaGraphNode_t* dependencies,
                                                  std::size_t count, cudaEvent_t event) {
    return in_context(
        [&] { return cuGraphAddEventRecordNode(node, graph, dependencies, count, event); });
}

cudaError_t CUDARTAPI cudaUserObjectCreate(cudaUserObject_t* object, void* pointer,
                                           cudaHostFn_t destroy, unsigned references,
                                           unsigned flags) {
    return in_context(
        [&] { return cuUserObjectCreate(object, pointer, destroy, references, flags); });
}
cudaError_t CUDARTAPI cudaUserObjectRetain(cudaUserObject_t object, unsigned count) {
    return in_context([&] { return cuUserObjectRetain(object, count); });
}
cudaError_t CUDARTAPI cudaUserObjectRelease(cudaUserObject_t object, unsigned count) {
    return in_context([&] { return cuUserObjectRelease(object, count); });
}
cudaError_t CUDARTAPI cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                                unsigned count, unsigned flags) {
    return in_context([&] { return cuGraphRetainUserObject(graph, object, count, flags); });
}
cudaError_t CUDARTAPI cudaGraphReleaseUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                                 unsigned count) {
    return in_context([&] { return cuGraphReleaseUserObject(graph, object, count); });
}
