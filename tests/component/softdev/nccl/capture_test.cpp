// SPDX-License-Identifier: Apache-2.0
// Collectives in captured streams: they run once per launch of the graph, never at the capture.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "softdev/cuda/softdev.h"
#include "tests/component/softdev/nccl/ranks.h"

namespace softdev::test {
namespace {

using ::testing::HasSubstr;

struct Captured {
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
};

void capture(Rank& self, const std::function<void()>& calls, Captured* out) {
    CU(cuStreamBeginCapture(self.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    calls();
    CU(cuStreamEndCapture(self.stream, &out->graph));
    CU(cuGraphInstantiate(&out->exec, out->graph, 0));
}

void release(const Captured& captured) {
    EXPECT_EQ(cuGraphExecDestroy(captured.exec), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(captured.graph), CUDA_SUCCESS);
}

TEST(Capture, RunsAtEveryLaunch) {
    const auto before = softdevReports();
    run_ranks(3, [](Rank& self) {
        const size_t count = 70000;
        Device<int> data(std::vector<int>(count, 1));
        Captured graph;
        // The first use: connections are made while the stream is captured.
        capture(
            self,
            [&] {
                NC(ncclAllReduce(data.get(), data.get(), count, ncclInt32, ncclSum, self.comm,
                                 self.nccl_stream()));
            },
            &graph);
        EXPECT_EQ(data.host(), std::vector<int>(count, 1)) << "ran at the capture";
        int expected = 1;
        for (int launch = 0; launch < 4; ++launch) {
            CU(cuGraphLaunch(graph.exec, self.stream));
            expected *= 3;
        }
        self.sync();
        EXPECT_EQ(data.host(), std::vector<int>(count, expected));
        release(graph);
    });
    EXPECT_EQ(softdevReports(), before);
}

// Calls of other shapes between launches, all queued at once: order is that of the stream.
TEST(Capture, MixesWithCallsThatAreNot) {
    run_ranks(2, [](Rank& self) {
        const size_t count = 300000;
        Device<int> data(std::vector<int>(count, 1)), all(2 * count);
        Captured graph;
        capture(
            self,
            [&] {
                NC(ncclGroupStart());
                NC(ncclAllReduce(data.get(), data.get(), count, ncclInt32, ncclSum, self.comm,
                                 self.nccl_stream()));
                NC(ncclGroupEnd());
                NC(ncclAllGather(data.get(), all.get(), count, ncclInt32, self.comm,
                                 self.nccl_stream()));
            },
            &graph);
        int expected = 1;
        for (int turn = 0; turn < 3; ++turn) {
            CU(cuGraphLaunch(graph.exec, self.stream));
            NC(ncclBroadcast(all.get(), data.get(), count, ncclInt32, 1, self.comm,
                             self.nccl_stream()));
            NC(ncclAllReduce(data.get(), data.get(), 100, ncclInt32, ncclMax, self.comm,
                             self.nccl_stream()));
            expected *= 2;
        }
        self.sync();
        EXPECT_EQ(data.host(), std::vector<int>(count, expected));
        EXPECT_EQ(all.host(), std::vector<int>(2 * count, expected));
        release(graph);
    });
}

TEST(Capture, FitsMessages) {
    run_ranks(2, [](Rank& self) {
        const size_t count = 100000;
        Device<int> out(std::vector<int>(count, self.rank)), in(count);
        Captured graph;
        capture(
            self,
            [&] {
                NC(ncclGroupStart());
                NC(ncclSend(out.get(), count, ncclInt32, 1 - self.rank, self.comm,
                            self.nccl_stream()));
                NC(ncclRecv(in.get(), count, ncclInt32, 1 - self.rank, self.comm,
                            self.nccl_stream()));
                NC(ncclGroupEnd());
            },
            &graph);
        for (int launch = 0; launch < 3; ++launch) {
            CU(cuGraphLaunch(graph.exec, self.stream));
        }
        self.sync();
        EXPECT_EQ(in.host(), std::vector<int>(count, 1 - self.rank));
        release(graph);
    });
}

// Data is on its way when the abort comes: it must not take the buffers from under the graph's run.
TEST(Capture, AnAbortWaitsForTheGraphThatRuns) {
    for (int round = 0; round < 4; ++round) {
        std::atomic<int> through{0};  // an abort must not meet the other rank's first launch
        run_ranks(2, [&](Rank& self) {
            const size_t count = 8 << 20;
            const auto data = std::make_unique<Device<int>>(std::vector<int>(count, 1));
            Captured graph;
            capture(
                self,
                [&] {
                    NC(ncclAllReduce(data->get(), data->get(), count, ncclInt32, ncclSum, self.comm,
                                     self.nccl_stream()));
                },
                &graph);
            CU(cuGraphLaunch(graph.exec, self.stream));
            self.sync();
            through.fetch_add(1);
            const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
            while (through.load() < 2 && std::chrono::steady_clock::now() < until) {
                std::this_thread::yield();
            }
            CU(cuGraphLaunch(graph.exec, self.stream));
            NC(ncclCommAbort(self.comm));
            self.comm = nullptr;
            // A run that had not begun says that it came too late, and that sticks to the context.
            cuStreamSynchronize(self.stream);
            CU(cuDevicePrimaryCtxReset(self.rank));
        });
    }
}

// As NCCL, the end of a communicator waits for graphs that use it; here not for ever.
TEST(Capture, AGraphThatOutlivesItsCommunicatorIsSaid) {
    setenv("SOFTDEV_DEADLINE", "5", 1);
    ::testing::internal::CaptureStderr();
    run_ranks(2, [](Rank& self) {
        Device<int> data(std::vector<int>(10, 1));
        Captured graph;
        capture(
            self,
            [&] {
                NC(ncclAllReduce(data.get(), data.get(), 10, ncclInt32, ncclSum, self.comm,
                                 self.nccl_stream()));
            },
            &graph);
        NC(ncclCommDestroy(self.comm));
        self.comm = nullptr;
        release(graph);
    });
    EXPECT_THAT(
        ::testing::internal::GetCapturedStderr(),
        HasSubstr("ends while 1 captured operations are in graphs that were not destroyed"));
    unsetenv("SOFTDEV_DEADLINE");
}

}  // namespace
}  // namespace softdev::test
