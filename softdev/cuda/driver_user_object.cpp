// SPDX-License-Identifier: Apache-2.0
// Driver API: user objects, which tie what a job keeps for its graphs to the life of those graphs.
#include "softdev/cuda/capture.h"
#include "softdev/cuda/report.h"
#include "softdev/cuda/thread.h"

using softdev::Call;
using softdev::captures;

namespace {

softdev::UserObject* find(Call& call, CUuserObject handle) {
    softdev::UserObject* object = captures().objects.find(handle);
    if (object == nullptr) {
        softdev::report("%s: %p is no user object, or released", call.name(),
                        static_cast<void*>(handle));
        call.fail(CUDA_ERROR_INVALID_VALUE);
    }
    return object;
}

void drop(softdev::UserObject& object, unsigned count) {
    softdev::thread_state().trash.push_back(softdev::drop_references(object, count));
}

}  // namespace

CUresult CUDAAPI cuUserObjectCreate(CUuserObject* out, void* pointer, CUhostFn destroy,
                                    unsigned references, unsigned flags) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    // The flag says that the job does not wait for the destructor. There is no other way yet.
    if (out == nullptr || destroy == nullptr || references == 0 ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto object = std::make_shared<softdev::UserObject>();
    object->pointer = pointer;
    object->destroy = destroy;
    object->references = references;
    *out = static_cast<CUuserObject>(captures().objects.add(object));
    object->handle = *out;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuUserObjectRetain(CUuserObject handle, unsigned count) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    softdev::UserObject* object = find(call, handle);
    if (object == nullptr) {
        return call.result();
    }
    if (count == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    object->references += count;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuUserObjectRelease(CUuserObject handle, unsigned count) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    softdev::UserObject* object = find(call, handle);
    if (object == nullptr) {
        return call.result();
    }
    if (count == 0 || count > object->references - object->held_by_graphs) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    drop(*object, count);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count,
                                         unsigned flags) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    softdev::Graph* graph = captures().graphs.find(graph_handle);
    softdev::UserObject* object = graph != nullptr ? find(call, handle) : nullptr;
    if (object == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool moved = flags == CU_GRAPH_USER_OBJECT_MOVE;
    if (count == 0 || (flags != 0 && !moved) ||
        (moved && count > object->references - object->held_by_graphs)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    graph->objects[object] += count;
    object->held_by_graphs += count;
    object->references += moved ? 0 : count;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject handle,
                                          unsigned count) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    softdev::Graph* graph = captures().graphs.find(graph_handle);
    softdev::UserObject* object = graph != nullptr ? find(call, handle) : nullptr;
    if (object == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto held = graph->objects.find(object);
    if (count == 0 || held == graph->objects.end() || held->second < count) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    held->second -= count;
    object->held_by_graphs -= count;
    if (held->second == 0) {
        graph->objects.erase(held);
    }
    drop(*object, count);
    return CUDA_SUCCESS;
}
