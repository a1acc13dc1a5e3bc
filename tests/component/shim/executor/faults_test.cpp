// SPDX-License-Identifier: Apache-2.0
// What the executor does when the job or the world does not keep to the plan.
#include <barrier>
#include <chrono>

#include "tests/component/shim/executor/job.h"

namespace deft::executor::test {
namespace {

using namespace std::chrono_literals;

const std::vector<Part> kSplit{{0.6, 0}, {0.4, 1}};

Script compiled(const Plan& plan, const std::vector<Shape>& shapes, std::uint32_t delay = 1) {
    CompileOptions options;
    options.lanes = 2;
    options.forward_lane = kNoLane;
    options.max_delay = delay;
    std::string problem;
    Script script = compile(plan, shapes, options, problem);
    EXPECT_EQ(problem, "");
    return script;
}

std::unique_ptr<Executor> made(const Rank& self, const Lanes& lanes, const Script& script,
                               const ExecutorOptions& options = {}) {
    std::string why;
    auto executor = Executor::create(*cuda::Execution::get(), soft_nccl(), self.rank,
                                     lanes.pointers, script, options, why);
    EXPECT_NE(executor, nullptr) << why;
    return executor;
}

TEST(Faults, AnotherSequenceEndsThePlanAndIsForwarded) {
    const auto shapes = shapes_of({3000, 5000});
    const Plan plan = uniform_plan(bytes_of(shapes), 1, 1, kSplit);
    const Script script = compiled(plan, shapes);
    const Ids ids(2);
    softdev::test::run_ranks(2, [&](Rank& self) {
        Lanes lanes(self, ids);
        const auto executor = made(self, lanes, script);
        const auto call = [&](const Shape& shape, std::int64_t t, std::uint32_t b) {
            Device<std::byte> buffer(local_gradient(shape, self.rank, t, b));
            EXPECT_EQ(
                hooked_all_reduce(*executor, self, self.stream, buffer.get(), buffer.get(), shape),
                ncclSuccess);
            self.sync();
            return buffer.host();
        };
        for (std::int64_t t = 0; t < 3; ++t) {
            call(shapes[0], t, 0);
            call(shapes[1], t, 1);
        }
        EXPECT_FALSE(executor->broken());
        const Shape other{3001, ncclFloat32, ncclSum};
        for (int again = 0; again < 3; ++again) {
            expect_delivered(
                call(other, 3, 0), other,
                [&](std::uint64_t i) { return reduced(2, 3, 0, i, ncclSum); }, "forwarded");
        }
        EXPECT_EQ(executor->why(), BreakReason::Sequence);
        // What was right before is forwarded too from now on.
        expect_delivered(
            call(shapes[1], 4, 1), shapes[1],
            [&](std::uint64_t i) { return reduced(2, 4, 1, i, ncclSum); }, "after the break");
        EXPECT_EQ(executor->stats().executed, 6U);
    });
    EXPECT_EQ(softdevReports(), 0U);
}

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

// A metric that a job reduces into another buffer, as large as its first gradient.
TEST(Faults, ACallThatIsNotInPlaceWhereTheGradientIsEndsThePlanAndIsForwarded) {
    const auto shapes = shapes_of({3000});
    const Script script = compiled(uniform_plan(bytes_of(shapes), 1, 1, kSplit), shapes);
    const Ids ids(2);
    softdev::test::run_ranks(2, [&](Rank& self) {
        Lanes lanes(self, ids);
        const auto executor = made(self, lanes, script);
        for (std::int64_t t = 0; t < 2; ++t) {
            Device<std::byte> buffer(local_gradient(shapes[0], self.rank, t, 0));
            ASSERT_EQ(hooked_all_reduce(*executor, self, self.stream, buffer.get(), buffer.get(),
                                        shapes[0]),
                      ncclSuccess);
            self.sync();
        }
        EXPECT_FALSE(executor->broken());
        Device<std::byte> send(local_gradient(shapes[0], self.rank, 2, 0));
        Device<std::byte> receive(shapes[0].bytes());
        ASSERT_EQ(
            hooked_all_reduce(*executor, self, self.stream, send.get(), receive.get(), shapes[0]),
            ncclSuccess);
        self.sync();
        EXPECT_EQ(executor->why(), BreakReason::Sequence);
        expect_delivered(
            receive.host(), shapes[0],
            [&](std::uint64_t i) { return reduced(2, 2, 0, i, ncclSum); }, "forwarded");
    });
}

// Policy deft cuts a bucket and sends another one between the pieces. When the plan ends there, the
// first piece is on its way, and no other will follow it.
TEST(Faults, MemoryIsGivenBackBehindAPieceWhoseBucketIsNeverCompleted) {
    const auto shapes = shapes_of({4096, 2048});
    Plan plan = uniform_plan(bytes_of(shapes), 1, 1, {{0.5, 0}, {0.5, 0}});
    std::erase_if(plan.transfers, [](const Transfer& t) { return t.bucket == 1; });
    Transfer between;
    between.bucket = 1;
    between.end = shapes[1].bytes();
    between.order = 1;
    between.generation = plan.transfers[0].generation;
    plan.transfers[1].order = 2;
    plan.transfers.insert(plan.transfers.begin() + 1, between);
    const Script script = compiled(plan, shapes);
    ASSERT_EQ(script.actions[0].launch_end - script.actions[0].launch, 1U) << "one piece";
    const Ids ids(2);
    std::barrier both(2);
    softdev::test::run_ranks(2, [&](Rank& self) {
        Lanes lanes(self, ids);
        auto executor = made(self, lanes, script);
        Device<std::byte> buffer(local_gradient(shapes[0], self.rank, 0, 0));
        const auto first = [&] {
            ASSERT_EQ(hooked_all_reduce(*executor, self, self.stream, buffer.get(), buffer.get(),
                                        shapes[0]),
                      ncclSuccess);
        };
        both.arrive_and_wait();
        if (self.rank == 0) {
            first();  // and waits for rank 1 on its lane
            Call other;
            other.count = 3001;
            other.type = ncclFloat32;
            other.send = other.receive = buffer.get();
            int result = 0;
            EXPECT_FALSE(
                executor->all_reduce(other, reinterpret_cast<cuda::Stream>(self.stream), result));
            EXPECT_EQ(executor->why(), BreakReason::Sequence);
            executor.reset();
            self.sync();
        }
        both.arrive_and_wait();
        if (self.rank == 1) {
            first();
        }
        CU(cuCtxSynchronize());
        both.arrive_and_wait();
    });
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

TEST(Faults, CallsMayComeOnManyStreams) {
    const auto shapes = shapes_of({3000, 50000, 17});
    const Plan plan = uniform_plan(bytes_of(shapes), 2, 1, kSplit);
    const Script script = compiled(plan, shapes);
    const Ids ids(2);
    softdev::test::run_ranks(2, [&](Rank& self) {
        Lanes lanes(self, ids);
        const auto executor = made(self, lanes, script);
        std::vector<CUstream> streams{nullptr, nullptr, nullptr};
        for (CUstream& stream : streams) {
            CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        }
        // Nothing synchronises in between: the order of one bucket's calls is the executor's care.
        std::vector<std::unique_ptr<Device<std::byte>>> buffers;
        for (std::int64_t t = 0; t < 12; ++t) {
            for (std::uint32_t b = 0; b < shapes.size(); ++b) {
                buffers.push_back(std::make_unique<Device<std::byte>>(
                    local_gradient(shapes[b], self.rank, t, b)));
                CUstream stream = streams[static_cast<std::size_t>(t + b) % 3];
                ASSERT_EQ(hooked_all_reduce(*executor, self, stream, buffers.back()->get(),
                                            buffers.back()->get(), shapes[b]),
                          ncclSuccess);
            }
        }
        CU(cuCtxSynchronize());
        for (std::int64_t t = 0; t < 12; ++t) {
            for (std::uint32_t b = 0; b < shapes.size(); ++b) {
                expect_delivered(
                    buffers[static_cast<std::size_t>(t) * shapes.size() + b]->host(), shapes[b],
                    [&](std::uint64_t i) { return expected(plan, shapes[b], 2, t, b, i); },
                    "iteration " + std::to_string(t) + " bucket " + std::to_string(b));
            }
        }
        for (const CUstream stream : streams) {
            cuStreamDestroy(stream);
        }
    });
    EXPECT_EQ(softdevReports(), 0U);
}

TEST(Faults, ACapturedCallEndsThePlanAndIsCaptured) {
    const auto shapes = shapes_of({3000});
    const Script script = compiled(uniform_plan(bytes_of(shapes), 1, 1, kSplit), shapes);
    const Ids ids(2);
    softdev::test::run_ranks(2, [&](Rank& self) {
        Lanes lanes(self, ids);
        const auto executor = made(self, lanes, script);
        Device<std::byte> buffer(local_gradient(shapes[0], self.rank, 0, 0));
        const auto call = [&] {
            return hooked_all_reduce(*executor, self, self.stream, buffer.get(), buffer.get(),
                                     shapes[0]);
        };
        ASSERT_EQ(call(), ncclSuccess);
        self.sync();
        CU(cuStreamBeginCapture(self.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        EXPECT_EQ(call(), ncclSuccess);
        CUgraph graph = nullptr;
        CU(cuStreamEndCapture(self.stream, &graph));
        EXPECT_EQ(executor->why(), BreakReason::Capture);
        CUgraphExec runnable = nullptr;
        CU(cuGraphInstantiate(&runnable, graph, 0));
        buffer.set(local_gradient(shapes[0], self.rank, 1, 0));
        CU(cuGraphLaunch(runnable, self.stream));
        self.sync();
        expect_delivered(
            buffer.host(), shapes[0], [&](std::uint64_t i) { return reduced(2, 1, 0, i, ncclSum); },
            "graph");
        cuGraphExecDestroy(runnable);
        cuGraphDestroy(graph);
    });
    EXPECT_EQ(softdevReports(), 0U);
}

// Plans come and go every 10 iterations, with transfers in flight whenever one ends. The new one
// starts empty on all ranks; between two plans calls are forwarded.
TEST(Faults, AThousandIterationsWithAChangeEveryTen) {
    const auto shapes = shapes_of({700, 2048, 333});
    const std::vector<Plan> plans{uniform_plan(bytes_of(shapes), 1, 1, kSplit),
                                  uniform_plan(bytes_of(shapes), 2, 1, kSplit),
                                  uniform_plan(bytes_of(shapes), 1, 0, kSplit),
                                  uniform_plan(bytes_of(shapes), 2, 0, {{1, 1}})};
    std::vector<Script> scripts;
    for (const Plan& plan : plans) {
        scripts.push_back(compiled(plan, shapes));
    }
    const Ids ids(2);
    softdev::test::run_ranks(2, [&](Rank& self) {
        Lanes lanes(self, ids);
        std::unique_ptr<Executor> executor;
        const Plan* plan = nullptr;
        std::int64_t since = 0;
        std::size_t start = 0;
        std::size_t total = 0;
        CU(cuCtxSynchronize());  // what warming up the lanes has given back comes in stream order
        CU(cuMemGetInfo(&start, &total));
        for (std::int64_t t = 0; t < 1000; ++t) {
            if (t % 10 == 0) {
                executor.reset();  // in flight or not
                const auto which = static_cast<std::size_t>(t / 10) % (plans.size() + 1);
                plan = which < plans.size() ? &plans[which] : nullptr;
                since = t;
                if (plan != nullptr) {
                    ExecutorOptions options;
                    options.statistics = t % 20 == 0;
                    executor = made(self, lanes, scripts[which], options);
                }
            }
            std::vector<std::unique_ptr<Device<std::byte>>> buffers;
            for (std::uint32_t b = 0; b < shapes.size(); ++b) {
                buffers.push_back(std::make_unique<Device<std::byte>>(
                    local_gradient(shapes[b], self.rank, t, b)));
                std::byte* const buffer = buffers.back()->get();
                if (executor != nullptr) {
                    ASSERT_EQ(
                        hooked_all_reduce(*executor, self, self.stream, buffer, buffer, shapes[b]),
                        ncclSuccess);
                } else {
                    NC(ncclAllReduce(buffer, buffer, shapes[b].count, ncclFloat32, ncclSum,
                                     self.comm, self.nccl_stream()));
                }
            }
            self.sync();
            for (std::uint32_t b = 0; b < shapes.size(); ++b) {
                expect_delivered(
                    buffers[b]->host(), shapes[b],
                    [&](std::uint64_t i) {
                        if (plan == nullptr) {
                            return reduced(2, t, b, i, ncclSum);
                        }
                        double sum = 0;
                        for (const std::int64_t from :
                             delivered_iterations(*plan, t - since, b, i * 4)) {
                            sum += reduced(2, since + from, b, i, ncclSum);
                        }
                        return sum;
                    },
                    "iteration " + std::to_string(t));
            }
        }
        executor.reset();
        CU(cuCtxSynchronize());
        std::size_t end = 0;
        CU(cuMemGetInfo(&end, &total));
        EXPECT_EQ(start, end);
    });
    EXPECT_EQ(softdevReports(), 0U);
}

// Rank 1 makes no calls, so rank 0's transfers cannot finish. stop() and abort() from another
// thread must end everything in every state.
class Aborted : public ::testing::TestWithParam<int> {};

TEST_P(Aborted, FromAnotherThread) {
    const auto shapes = shapes_of({30000, 60000});
    const Script script = compiled(uniform_plan(bytes_of(shapes), 1, 1, kSplit), shapes);
    const Ids ids(2);
    std::barrier both(2);
    softdev::test::run_ranks(2, [&](Rank& self) {
        {
            Lanes lanes(self, ids);
            auto executor = made(self, lanes, script);
            both.arrive_and_wait();
            const int calls = GetParam();
            Device<std::byte> buffer(shapes[1].bytes());
            for (int c = 0; self.rank == 0 && c < calls; ++c) {
                const Shape& shape = shapes[static_cast<std::size_t>(c) % 2];
                EXPECT_EQ(hooked_all_reduce(*executor, self, self.stream, buffer.get(),
                                            buffer.get(), shape),
                          ncclSuccess);
            }
            both.arrive_and_wait();
            std::thread watchdog([&] {
                EXPECT_TRUE(executor->stop());
                // Each waits for the transfers of all others.
                std::vector<std::thread> aborts;
                for (Lane* lane : lanes.pointers) {
                    aborts.emplace_back([lane] {
                        lane->abort();
                        EXPECT_EQ(lane->state(), LaneState::Aborted);
                    });
                }
                ncclCommAbort(self.comm);
                for (std::thread& abort : aborts) {
                    abort.join();
                }
            });
            watchdog.join();
            self.comm = nullptr;
            // The job's thread comes back: nothing is executed any more.
            Call call;
            call.count = shapes[0].count;
            call.type = shapes[0].type;
            call.op = shapes[0].op;
            call.send = call.receive = buffer.get();
            int result = 0;
            EXPECT_FALSE(
                executor->all_reduce(call, reinterpret_cast<cuda::Stream>(self.stream), result));
            const auto until = std::chrono::steady_clock::now() + 60s;
            while (cuStreamQuery(self.stream) == CUDA_ERROR_NOT_READY &&
                   std::chrono::steady_clock::now() < until) {
                std::this_thread::sleep_for(1ms);
            }
            EXPECT_NE(cuStreamQuery(self.stream), CUDA_ERROR_NOT_READY);
            executor.reset();
        }
        both.arrive_and_wait();
    });
}

INSTANTIATE_TEST_SUITE_P(AfterCalls, Aborted, ::testing::Values(0, 1, 2, 3, 4));

}  // namespace
}  // namespace deft::executor::test
