// SPDX-License-Identifier: Apache-2.0
// Graphs beyond capture: user objects, dependencies that are added, streams that come and go while
// a capture is under way.
#include "tests/component/softdev/cuda/fixture.h"

namespace softdev::test {
namespace {

class Graphs : public SoftCuda {
protected:
    void begin(CUstream s) {
        ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    }
    CUgraph end(CUstream s) {
        CUgraph graph = nullptr;
        EXPECT_EQ(cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
        return graph;
    }
    CUgraph graph_of(CUstream s) {
        CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
        CUgraph graph = nullptr;
        EXPECT_EQ(cuStreamGetCaptureInfo_v3(s, &status, nullptr, &graph, nullptr, nullptr, nullptr),
                  CUDA_SUCCESS);
        EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
        return graph;
    }
    std::vector<CUgraphNode> front_of(CUstream s) {
        CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
        const CUgraphNode* nodes = nullptr;
        std::size_t count = 0;
        EXPECT_EQ(cuStreamGetCaptureInfo_v3(s, &status, nullptr, nullptr, &nodes, nullptr, &count),
                  CUDA_SUCCESS);
        return {nodes, nodes + count};
    }
    CUuserObject object(int* ended, unsigned references = 1) {
        CUuserObject made = nullptr;
        EXPECT_EQ(cuUserObjectCreate(
                      &made, ended, [](void* count) { ++*static_cast<int*>(count); }, references,
                      CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
                  CUDA_SUCCESS);
        return made;
    }
    // Begins a capture whose graph alone holds an object.
    CUuserObject begin_with_object(CUstream s, int* ended) {
        begin(s);
        const CUuserObject made = object(ended);
        EXPECT_EQ(cuGraphRetainUserObject(graph_of(s), made, 1, CU_GRAPH_USER_OBJECT_MOVE),
                  CUDA_SUCCESS);
        return made;
    }
    CUgraphExec executable(CUgraph graph) {
        CUgraphExec exec = nullptr;
        EXPECT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
        return exec;
    }
    // Begins a capture on `origin` that `forked` joins, where it captures a fill of 16 bytes.
    void capture_on_fork(CUstream origin, CUstream forked, CUdeviceptr p) {
        const CUevent e = event();
        begin(origin);
        ASSERT_EQ(cuEventRecord(e, origin), CUDA_SUCCESS);
        ASSERT_EQ(cuStreamWaitEvent(forked, e, 0), CUDA_SUCCESS);
        ASSERT_EQ(cuMemsetD8Async(p, 5, 16, forked), CUDA_SUCCESS);
    }
    unsigned char byte_at(CUdeviceptr p) {
        unsigned char byte = 0;
        EXPECT_EQ(cuMemcpyDtoH(&byte, p, 1), CUDA_SUCCESS);
        return byte;
    }
    void end_of(CUgraphExec exec, CUgraph graph) {
        EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
        EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    }
};

TEST_F(Graphs, AUserObjectEndsWithTheLastGraphThatHoldsIt) {
    const CUstream s = stream();
    const CUdeviceptr p = memory(16);
    int ended = 0;
    begin_with_object(s, &ended);
    ASSERT_EQ(cuMemsetD8Async(p, 1, 16, s), CUDA_SUCCESS);
    const CUgraph graph = end(s);
    const CUgraphExec exec = executable(graph);
    EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    EXPECT_EQ(ended, 0) << "the executable graph holds it";
    EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    EXPECT_EQ(ended, 1);
}

TEST_F(Graphs, AnExecutableGraphHasReferencesOfItsOwn) {
    const CUstream s = stream();
    int ended = 0;
    const CUuserObject one = begin_with_object(s, &ended);
    const CUgraph graph = end(s);
    const CUgraphExec exec = executable(graph);
    EXPECT_EQ(cuGraphReleaseUserObject(graph, one, 1), CUDA_SUCCESS);
    EXPECT_EQ(ended, 0) << "the executable graph holds it";
    EXPECT_EQ(cuUserObjectRelease(one, 1), CUDA_ERROR_INVALID_VALUE) << "none is the job's";
    EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    EXPECT_EQ(ended, 1);
    EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    EXPECT_EQ(ended, 1);
}

TEST_F(Graphs, AUserObjectOutlivesALaunchThatIsUnderWay) {
    const CUstream s = stream();
    int ended = 0;
    begin_with_object(s, &ended);
    ASSERT_EQ(cuLaunchHostFunc(
                  s, [](void*) {}, nullptr),
              CUDA_SUCCESS);
    const CUgraph graph = end(s);
    const CUgraphExec exec = executable(graph);
    EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    Gate gate;
    ASSERT_EQ(gate.hold(s), CUDA_SUCCESS);
    ASSERT_EQ(cuGraphLaunch(exec, s), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    EXPECT_EQ(ended, 0) << "its nodes have not run";
    gate.open();
    ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT_EQ(ended, 1);
}

TEST_F(Graphs, AnInvalidCaptureLetsGoOfItsUserObjects) {
    const CUstream s = stream();
    int ended = 0;
    begin_with_object(s, &ended);
    EXPECT_EQ(cuStreamSynchronize(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(ended, 1);
}

TEST_F(Graphs, ReferencesAreCounted) {
    int ended = 0;
    const CUuserObject one = object(&ended, 2);
    CUgraph graph = nullptr;
    ASSERT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphRetainUserObject(graph, one, 3, CU_GRAPH_USER_OBJECT_MOVE),
              CUDA_ERROR_INVALID_VALUE)
        << "more than there are";
    EXPECT_EQ(cuGraphRetainUserObject(graph, one, 1, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuUserObjectRelease(one, 3), CUDA_ERROR_INVALID_VALUE) << "one is the graph's";
    EXPECT_EQ(cuUserObjectRelease(one, 2), CUDA_SUCCESS);
    EXPECT_EQ(ended, 0);
    EXPECT_EQ(cuGraphReleaseUserObject(graph, one, 2), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGraphReleaseUserObject(graph, one, 1), CUDA_SUCCESS);
    EXPECT_EQ(ended, 1);
    EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    EXPECT_EQ(ended, 1);
    expect_reports(1);
    EXPECT_EQ(cuUserObjectRetain(one, 1), CUDA_ERROR_INVALID_VALUE) << "it is gone";
}

TEST_F(Graphs, ADestructorMayNotCallTheDevice) {
    CUuserObject made = nullptr;
    static CUresult answer = CUDA_SUCCESS;
    ASSERT_EQ(cuUserObjectCreate(
                  &made, nullptr, [](void*) { answer = cuCtxSynchronize(); }, 1,
                  CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
              CUDA_SUCCESS);
    expect_reports(1);
    EXPECT_EQ(cuUserObjectRelease(made, 1), CUDA_SUCCESS);
    EXPECT_EQ(answer, CUDA_ERROR_NOT_PERMITTED);
}

// NCCL's way to put work of its own into a capture: a stream that lives for a few calls.
TEST_F(Graphs, AForkedStreamMayBeDestroyedBeforeTheEnd) {
    const CUstream origin = stream();
    const CUstream forked = stream();
    const CUdeviceptr p = memory(16);
    capture_on_fork(origin, forked, p);
    std::vector<CUgraphNode> front = front_of(forked);
    ASSERT_EQ(front.size(), 1u);
    ASSERT_EQ(cuStreamDestroy(forked), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamUpdateCaptureDependencies_v2(origin, front.data(), nullptr, front.size(),
                                                   CU_STREAM_ADD_CAPTURE_DEPENDENCIES),
              CUDA_SUCCESS);
    const CUgraph graph = end(origin);
    const CUgraphExec exec = executable(graph);
    ASSERT_EQ(cuGraphLaunch(exec, origin), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(origin), CUDA_SUCCESS);
    EXPECT_EQ(byte_at(p), 5);
    end_of(exec, graph);
}

TEST_F(Graphs, WhatADestroyedStreamCapturedHasToBeJoined) {
    const CUstream origin = stream();
    const CUstream forked = stream();
    const CUdeviceptr p = memory(16);
    capture_on_fork(origin, forked, p);
    ASSERT_EQ(cuStreamDestroy(forked), CUDA_SUCCESS);
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
}

// NCCL's way to let later work outside of the graph wait for it.
TEST_F(Graphs, WhatAStreamIsToldToFollowNeedsNoJoin) {
    const CUstream origin = stream();
    const CUstream forked = stream();
    const CUevent recorded = event();
    const CUdeviceptr p = memory(16);
    capture_on_fork(origin, forked, p);
    std::vector<CUgraphNode> work = front_of(forked);
    ASSERT_EQ(cuStreamUpdateCaptureDependencies_v2(origin, work.data(), nullptr, 1,
                                                   CU_STREAM_ADD_CAPTURE_DEPENDENCIES),
              CUDA_SUCCESS);
    CUgraphNode node = nullptr;
    ASSERT_EQ(cuGraphAddEventRecordNode(&node, graph_of(origin), work.data(), 1, recorded),
              CUDA_SUCCESS);
    ASSERT_EQ(cuStreamUpdateCaptureDependencies_v2(forked, &node, nullptr, 1,
                                                   CU_STREAM_SET_CAPTURE_DEPENDENCIES),
              CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(end(origin)), CUDA_SUCCESS);
}

TEST_F(Graphs, WithoutItsOriginACaptureIsOver) {
    const CUstream origin = stream();
    const CUstream forked = stream();
    const CUevent e = event();
    begin(origin);
    ASSERT_EQ(cuEventRecord(e, origin), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(forked, e, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamDestroy(origin), CUDA_SUCCESS);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    EXPECT_EQ(cuStreamIsCapturing(forked, &status), CUDA_SUCCESS);
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST_F(Graphs, AnEventNodeRunsAfterWhatItWasTiedTo) {
    const CUstream s = stream();
    const CUevent recorded = event();
    const CUdeviceptr p = memory(16);
    begin(s);
    CUgraphNode node = nullptr;
    const CUgraph captured = graph_of(s);
    // Made before the work that it has to follow.
    ASSERT_EQ(cuGraphAddEventRecordNode(&node, captured, nullptr, 0, recorded), CUDA_SUCCESS);
    ASSERT_EQ(cuMemsetD8Async(p, 9, 16, s), CUDA_SUCCESS);
    const std::vector<CUgraphNode> work = front_of(s);
    ASSERT_EQ(work.size(), 1u);
    ASSERT_EQ(cuGraphAddDependencies_v2(captured, work.data(), &node, nullptr, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphAddDependencies_v2(captured, work.data(), &node, nullptr, 1),
              CUDA_ERROR_INVALID_VALUE)
        << "it is there already";
    EXPECT_EQ(cuGraphAddDependencies_v2(captured, &node, work.data(), nullptr, 1),
              CUDA_ERROR_INVALID_VALUE)
        << "a circle";
    ASSERT_EQ(cuStreamUpdateCaptureDependencies_v2(s, &node, nullptr, 1,
                                                   CU_STREAM_SET_CAPTURE_DEPENDENCIES),
              CUDA_SUCCESS);
    const CUgraph graph = end(s);
    CUgraphNode nodes[2] = {};
    std::size_t count = 2;
    ASSERT_EQ(cuGraphGetNodes(graph, nodes, &count), CUDA_SUCCESS);
    EXPECT_EQ(nodes[0], work[0]);
    EXPECT_EQ(nodes[1], node);
    const CUgraphExec exec = executable(graph);
    Gate gate;
    ASSERT_EQ(gate.hold(s), CUDA_SUCCESS);
    ASSERT_EQ(cuGraphLaunch(exec, s), CUDA_SUCCESS);
    EXPECT_EQ(cuEventQuery(recorded), CUDA_ERROR_NOT_READY) << "its turn has not come";
    gate.open();
    ASSERT_EQ(cuEventSynchronize(recorded), CUDA_SUCCESS);
    EXPECT_EQ(byte_at(p), 9);
    end_of(exec, graph);
}

TEST_F(Graphs, WhatIsAddedLaterIsNotInAnExecutableGraph) {
    const CUstream s = stream();
    const CUevent recorded = event();
    const CUdeviceptr p = memory(16);
    begin(s);
    ASSERT_EQ(cuMemsetD8Async(p, 1, 16, s), CUDA_SUCCESS);
    ASSERT_EQ(cuMemsetD8Async(p, 2, 16, s), CUDA_SUCCESS);
    const std::vector<CUgraphNode> last = front_of(s);
    ASSERT_EQ(last.size(), 1u);
    const CUgraph graph = end(s);
    const CUgraphExec exec = executable(graph);
    CUgraphNode node = nullptr;
    ASSERT_EQ(cuGraphAddEventRecordNode(&node, graph, nullptr, 0, recorded), CUDA_SUCCESS);
    ASSERT_EQ(cuGraphAddDependencies_v2(graph, &node, last.data(), nullptr, 1), CUDA_SUCCESS);
    Gate gate;
    ASSERT_EQ(gate.hold(s), CUDA_SUCCESS);
    ASSERT_EQ(cuGraphLaunch(exec, s), CUDA_SUCCESS);
    EXPECT_EQ(cuEventQuery(recorded), CUDA_SUCCESS) << "nothing recorded it";
    gate.open();
    ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT_EQ(byte_at(p), 2) << "the last node ran";
    end_of(exec, graph);
}

}  // namespace
}  // namespace softdev::test
