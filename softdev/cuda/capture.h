// SPDX-License-Identifier: Apache-2.0
// Stream capture, and the graphs it makes.
#pragma once

#include <map>

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

/// What a job ties to the life of graphs (cuUserObjectCreate): its destructor runs when the last
/// reference, of the job or of a graph, is gone.
struct UserObject {
    ~UserObject();  ///< calls the job back: never while the lock is held (ThreadState::trash)
    void* pointer = nullptr;
    CUhostFn destroy = nullptr;
    unsigned references = 0;
    unsigned held_by_graphs = 0;  ///< of the references
    CUuserObject handle = nullptr;
};

/// Nodes in an order they may run in: that of capture, unless later dependencies forbid it.
struct Graph {
    ~Graph();  ///< takes the lock: never the last owner while it is held (ThreadState::trash)
    std::vector<std::shared_ptr<GraphNode>> nodes;
    std::vector<std::uintptr_t> memory;       ///< allocated by captured cuMemAllocAsync calls
    std::map<UserObject*, unsigned> objects;  ///< references that the graph holds

    GraphNode* find(CUgraphNode handle) const;
};

/// A graph as it was when it was made executable. What is done to the graph later changes nothing
/// here.
struct GraphExec {
    explicit GraphExec(std::shared_ptr<Graph> source);
    GraphExec(const GraphExec&) = delete;
    GraphExec& operator=(const GraphExec&) = delete;
    ~GraphExec();                  ///< as the graph's
    std::shared_ptr<Graph> graph;  ///< owns the memory
    std::vector<std::shared_ptr<GraphNode>> nodes;
    std::map<UserObject*, unsigned> objects;  ///< references of its own
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
    std::vector<GraphNode*> left;  ///< what destroyed streams captured last: the origin has to join
};

struct Captures {
    std::vector<std::shared_ptr<Capture>> active;
    HandleTable<Graph, HandleKind::graph> graphs;
    HandleTable<GraphExec, HandleKind::graph_exec> execs;
    HandleTable<UserObject, HandleKind::user_object> objects;
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
/// A destroyed stream leaves its capture. The capture goes on without a stream that was forked off;
/// without its origin it is invalid.
void leave_capture(Stream& stream);
/// Takes references away from an object. After the last one its destructor is due: it is returned,
/// to be dropped when the lock is not held.
std::shared_ptr<UserObject> drop_references(UserObject& object, unsigned count);

}  // namespace softdev
