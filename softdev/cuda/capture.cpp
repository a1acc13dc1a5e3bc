// SPDX-License-Identifier: Apache-2.0
#include "softdev/cuda/capture.h"

#include <algorithm>
#include <utility>

#include "softdev/cuda/memory.h"

namespace softdev {

Captures& captures() {
    static Captures* const value = new Captures;
    return *value;
}

UserObject::~UserObject() {
    // As on a GPU, where the driver's thread calls it: it must not use the API.
    ThreadState& thread = thread_state();
    const char* const outer = std::exchange(thread.host_function, "a user object's destructor");
    destroy(pointer);
    thread.host_function = outer;
}

std::shared_ptr<UserObject> drop_references(UserObject& object, unsigned count) {
    object.references -= std::min(count, object.references);
    return object.references == 0 ? captures().objects.remove(object.handle) : nullptr;
}

namespace {

// The objects that end with these references: to be destroyed after the lock's end.
std::vector<std::shared_ptr<UserObject>> let_go(const std::map<UserObject*, unsigned>& objects) {
    std::vector<std::shared_ptr<UserObject>> ended;
    for (const auto& [object, references] : objects) {
        object->held_by_graphs -= references;
        ended.push_back(drop_references(*object, references));
    }
    return ended;
}

}  // namespace

Graph::~Graph() {
    if (memory.empty() && objects.empty()) {
        return;
    }
    std::vector<std::shared_ptr<UserObject>> ended;
    const std::lock_guard<std::mutex> lock(device().mutex);
    for (const std::uintptr_t base : memory) {
        release(base, "the end of its graph");
    }
    ended = let_go(objects);
}

GraphExec::GraphExec(std::shared_ptr<Graph> source)
    : graph(std::move(source)), nodes(graph->nodes), objects(graph->objects) {
    for (const auto& [object, references] : objects) {
        object->references += references;
        object->held_by_graphs += references;
    }
}

GraphExec::~GraphExec() {
    if (objects.empty()) {
        return;
    }
    std::vector<std::shared_ptr<UserObject>> ended;
    const std::lock_guard<std::mutex> lock(device().mutex);
    ended = let_go(objects);
}

GraphNode* Graph::find(CUgraphNode handle) const {
    const auto it = std::find_if(nodes.begin(), nodes.end(), [&](const auto& node) {
        return reinterpret_cast<CUgraphNode>(node.get()) == handle;
    });
    return it != nodes.end() ? it->get() : nullptr;
}

CUresult invalidate(Capture& capture, CUresult why) {
    capture.invalidated = true;
    return why;
}

CUresult unsafe_call() {
    if (captures().active.empty()) {
        return CUDA_SUCCESS;
    }
    const ThreadState& thread = thread_state();
    if (thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_SUCCESS;
    }
    CUresult result = CUDA_SUCCESS;
    for (const auto& capture : captures().active) {
        const bool own = capture->thread == thread.id;
        const bool prohibited = own ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                                    : thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                          capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (prohibited) {
            result = invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
    }
    return result;
}

CUresult legacy_implicit(const Stream& stream, bool invalid) {
    if (stream.kind != StreamKind::legacy || captures().active.empty()) {
        return CUDA_SUCCESS;
    }
    CUresult result = CUDA_SUCCESS;
    for (const StreamPtr& other : stream.context->streams) {
        if (other->capture != nullptr && other->blocking()) {
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
            if (invalid) {
                other->capture->invalidated = true;
            }
        }
    }
    return result;
}

GraphNode* add_node(Stream& stream, GraphNode node) {
    Graph& graph = *stream.capture->graph;
    node.follows = stream.capture_front;
    graph.nodes.push_back(std::make_shared<GraphNode>(std::move(node)));
    stream.capture_last = graph.nodes.back().get();
    stream.capture_front = {stream.capture_last};
    return graph.nodes.back().get();
}

CUresult capture_record(Stream& stream, const std::shared_ptr<Event>& event, bool external) {
    if (stream.capture->invalidated) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (external) {
        GraphNode node;
        node.kind = GraphNode::Kind::record_event;
        node.event = event;
        node.label = "cuEventRecord";
        add_node(stream, std::move(node));
        return CUDA_SUCCESS;
    }
    event->capture = stream.capture;
    event->capture_front = stream.capture_front;
    event->record = nullptr;
    return CUDA_SUCCESS;
}

CUresult capture_wait(const StreamPtr& stream, const std::shared_ptr<Event>& event, bool external) {
    if (stream->capture != nullptr && stream->capture->invalidated) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (external) {
        if (stream->capture == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        GraphNode node;
        node.kind = GraphNode::Kind::wait_event;
        node.event = event;
        node.label = "cuStreamWaitEvent";
        add_node(*stream, std::move(node));
        return CUDA_SUCCESS;
    }
    if (event->capture == nullptr) {
        // Work outside a capture cannot be waited for inside it; an event without a record is no
        // work.
        return event->record == nullptr
                   ? CUDA_SUCCESS
                   : invalidate(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    }
    if (event->capture->ended) {
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    if (event->capture->invalidated) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (stream->kind == StreamKind::legacy) {
        return invalidate(*event->capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    if (stream->capture != nullptr && stream->capture != event->capture) {
        invalidate(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
        return invalidate(*event->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    if (stream->capture == nullptr) {
        stream->capture = event->capture;
        stream->capture->streams.push_back(stream);
        stream->capture_front.clear();
    }
    for (GraphNode* node : event->capture_front) {
        if (std::find(stream->capture_front.begin(), stream->capture_front.end(), node) ==
            stream->capture_front.end()) {
            stream->capture_front.push_back(node);
        }
    }
    return CUDA_SUCCESS;
}

std::shared_ptr<Graph> end_capture(const std::shared_ptr<Capture>& capture) {
    for (const StreamPtr& stream : capture->streams) {
        stream->capture = nullptr;
        stream->capture_front.clear();
        stream->capture_last = nullptr;
    }
    capture->streams.clear();
    capture->ended = true;
    std::erase(captures().active, capture);
    thread_state().trash.push_back(capture->graph);
    return std::move(capture->graph);
}

void leave_capture(Stream& stream) {
    if (stream.capture == nullptr) {
        return;
    }
    const std::shared_ptr<Capture> capture = std::move(stream.capture);
    stream.capture = nullptr;
    if (stream.capture_last != nullptr) {
        capture->left.push_back(stream.capture_last);
    }
    stream.capture_last = nullptr;
    stream.capture_front.clear();
    std::erase_if(capture->streams, [&](const StreamPtr& s) { return s.get() == &stream; });
    if (capture->origin == &stream) {
        capture->invalidated = true;
        end_capture(capture);
    }
}

}  // namespace softdev
