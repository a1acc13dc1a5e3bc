// SPDX-License-Identifier: Apache-2.0
// Events: states, times, recording again; the legacy and per-thread streams' rules.
#include <atomic>
#include <thread>

#include "tests/component/softdev/cuda/fixture.h"

namespace softdev::test {
namespace {

using Events = SoftCuda;

void spin(CUmodule module, CUstream s, unsigned long long ns) {
    CUfunction f = nullptr;
    ASSERT_EQ(cuModuleGetFunction(&f, module, "softdev_spin_ns"), CUDA_SUCCESS);
    void* parameters[] = {&ns};
    ASSERT_EQ(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, parameters, nullptr), CUDA_SUCCESS);
}

TEST_F(Events, MeasureAtLeastTheTimeBetweenThem) {
    const CUstream s = stream();
    const CUevent start = event(CU_EVENT_DEFAULT);
    const CUevent end = event(CU_EVENT_DEFAULT);
    CUmodule module = nullptr;
    ASSERT_EQ(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(start, s), CUDA_SUCCESS);
    spin(module, s, 3000000);
    ASSERT_EQ(cuEventRecord(end, s), CUDA_SUCCESS);
    ASSERT_EQ(cuEventSynchronize(end), CUDA_SUCCESS);
    float ms = 0;
    ASSERT_EQ(cuEventElapsedTime(&ms, start, end), CUDA_SUCCESS);
    EXPECT_GE(ms, 3.0f);
    EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(Events, HaveNoTimeWithoutTimingOrRecord) {
    const CUstream s = stream();
    const CUevent untimed = event(CU_EVENT_DISABLE_TIMING);
    const CUevent timed = event(CU_EVENT_DEFAULT);
    const CUevent never = event(CU_EVENT_DEFAULT);
    ASSERT_EQ(cuEventRecord(untimed, s), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(timed, s), CUDA_SUCCESS);
    float ms = 0;
    EXPECT_EQ(cuEventElapsedTime(&ms, untimed, timed), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuEventElapsedTime(&ms, timed, never), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuEventQuery(never), CUDA_SUCCESS) << "an event without a record is complete";
    EXPECT_EQ(cuEventSynchronize(never), CUDA_SUCCESS);
}

TEST_F(Events, HaveNoTimeBetweenDevices) {
    const CUevent here = event(CU_EVENT_DEFAULT);
    ASSERT_EQ(cuEventRecord(here, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuEventSynchronize(here), CUDA_SUCCESS);
    CUcontext other = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxPushCurrent(other), CUDA_SUCCESS);
    CUevent there = nullptr;
    ASSERT_EQ(cuEventCreate(&there, CU_EVENT_DEFAULT), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(there, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuEventSynchronize(there), CUDA_SUCCESS);
    float ms = 0;
    EXPECT_EQ(cuEventElapsedTime(&ms, here, there), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuEventElapsedTime(&ms, there, there), CUDA_SUCCESS);
    EXPECT_EQ(cuEventDestroy(there), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxPopCurrent(&other), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
}

TEST_F(Events, ElapsedTimeIsNotReadyBeforeTheEnd) {
    const CUstream s = stream();
    const CUevent start = event(CU_EVENT_DEFAULT);
    const CUevent end = event(CU_EVENT_DEFAULT);
    Gate gate;
    ASSERT_EQ(cuEventRecord(start, s), CUDA_SUCCESS);
    ASSERT_EQ(gate.hold(s), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(end, s), CUDA_SUCCESS);
    float ms = 0;
    EXPECT_EQ(cuEventElapsedTime(&ms, start, end), CUDA_ERROR_NOT_READY);
    gate.open();
    EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
}

TEST_F(Events, AWaitMeansTheRecordAtTheTimeOfTheCall) {
    const CUstream held = stream();
    const CUstream other = stream();
    const CUevent e = event();
    Gate gate;
    // Waits for the first record only: recording again behind the gate does not concern it.
    ASSERT_EQ(cuEventRecord(e, held), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(other, e, 0), CUDA_SUCCESS);
    ASSERT_EQ(gate.hold(held), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(e, held), CUDA_SUCCESS);
    EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuStreamSynchronize(other), CUDA_SUCCESS);
    gate.open();
    EXPECT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
}

TEST_F(Events, LegacyStreamWaitsForBlockingStreamsAndIsWaitedFor) {
    const CUstream blocking = stream(CU_STREAM_DEFAULT);
    const CUstream free = stream(CU_STREAM_NON_BLOCKING);
    const CUstream later = stream(CU_STREAM_DEFAULT);
    const CUevent legacy_done = event();
    const CUevent free_done = event();
    const CUevent later_done = event();
    Gate gate;
    ASSERT_EQ(gate.hold(blocking), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(legacy_done, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(free_done, free), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(later_done, later), CUDA_SUCCESS);
    EXPECT_EQ(cuEventQuery(legacy_done), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuEventQuery(free_done), CUDA_SUCCESS);
    EXPECT_EQ(cuEventQuery(later_done), CUDA_ERROR_NOT_READY)
        << "it follows work on the legacy stream, which waits for the gate";
    EXPECT_EQ(cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
    gate.open();
    EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuEventSynchronize(later_done), CUDA_SUCCESS);
}

TEST_F(Events, LegacyStreamOfAnotherContextIsNotConcerned) {
    CUcontext other = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
    const CUstream blocking = stream(CU_STREAM_DEFAULT);
    Gate gate;
    ASSERT_EQ(gate.hold(blocking), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxPushCurrent(other), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(blocking), CUDA_ERROR_NOT_READY);
    gate.open();
    EXPECT_EQ(cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
}

TEST_F(Events, PerThreadStreamsAreSeparateAndBlocking) {
    Gate gate;
    ASSERT_EQ(gate.hold(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
    std::thread([this] {
        ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
        EXPECT_EQ(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_SUCCESS) << "the other thread's own";
    }).join();
    const CUevent legacy_done = event();
    ASSERT_EQ(cuEventRecord(legacy_done, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuEventQuery(legacy_done), CUDA_ERROR_NOT_READY);
    gate.open();
    EXPECT_EQ(cuEventSynchronize(legacy_done), CUDA_SUCCESS);
}

TEST_F(Events, ThreadlessUntilThereIsWork) {
    // Markers need no worker: an event on an idle stream is complete at once.
    const CUevent e = event();
    ASSERT_EQ(cuEventRecord(e, stream()), CUDA_SUCCESS);
    EXPECT_EQ(cuEventQuery(e), CUDA_SUCCESS);
}

TEST_F(Events, HostFunctionsRunInOrderAndMayNotCallTheApi) {
    const CUstream s = stream();
    struct State {
        CUresult result = CUDA_SUCCESS;
        std::atomic<bool> ran{false};
    } state;
    ASSERT_EQ(cuLaunchHostFunc(
                  s,
                  [](void* p) {
                      auto* st = static_cast<State*>(p);
                      st->result = cuStreamQuery(nullptr);
                      st->ran = true;
                  },
                  &state),
              CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT_TRUE(state.ran);
    EXPECT_EQ(state.result, CUDA_ERROR_NOT_PERMITTED);
    expect_reports(1);
}

}  // namespace
}  // namespace softdev::test
