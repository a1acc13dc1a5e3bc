// SPDX-License-Identifier: Apache-2.0
// What the executor does when the driver, a lane or the memory refuses.
#include <atomic>

#include "tests/component/shim/executor/faults.h"

namespace deft::executor::test {
namespace {

// The software device's driver, which refuses to work on one stream: from now on, or from the next
// all-reduce on that the thread launches.
struct Refusal {
    CUstream stream = nullptr;
    bool later = false;
    int refused = 0;
};
thread_local Refusal t_refusal;

const cuda::Execution& refusing_driver() {
    static const cuda::Driver& real_driver = *cuda::Driver::get();
    static const cuda::Execution& real = *cuda::Execution::get();
    static const auto refuses = [](cuda::Stream stream) {
        const bool now = reinterpret_cast<CUstream>(stream) == t_refusal.stream && !t_refusal.later;
        t_refusal.refused += now ? 1 : 0;
        return now;
    };
    static const cuda::Driver driver = [] {
        cuda::Driver made = real_driver;
        made.EventRecord = [](cuda::Event event, cuda::Stream stream) {
            return refuses(stream) ? 400 : real_driver.EventRecord(event, stream);
        };
        return made;
    }();
    static const cuda::Execution execution = [] {
        cuda::Execution made = real;
        made.driver = &driver;
        made.StreamWaitEvent = [](cuda::Stream stream, cuda::Event event, unsigned flags) {
            return refuses(stream) ? 400 : real.StreamWaitEvent(stream, event, flags);
        };
        made.MemcpyDtoDAsync = [](cuda::DevicePointer to, cuda::DevicePointer from,
                                  std::size_t bytes, cuda::Stream stream) {
            return refuses(stream) ? 400 : real.MemcpyDtoDAsync(to, from, bytes, stream);
        };
        return made;
    }();
    return execution;
}

Nccl refusing_nccl() {
    Nccl nccl = soft_nccl();
    nccl.AllReduce = [](const void* send, void* receive, size_t count, int type, int op,
                        deft_nccl_comm_t comm, deft_cuda_stream_t stream) {
        t_refusal.later = false;
        return soft_nccl().AllReduce(send, receive, count, type, op, comm, stream);
    };
    return nccl;
}

// An error of ours is none of the job's. Before a transfer NCCL gets the call; behind it the others
// take part, and it is carried through.
TEST(Faults, WhatTheDriverRefusesIsNotTheResultOfTheCall) {
    const auto shapes = shapes_of({3000, 5000});
    for (const bool later : {false, true}) {
        for (const std::uint32_t delay : {0U, 1U}) {
            SCOPED_TRACE((later ? "behind a transfer, delay " : "before it, delay ") +
                         std::to_string(delay));
            const Script script =
                compiled(uniform_plan(bytes_of(shapes), 1, delay, kSplit), shapes, delay);
            const Ids ids(2);
            softdev::test::run_ranks(2, [&](Rank& self) {
                Lanes lanes(self, ids);
                std::string why;
                const auto executor = Executor::create(refusing_driver(), refusing_nccl(),
                                                       self.rank, lanes.pointers, script, {}, why);
                ASSERT_NE(executor, nullptr) << why;
                const auto call = [&](std::int64_t t, std::uint32_t b) {
                    Device<std::byte> buffer(local_gradient(shapes[b], self.rank, t, b));
                    EXPECT_EQ(hooked_all_reduce(*executor, self, self.stream, buffer.get(),
                                                buffer.get(), shapes[b]),
                              ncclSuccess);
                    self.sync();
                    return buffer.host();
                };
                const auto expect_sum = [&](const std::vector<std::byte>& got, std::int64_t t,
                                            std::uint32_t b, const char* what) {
                    expect_delivered(
                        got, shapes[b],
                        [&](std::uint64_t i) { return reduced(2, t, b, i, ncclSum); }, what);
                };
                for (std::int64_t t = 0; t < 3; ++t) {
                    call(t, 0);
                    call(t, 1);
                }
                ASSERT_FALSE(executor->broken());
                t_refusal = {self.stream, later, 0};
                const auto got = call(3, 0);
                EXPECT_EQ(t_refusal.refused, 1);
                t_refusal = {};
                expect_sum(got, later ? 3 - delay : 3, 0, "the call that was refused");
                EXPECT_EQ(executor->why(), BreakReason::Error);
                expect_sum(call(3, 1), 3, 1, "behind it");
                expect_sum(call(4, 0), 4, 0, "later");
            });
        }
    }
    EXPECT_EQ(softdevReports(), 0U);
}

std::atomic<deft_nccl_comm_t> g_refused[2];  // by rank

// One lane has its part of the caller's buffer, the other one refuses it: what the job does with
// the buffer next still comes behind the first.
TEST(Faults, ALaneThatRefusesLeavesTheOthersInTheOrderOfTheCall) {
    const auto shapes = shapes_of({5000});
    const Script script = compiled(uniform_plan(bytes_of(shapes), 1, 0, kSplit), shapes);
    const Ids ids(2);
    softdev::test::run_ranks(2, [&](Rank& self) {
        Lanes lanes(self, ids);
        g_refused[self.rank] = lanes.pointers[1]->comm();
        Nccl nccl = soft_nccl();
        nccl.AllReduce = [](const void* send, void* receive, size_t count, int type, int op,
                            deft_nccl_comm_t comm, deft_cuda_stream_t stream) -> int {
            if (comm == g_refused[0] || comm == g_refused[1]) {
                return ncclSystemError;
            }
            return soft_nccl().AllReduce(send, receive, count, type, op, comm, stream);
        };
        std::string why;
        const auto executor = Executor::create(*cuda::Execution::get(), nccl, self.rank,
                                               lanes.pointers, script, {}, why);
        ASSERT_NE(executor, nullptr) << why;
        Device<std::byte> buffer(local_gradient(shapes[0], self.rank, 0, 0));
        EXPECT_EQ(
            hooked_all_reduce(*executor, self, self.stream, buffer.get(), buffer.get(), shapes[0]),
            ncclSystemError);
        EXPECT_EQ(executor->why(), BreakReason::Error);
        CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(buffer.get()), 0, shapes[0].bytes(),
                           self.stream));
        self.sync();
        CU(cuCtxSynchronize());
        for (const std::byte byte : buffer.host()) {
            ASSERT_EQ(byte, std::byte{0});
        }
    });
    EXPECT_EQ(softdevReports(), 0U);
}

TEST(Faults, TooLittleMemoryIsRefusedWithTheReason) {
    const auto shapes = shapes_of({100000});
    const Script script = compiled(uniform_plan(bytes_of(shapes), 1, 1, kSplit), shapes);
    const Ids ids(2);
    softdev::test::run_ranks(1, [&](Rank& self) {
        Lanes lanes(self, ids);
        std::size_t before = 0;
        std::size_t after = 0;
        std::size_t total = 0;
        CU(cuCtxSynchronize());  // what warming up the lanes has given back comes in stream order
        CU(cuMemGetInfo(&before, &total));
        ExecutorOptions options;
        options.max_shadow_bytes = script.shadow_bytes - 1;
        std::string why;
        EXPECT_EQ(Executor::create(*cuda::Execution::get(), soft_nccl(), self.rank, lanes.pointers,
                                   script, options, why),
                  nullptr);
        EXPECT_NE(
            why.find("DEFT_MAX_SHADOW_BYTES allows " + std::to_string(options.max_shadow_bytes)),
            std::string::npos)
            << why;
        // More than the device has.
        Script huge = script;
        huge.shadow_bytes = 1ULL << 50;
        options.max_shadow_bytes = ~0ULL;
        EXPECT_EQ(Executor::create(*cuda::Execution::get(), soft_nccl(), self.rank, lanes.pointers,
                                   huge, options, why),
                  nullptr);
        EXPECT_NE(why.find(std::to_string(huge.shadow_bytes) + " bytes of device memory, of which"),
                  std::string::npos)
            << why;
        // All but what the job may need yet: one page less than 5 % would be left to it.
        CU(cuMemGetInfo(&after, &total));
        huge.shadow_bytes = after - total / 20 + 4096;
        EXPECT_EQ(Executor::create(*cuda::Execution::get(), soft_nccl(), self.rank, lanes.pointers,
                                   huge, options, why),
                  nullptr);
        EXPECT_NE(why.find("left to the job"), std::string::npos) << why;
        // Where the driver tells nothing it is asked for the memory.
        cuda::Execution silent = *cuda::Execution::get();
        silent.MemGetInfo = nullptr;
        huge.shadow_bytes = 1ULL << 50;
        EXPECT_EQ(
            Executor::create(silent, soft_nccl(), self.rank, lanes.pointers, huge, options, why),
            nullptr);
        EXPECT_NE(why.find("bytes of device memory (CUDA error"), std::string::npos) << why;
        CU(cuMemGetInfo(&after, &total));
        EXPECT_EQ(before, after);
        // Exactly enough is enough, and all of it comes back.
        options.max_shadow_bytes = script.shadow_bytes;
        made(self, lanes, script, options);
        CU(cuCtxSynchronize());
        CU(cuMemGetInfo(&after, &total));
        EXPECT_EQ(before, after);
    });
}

}  // namespace
}  // namespace deft::executor::test
