// SPDX-License-Identifier: Apache-2.0
// How lanes are made, and what comes between.
#include <chrono>
#include <thread>

#include "tests/component/shim/executor/job.h"

namespace deft::executor::test {
namespace {

using namespace std::chrono_literals;

TEST(Lanes, OpenEndsAtItsDeadlineWhenARankIsMissing) {
    const Ids ids(1);
    softdev::test::run_ranks(1, [&](Rank& self) {
        Lane lane(soft_nccl(), *cuda::Execution::get(), self.rank);
        LaneConfig config;
        config.deadline = 200ms;
        std::string problem;
        EXPECT_FALSE(lane.open(ids[0], 2, 0, config, problem));
        EXPECT_EQ(problem, "its communicator took too long");
        EXPECT_EQ(lane.state(), LaneState::Failed);
        EXPECT_TRUE(lane.timed_out());
        lane.close();
    });
}

std::atomic<int> g_ended{0};
std::atomic<int> g_capture_mode{-1};

// NCCL_COMM_BLOCKING=0, in an nccl.conf.
TEST(Lanes, OneThatNcclMakesNonblockingIsRefusedAndAborted) {
    const Ids ids(1);
    softdev::test::run_ranks(1, [&](Rank& self) {
        Nccl nccl = soft_nccl();
        nccl.CommInitRankConfig = [](deft_nccl_comm_t* comm, int, deft_nccl_unique_id_t, int,
                                     deft_nccl_config_t*) -> int {
            *comm = reinterpret_cast<deft_nccl_comm_t>(std::uintptr_t{64});
            return ncclInProgress;
        };
        nccl.CommAbort = [](deft_nccl_comm_t) { return ++g_ended, 0; };
        Lane lane(nccl, *cuda::Execution::get(), self.rank);
        std::string problem;
        EXPECT_FALSE(lane.open(ids[0], 2, 0, {}, problem));
        EXPECT_EQ(lane.comm(), nullptr);
        const auto until = std::chrono::steady_clock::now() + 60s;
        while (g_ended == 0 && std::chrono::steady_clock::now() < until) {
            std::this_thread::sleep_for(1ms);
        }
        EXPECT_EQ(g_ended, 1) << "it is left behind";
        lane.close();
        EXPECT_EQ(g_ended, 1);
    });
}

// NCCL allocates memory for it, which would end a capture of the job on another thread.
TEST(Lanes, AreMadeInRelaxedCaptureMode) {
    const Ids ids(1);
    softdev::test::run_ranks(1, [&](Rank& self) {
        Nccl nccl = soft_nccl();
        nccl.CommInitRankConfig = [](deft_nccl_comm_t*, int, deft_nccl_unique_id_t, int,
                                     deft_nccl_config_t*) -> int {
            CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
            cuThreadExchangeStreamCaptureMode(&mode);
            g_capture_mode = static_cast<int>(mode);
            return ncclSystemError;
        };
        Lane lane(nccl, *cuda::Execution::get(), self.rank);
        std::string problem;
        EXPECT_FALSE(lane.open(ids[0], 2, 0, {}, problem));
        EXPECT_EQ(g_capture_mode, static_cast<int>(CU_STREAM_CAPTURE_MODE_RELAXED));
        lane.close();
    });
}

TEST(Lanes, AbortEndsAnOpenThatWaits) {
    const Ids ids(1);
    softdev::test::run_ranks(1, [&](Rank& self) {
        Lane lane(soft_nccl(), *cuda::Execution::get(), self.rank);
        std::thread aborter([&] {
            while (lane.state() != LaneState::Opening) {
                std::this_thread::yield();
            }
            lane.abort();
        });
        std::string problem;
        EXPECT_FALSE(lane.open(ids[0], 2, 0, {}, problem));
        aborter.join();
        EXPECT_EQ(lane.state(), LaneState::Aborted);
        EXPECT_EQ(problem, "its communicator was aborted");
        EXPECT_FALSE(lane.timed_out());
        EXPECT_EQ(lane.async_error(), DEFT_NCCL_SUCCESS);
        lane.abort();  // any number of times
        lane.close();
    });
}

}  // namespace
}  // namespace deft::executor::test
