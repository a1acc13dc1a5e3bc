// SPDX-License-Identifier: Apache-2.0
// Stream capture: states, what invalidates it, modes of threads, and the graphs it makes.
#include <thread>

#include "tests/component/softdev/cuda/fixture.h"

namespace softdev::test {
namespace {

class Captures : public SoftCuda {
protected:
    CUstreamCaptureStatus status(CUstream s) {
        CUstreamCaptureStatus value = CU_STREAM_CAPTURE_STATUS_NONE;
        EXPECT_EQ(cuStreamIsCapturing(s, &value), CUDA_SUCCESS);
        return value;
    }
    void begin(CUstream s, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
        ASSERT_EQ(cuStreamBeginCapture(s, mode), CUDA_SUCCESS);
    }
    void expect_end(CUstream s, CUresult result) {
        CUgraph graph = nullptr;
        EXPECT_EQ(cuStreamEndCapture(s, &graph), result);
        if (result == CUDA_SUCCESS) {
            EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
        } else {
            EXPECT_EQ(graph, nullptr);
        }
        EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_NONE);
    }
};

TEST_F(Captures, RecordsWorkAndRunsItOnLaunch) {
    const CUstream a = stream();
    const CUstream b = stream();
    const CUevent fork = event();
    const CUevent join = event();
    const CUdeviceptr p = memory(64);
    ASSERT_EQ(cuMemsetD8Async(p, 1, 64, a), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
    begin(a);
    EXPECT_EQ(status(a), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    ASSERT_EQ(cuMemsetD8Async(p, 7, 64, a), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(fork, a), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(b, fork, 0), CUDA_SUCCESS);
    EXPECT_EQ(status(b), CU_STREAM_CAPTURE_STATUS_ACTIVE) << "b has joined the capture";
    ASSERT_EQ(cuMemcpyDtoDAsync(p + 32, p, 16, b), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(join, b), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(a, join, 0), CUDA_SUCCESS);
    int calls = 0;
    ASSERT_EQ(cuLaunchHostFunc(
                  a, [](void* n) { ++*static_cast<int*>(n); }, &calls),
              CUDA_SUCCESS);
    CUgraph graph = nullptr;
    ASSERT_EQ(cuStreamEndCapture(a, &graph), CUDA_SUCCESS);
    EXPECT_EQ(status(b), CU_STREAM_CAPTURE_STATUS_NONE);
    std::size_t nodes = 0;
    EXPECT_EQ(cuGraphGetNodes(graph, nullptr, &nodes), CUDA_SUCCESS);
    EXPECT_EQ(nodes, 3u);
    unsigned char bytes[64] = {};
    ASSERT_EQ(cuMemcpyDtoH(bytes, p, 64), CUDA_SUCCESS);
    EXPECT_EQ(bytes[0], 1) << "captured work has not run";
    CUgraphExec exec = nullptr;
    ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    ASSERT_EQ(cuGraphLaunch(exec, a), CUDA_SUCCESS);
    ASSERT_EQ(cuGraphLaunch(exec, a), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
    ASSERT_EQ(cuMemcpyDtoH(bytes, p, 64), CUDA_SUCCESS);
    EXPECT_EQ(bytes[0], 7);
    EXPECT_EQ(bytes[40], 7);
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

TEST_F(Captures, KeepsAUserOperationUntilTheLastGraphIsGone) {
    const CUstream s = stream();
    struct Counts {
        int runs = 0;
        int done = 0;
    } counts;
    begin(s);
    ASSERT_EQ(softdevStreamEnqueue(
                  s, "counted",
                  [](void* p) {
                      ++static_cast<Counts*>(p)->runs;
                      return CUDA_SUCCESS;
                  },
                  [](void* p) { ++static_cast<Counts*>(p)->done; }, &counts, nullptr, 0),
              CUDA_SUCCESS);
    CUgraph graph = nullptr;
    ASSERT_EQ(cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
    CUgraphExec exec = nullptr;
    ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuGraphLaunch(exec, s), CUDA_SUCCESS);
    ASSERT_EQ(cuGraphLaunch(exec, s), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    EXPECT_EQ(counts.done, 0);
    EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    EXPECT_EQ(counts.runs, 2);
    EXPECT_EQ(counts.done, 1);
}

TEST_F(Captures, SynchronisingInvalidates) {
    const CUstream s = stream();
    begin(s);
    EXPECT_EQ(cuStreamSynchronize(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    EXPECT_EQ(cuLaunchHostFunc(
                  s, [](void*) {}, nullptr),
              CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    expect_end(s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(Captures, ACapturedEventCannotBeAskedFor) {
    const CUstream s = stream();
    const CUevent e = event();
    begin(s);
    ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
    EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_CAPTURED_EVENT);
    expect_end(s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(cuEventSynchronize(e), CUDA_ERROR_CAPTURED_EVENT);
    ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
    EXPECT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
}

TEST_F(Captures, UncapturedWorkAndOtherCapturesStayOutside) {
    const CUstream a = stream();
    const CUstream b = stream();
    const CUevent e = event();
    ASSERT_EQ(cuEventRecord(e, b), CUDA_SUCCESS);
    begin(a, CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT_EQ(cuStreamWaitEvent(a, e, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    expect_end(a, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(a);
    begin(b);
    ASSERT_EQ(cuEventRecord(e, b), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamWaitEvent(a, e, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
    expect_end(a, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    expect_end(b, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(Captures, HaveToBeJoinedAndEndedWhereTheyBegan) {
    const CUstream a = stream();
    const CUstream b = stream();
    const CUevent e = event();
    begin(a);
    ASSERT_EQ(cuEventRecord(e, a), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(b, e, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuLaunchHostFunc(
                  b, [](void*) {}, nullptr),
              CUDA_SUCCESS);
    expect_end(a, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    begin(a);
    ASSERT_EQ(cuEventRecord(e, a), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(b, e, 0), CUDA_SUCCESS);
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(b, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    std::thread([&] {
        ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
        EXPECT_EQ(cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }).join();
    expect_end(a, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(cuStreamEndCapture(a, &graph), CUDA_ERROR_ILLEGAL_STATE);
}

TEST_F(Captures, TheLegacyStreamMustNotDependOnOne) {
    const CUstream blocking = stream(CU_STREAM_DEFAULT);
    begin(blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
    CUstreamCaptureStatus value = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cuStreamIsCapturing(nullptr, &value), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT_EQ(status(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE) << "asking does no harm";
    EXPECT_EQ(cuLaunchHostFunc(
                  nullptr, [](void*) {}, nullptr),
              CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    expect_end(blocking, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    const CUstream free = stream(CU_STREAM_NON_BLOCKING);
    begin(free);
    EXPECT_EQ(cuLaunchHostFunc(
                  nullptr, [](void*) {}, nullptr),
              CUDA_SUCCESS);
    expect_end(free, CUDA_SUCCESS);
}

// What an unsafe call (cuMemAlloc) does to a capture, by the capture's mode, the calling thread and
// its mode.
struct UnsafeCase {
    CUstreamCaptureMode capture;
    bool same_thread;
    CUstreamCaptureMode thread;
    bool refused;
};

class UnsafeCalls : public Captures, public ::testing::WithParamInterface<UnsafeCase> {};

TEST_P(UnsafeCalls, FollowTheModes) {
    const UnsafeCase& c = GetParam();
    const CUstream s = stream();
    begin(s, c.capture);
    CUdeviceptr p = 0;
    auto call = [&] {
        ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
        CUstreamCaptureMode mode = c.thread;
        ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
        EXPECT_EQ(cuMemAlloc(&p, 16),
                  c.refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
        ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
        EXPECT_EQ(mode, c.thread);
    };
    if (c.same_thread) {
        call();
    } else {
        std::thread(call).join();
    }
    expect_end(s, c.refused ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
}

constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
constexpr auto kThread = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
constexpr auto kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
INSTANTIATE_TEST_SUITE_P(Modes, UnsafeCalls,
                         ::testing::Values(UnsafeCase{kGlobal, true, kGlobal, true},
                                           UnsafeCase{kGlobal, true, kThread, true},
                                           UnsafeCase{kGlobal, true, kRelaxed, false},
                                           UnsafeCase{kGlobal, false, kGlobal, true},
                                           UnsafeCase{kGlobal, false, kThread, false},
                                           UnsafeCase{kThread, true, kGlobal, true},
                                           UnsafeCase{kThread, false, kGlobal, false},
                                           UnsafeCase{kRelaxed, true, kGlobal, false},
                                           UnsafeCase{kRelaxed, false, kGlobal, false}));

TEST_F(Captures, InfoGivesIdGraphAndDependencies) {
    const CUstream s = stream();
    begin(s);
    CUstreamCaptureStatus value = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    CUgraph graph = nullptr;
    const CUgraphNode* dependencies = nullptr;
    const CUgraphEdgeData* edges = nullptr;
    std::size_t count = 9;
    ASSERT_EQ(cuStreamGetCaptureInfo(s, &value, &id, &graph, &dependencies, &edges, &count),
              CUDA_SUCCESS);
    EXPECT_EQ(value, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    EXPECT_NE(id, 0u);
    EXPECT_EQ(count, 0u);
    ASSERT_EQ(cuLaunchHostFunc(
                  s, [](void*) {}, nullptr),
              CUDA_SUCCESS);
    ASSERT_EQ(cuStreamGetCaptureInfo(s, &value, nullptr, nullptr, &dependencies, nullptr, &count),
              CUDA_SUCCESS);
    EXPECT_EQ(count, 1u);
    CUgraphNode node = dependencies[0];
    EXPECT_EQ(
        cuStreamUpdateCaptureDependencies(s, &node, nullptr, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES),
        CUDA_SUCCESS);
    CUgraph ended = nullptr;
    ASSERT_EQ(cuStreamEndCapture(s, &ended), CUDA_SUCCESS);
    EXPECT_EQ(ended, graph);
    EXPECT_EQ(cuGraphDestroy(ended), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(ended), CUDA_ERROR_INVALID_VALUE);
    expect_reports(1);
}

}  // namespace
}  // namespace softdev::test
