// SPDX-License-Identifier: Apache-2.0
// What the executor does when the job does not keep to the plan, or ends.
#include <barrier>
#include <chrono>

#include "tests/component/shim/executor/faults.h"

namespace deft::executor::test {
namespace {

using namespace std::chrono_literals;

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
