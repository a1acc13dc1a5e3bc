// SPDX-License-Identifier: Apache-2.0
// Stream capture, and the graphs it makes.
#pragma once

#include "softdev/cuda/history.h"
#include "softdev/cuda/thread.h"

namespace softdev {

struct GraphNode {
    enum class Kind { empty, work, record_event, wait_event };
    Kind kind = Kind::work;
    OpKind op = OpKind::task;
    std::shared_ptr<Task> task;
    std::string label;
    std::vector<softdev_access_t> accesses;
    std::shared_ptr<Event> event;
    std::vector<GraphNode*> follows;
};

/// Nodes in the order of capture, which is an order they may run in. Shared with the executable
/// graphs made of it.
struct Graph {
    ~Graph();  ///< takes the lock: never the last owner while it is held (ThreadState::trash)
    std::vector<std::shared_ptr<GraphNode>> nodes;
    std::vector<std::uintptr_t> memory;  ///< allocated by captured cuMemAllocAsync calls
};

struct GraphExec {
    std::shared_ptr<Graph> graph;
    std::size_t nodes = 0;
};

struct Capture {
    std::uint64_t id = 0;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::uint64_t thread = 0;
    bool invalidated = false;
    bool ended = false;
    std::shared_ptr<Graph> graph;
    CUgraph handle = nullptr;
    Stream* origin = nullptr;
    std::vector<StreamPtr> streams;
};

struct Captures {
    std::vector<std::shared_ptr<Capture>> active;
    HandleTable<Graph, HandleKind::graph> graphs;
    HandleTable<GraphExec, HandleKind::graph_exec> execs;
    std::uint64_t next_id = 1;
};
Captures& captures();

/// For calls that may not happen while somebody captures (by the thread's and the captures' modes):
/// invalidates those captures and returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
CUresult unsafe_call();
/// Work on the legacy stream would make the captured blocking streams of the context depend on it.
CUresult legacy_implicit(const Stream& stream, bool invalidate);
/// What a call that works on the capture's stream may not do: invalidates it.
CUresult invalidate(Capture& capture, CUresult why);

/// Appends a node that follows what the stream captured last. The stream captures.
GraphNode* add_node(Stream& stream, GraphNode node);
/// cuEventRecord and cuStreamWaitEvent where a capture is involved.
CUresult capture_record(Stream& stream, const std::shared_ptr<Event>& event, bool external);
CUresult capture_wait(const StreamPtr& stream, const std::shared_ptr<Event>& event, bool external);
/// All its streams are free again. The graph is the caller's; nobody else's, its destructor runs
/// after the lock's end.
std::shared_ptr<Graph> end_capture(const std::shared_ptr<Capture>& capture);
/// A destroyed stream leaves its capture, which is then invalid.
void leave_capture(Stream& stream);

}  // namespace softdev
