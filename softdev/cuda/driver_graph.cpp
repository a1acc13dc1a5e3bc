// SPDX-License-Identifier: Apache-2.0
// Driver API: graphs made by capture. A launch puts the nodes on the stream one after the other, in
// an order that keeps all dependencies: correct, if less parallel than a GPU could be.
#include <algorithm>
#include <set>

#include "softdev/cuda/capture.h"
#include "softdev/cuda/report.h"
#include "softdev/cuda/submit.h"
#include "softdev/cuda/thread.h"

using softdev::Call;
using softdev::captures;

namespace {

CUresult launch_node(Call& call, const softdev::StreamPtr& stream, const softdev::GraphNode& node) {
    switch (node.kind) {
        case softdev::GraphNode::Kind::empty:
            return CUDA_SUCCESS;
        case softdev::GraphNode::Kind::record_event:
            softdev::record_event(stream, node.event);
            return CUDA_SUCCESS;
        case softdev::GraphNode::Kind::wait_event:
            softdev::wait_event(stream, *node.event);
            return CUDA_SUCCESS;
        case softdev::GraphNode::Kind::work: {
            softdev::Work work;
            work.kind = node.op;
            work.task = node.task;
            work.label = node.label + " (graph)";
            work.accesses = {node.accesses.data(), node.accesses.size()};
            work.tells = node.op == softdev::OpKind::host_function;
            return softdev::submit(call, stream, std::move(work));
        }
    }
    return CUDA_ERROR_UNKNOWN;
}

// Nodes after what they follow, else in the order they have. False, and nothing changed, for a
// cycle.
bool put_in_order(softdev::Graph& graph) {
    std::vector<std::shared_ptr<softdev::GraphNode>> ordered;
    std::set<const softdev::GraphNode*> placed;
    while (ordered.size() < graph.nodes.size()) {
        const auto next =
            std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const auto& node) {
                return placed.count(node.get()) == 0 &&
                       std::all_of(node->follows.begin(), node->follows.end(),
                                   [&](const auto* before) { return placed.count(before) > 0; });
            });
        if (next == graph.nodes.end()) {
            return false;
        }
        placed.insert(next->get());
        ordered.push_back(*next);
    }
    graph.nodes = std::move(ordered);
    return true;
}

CUresult add_dependencies(const char* name, CUgraph handle, const CUgraphNode* from,
                          const CUgraphNode* to, std::size_t count) {
    Call call(name, Call::Needs::driver);
    if (call.refused()) {
        return call.result();
    }
    softdev::Graph* graph = captures().graphs.find(handle);
    if (graph == nullptr || (count > 0 && (from == nullptr || to == nullptr))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::vector<std::pair<softdev::GraphNode*, softdev::GraphNode*>> edges;
    for (std::size_t i = 0; i < count; ++i) {
        edges.emplace_back(graph->find(from[i]), graph->find(to[i]));
        const auto& [before, after] = edges.back();
        // As the real one: an edge that is there already is an error.
        if (before == nullptr || after == nullptr ||
            std::count(after->follows.begin(), after->follows.end(), before) > 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    for (const auto& [before, after] : edges) {
        after->follows.push_back(before);
    }
    if (!put_in_order(*graph)) {
        for (const auto& [before, after] : edges) {
            std::erase(after->follows, before);
        }
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult instantiate(const char* name, CUgraphExec* exec, CUgraph handle) {
    Call call(name);
    if (call.refused()) {
        return call.result();
    }
    const auto graph = captures().graphs.share(handle);
    if (exec == nullptr || graph == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *exec =
        static_cast<CUgraphExec>(captures().execs.add(std::make_shared<softdev::GraphExec>(graph)));
    return CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuGraphCreate(CUgraph* graph, unsigned flags) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    if (graph == nullptr || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *graph = static_cast<CUgraph>(captures().graphs.add(std::make_shared<softdev::Graph>()));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph handle) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    const auto& active = captures().active;
    if (std::any_of(active.begin(), active.end(),
                    [&](const auto& capture) { return capture->handle == handle; })) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto graph = captures().graphs.remove(handle);
    if (graph == nullptr) {
        softdev::report("%s: %p is no graph, or destroyed", call.name(),
                        static_cast<void*>(handle));
        return CUDA_ERROR_INVALID_VALUE;
    }
    softdev::thread_state().trash.push_back(std::move(graph));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, std::size_t* count) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    const auto graph = captures().graphs.share(handle);
    if (graph == nullptr || count == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (nodes == nullptr) {
        *count = graph->nodes.size();
        return CUDA_SUCCESS;
    }
    for (std::size_t i = 0; i < *count; ++i) {
        nodes[i] = i < graph->nodes.size() ? reinterpret_cast<CUgraphNode>(graph->nodes[i].get())
                                           : nullptr;
    }
    *count = std::min(*count, graph->nodes.size());
    return CUDA_SUCCESS;
}

#undef cuGraphAddDependencies
SOFTDEV_EXPORT CUresult CUDAAPI cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from,
                                                       const CUgraphNode* to, std::size_t count) {
    return add_dependencies(__func__, graph, from, to, count);
}

CUresult CUDAAPI cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from,
                                           const CUgraphNode* to, const CUgraphEdgeData*,
                                           std::size_t count) {
    return add_dependencies(__func__, graph, from, to, count);
}

CUresult CUDAAPI cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph handle,
                                           const CUgraphNode* dependencies, std::size_t count,
                                           CUevent event_handle) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    softdev::Graph* graph = captures().graphs.find(handle);
    if (node == nullptr || graph == nullptr || (count > 0 && dependencies == nullptr)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    softdev::GraphNode made;
    made.kind = softdev::GraphNode::Kind::record_event;
    made.label = call.name();
    made.event = call.event(event_handle);
    if (made.event == nullptr) {
        return call.result();
    }
    for (std::size_t i = 0; i < count; ++i) {
        made.follows.push_back(graph->find(dependencies[i]));
        if (made.follows.back() == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    graph->nodes.push_back(std::make_shared<softdev::GraphNode>(std::move(made)));
    *node = reinterpret_cast<CUgraphNode>(graph->nodes.back().get());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long) {
    return instantiate(__func__, exec, graph);
}

CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
    if (parameters == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult result = instantiate(__func__, exec, graph);
    parameters->result_out =
        result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

#undef cuGraphInstantiate
SOFTDEV_EXPORT CUresult CUDAAPI cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode*,
                                                   char*, std::size_t) {
    return instantiate(__func__, exec, graph);
}
SOFTDEV_EXPORT CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph,
                                                      CUgraphNode*, char*, std::size_t) {
    return instantiate(__func__, exec, graph);
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec handle) {
    SOFTDEV_CALL(call, Call::Needs::driver);
    auto exec = captures().execs.remove(handle);
    if (exec == nullptr) {
        softdev::report("%s: %p is no executable graph, or destroyed", call.name(),
                        static_cast<void*>(handle));
        return CUDA_ERROR_INVALID_VALUE;
    }
    softdev::thread_state().trash.push_back(std::move(exec));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphUpload(CUgraphExec handle, CUstream) {
    SOFTDEV_CALL(call);
    return captures().execs.find(handle) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    SOFTDEV_CALL(call);
    const softdev::StreamPtr stream = call.stream(stream_handle);
    if (stream == nullptr) {
        return call.result();
    }
    const auto exec = captures().execs.share(handle);
    if (exec == nullptr) {
        softdev::report("%s: %p is no executable graph, or destroyed", call.name(),
                        static_cast<void*>(handle));
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult refused = softdev::may_submit(*stream); refused != CUDA_SUCCESS) {
        return refused;
    }
    if (stream->capture != nullptr) {
        return softdev::invalidate(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    for (const auto& node : exec->nodes) {
        const CUresult result = launch_node(call, stream, *node);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    if (exec->graph->memory.empty() && exec->objects.empty()) {
        return CUDA_SUCCESS;
    }
    // Queued nodes share their tasks. The executable graph, which holds memory and user objects,
    // lives until they have run.
    softdev::Work keep;
    keep.label = call.name();
    keep.task = softdev::make_task([exec] { return CUDA_SUCCESS; });
    return softdev::submit(call, stream, std::move(keep));
}
