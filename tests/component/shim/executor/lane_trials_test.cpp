// SPDX-License-Identifier: Apache-2.0
// A lane measured over a network that is known: all-reduces last at least a start and a time per
// byte. A loaded machine makes them longer, never shorter.
#include <chrono>
#include <thread>

#include "tests/component/shim/executor/job.h"

namespace deft::executor::test {
namespace {

using namespace std::chrono_literals;

constexpr double kStart = 2e-3;
constexpr double kPerByte = 10e-9;
std::atomic<int> g_calls{0};

// Lasts as long in the lane's stream; the call itself returns at once.
int timed_all_reduce(const void*, void* receive, size_t count, int, int, deft_nccl_comm_t,
                     deft_cuda_stream_t stream) {
    ++g_calls;
    auto* const on = reinterpret_cast<CUstream>(stream);
    const auto lasts = [](void* bytes) {
        const auto size = static_cast<double>(reinterpret_cast<std::uintptr_t>(bytes));
        std::this_thread::sleep_for(std::chrono::duration<double>(kStart + kPerByte * size));
    };
    cuLaunchHostFunc(on, lasts, reinterpret_cast<void*>(count * 4));
    return cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(receive), 1, count * 4, on);
}

TEST(LaneTrials, WhatIsMeasuredIsNeverFasterThanTheNetwork) {
    const Ids ids(1);
    softdev::test::run_ranks(1, [&](Rank& self) {
        Nccl nccl = soft_nccl();
        nccl.AllReduce = timed_all_reduce;
        Lane lane(nccl, *cuda::Execution::get(), self.rank);
        std::string problem;
        ASSERT_TRUE(lane.open(ids[0], 1, 0, {}, problem)) << problem;
        LaneSpeed speed;
        g_calls = 0;
        ASSERT_TRUE(lane.try_now({{}, 4, false}, speed, problem)) << problem;
        const int untimed = g_calls;
        g_calls = 0;
        ASSERT_TRUE(lane.try_now({{}, 4, true}, speed, problem)) << problem;
        EXPECT_EQ(g_calls - untimed, 20) << "every rank makes as many, whatever its clock says";
        for (const double bytes : {256.0 * 1024, 4.0 * 1024 * 1024}) {
            EXPECT_GE(speed.start + speed.per_byte * bytes, 0.999 * (kStart + kPerByte * bytes));
        }
        EXPECT_GT(speed.per_byte, 0);
        EXPECT_GE(speed.start, 0);
        lane.close();
    });
    EXPECT_EQ(softdevReports(), 0U);
}

// Of every kind the same sizes on all ranks, and never more than there is memory for.
TEST(LaneTrials, ARehearsalAsksForEveryKindUpToTheLargest) {
    g_calls = 0;
    const Ids ids(1);
    softdev::test::run_ranks(2, [&](Rank& self) {
        Nccl nccl = soft_nccl();
        nccl.AllReduce = [](const void* send, void* receive, size_t count, int type, int op,
                            deft_nccl_comm_t comm, deft_cuda_stream_t stream) -> int {
            ++g_calls;
            return soft_nccl().AllReduce(send, receive, count, type, op, comm, stream);
        };
        Lane lane(nccl, *cuda::Execution::get(), self.rank);
        std::string problem;
        ASSERT_TRUE(lane.open(ids[0], 2, self.rank, {}, problem)) << problem;
        const std::vector<Reduction> kinds = {{ncclFloat32, ncclAvg, 4},
                                              {ncclBfloat16, ncclSum, 2}};
        LaneSpeed speed;
        ASSERT_TRUE(lane.try_now({kinds, 300'000, false}, speed, problem)) << problem;
        ASSERT_TRUE(lane.try_now({{}, 300'000, false}, speed, problem)) << problem;
        ASSERT_TRUE(lane.try_now({kinds, 1, false}, speed, problem)) << problem;
        lane.close();
    });
    // One element, 64 KiB, 256 KiB, all; then one element and 1 KiB. Each time sums that are
    // checked, and a question to the other ranks, too.
    EXPECT_EQ(g_calls, 2 * (3 * 3 + (1 + 2 * 4) + 1 + (1 + 2 * 2)));
    EXPECT_EQ(softdevReports(), 0U);
}

}  // namespace
}  // namespace deft::executor::test
