// SPDX-License-Identifier: Apache-2.0
// The executor in a hook, on a driver that does nothing: what it costs by itself.
#include <gtest/gtest.h>

#include <new>

#include "perf/executor/fake_driver.h"
#include "perf/executor/plans.h"
#include "shim/executor/lane_times.h"

namespace {
thread_local bool counting = false;
thread_local std::uint64_t allocations = 0;
}  // namespace

// Replaced for the whole test program: counts what this thread allocates while it is told to.
[[gnu::noinline]] void* operator new(std::size_t size) {
    allocations += counting ? 1 : 0;
    if (void* memory = std::malloc(size == 0 ? 1 : size)) {
        return memory;
    }
    throw std::bad_alloc();
}
// std::stable_sort asks for its buffer so.
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
    allocations += counting ? 1 : 0;
    return std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}

namespace deft::executor::test {
namespace {

class Hook : public ::testing::Test {
protected:
    static constexpr std::uintptr_t kStream = 128;  // the job's

    void make(std::uint32_t merge, std::uint32_t delay, ExecutorOptions options = {},
              std::uint32_t history = 0) {
        shapes_ = {{4096, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM},
                   {1 << 20, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM},
                   {333, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM}};
        std::vector<std::uint64_t> bytes;
        for (const Shape& shape : shapes_) {
            bytes.push_back(shape.bytes());
        }
        CompileOptions compile_options;
        compile_options.lanes = 2;
        compile_options.history = history;
        std::string problem;
        Script script = compile(uniform_plan(bytes, merge, delay, {{0.5, 0}, {1, 1}}), shapes_,
                                compile_options, problem);
        ASSERT_EQ(problem, "");
        std::vector<Lane*> pointers;
        for (auto& lane : lanes_) {
            lane = std::make_unique<Lane>(fake_nccl(), fake_execution(), 0);
            ASSERT_TRUE(lane->open({}, 2, 0, {}, problem)) << problem;
            pointers.push_back(lane.get());
        }
        executor_ = Executor::create(fake_execution(), fake_nccl(), 0, pointers, std::move(script),
                                     options, problem);
        ASSERT_NE(executor_, nullptr) << problem;
    }
    bool call(std::size_t position, int& result) {
        Call call;
        call.count = shapes_[position].count;
        call.type = shapes_[position].type;
        call.op = shapes_[position].op;
        call.send = call.receive = handle<void>(1 << 24);
        return executor_->all_reduce(call, handle<deft_cuda_stream>(kStream), result);
    }
    void iterations(int n) {
        for (int t = 0; t < n; ++t) {
            for (std::size_t b = 0; b < shapes_.size(); ++b) {
                int result = -1;
                ASSERT_TRUE(call(b, result));
                ASSERT_EQ(result, 0);
            }
        }
    }

    std::vector<Shape> shapes_;
    std::unique_ptr<Lane> lanes_[2];
    std::unique_ptr<Executor> executor_;
};

TEST_F(Hook, AllocatesNothing) {
    ExecutorOptions options;
    options.statistics = true;
    options.prediction = {PredictionKind::Quad, 0};
    make(2, 1, options, 2);
    iterations(8);
    allocations = 0;
    counting = true;
    iterations(1000);
    counting = false;
    EXPECT_EQ(allocations, 0U);
    EXPECT_GT(executor_->stats().predicted, 1000U);
    // The counter itself works.
    counting = true;
    void* volatile memory = ::operator new(4);
    counting = false;
    ::operator delete(memory);
    EXPECT_GT(allocations, 0U);
}

TEST_F(Hook, MeasuresAgainWhenItsResultsAreTaken) {
    ExecutorOptions options;
    options.statistics = true;
    options.complete_every = 2;
    make(1, 1, options);
    iterations(20);
    Statistics statistics;
    int taken = 0;
    while (executor_->take(statistics)) {
        EXPECT_EQ(statistics.iteration, static_cast<std::uint64_t>(taken));
        EXPECT_EQ(statistics.complete, taken % 2 == 0);
        EXPECT_EQ(statistics.merged, 1);
        ++taken;
    }
    EXPECT_EQ(taken, 8);  // nobody took them: the rest was not measured
    iterations(3);
    EXPECT_TRUE(executor_->take(statistics));
    EXPECT_EQ(statistics.iteration, 20U);
}

// Of a lane that carries nothing nothing is known, and the others are timed all the same.
TEST_F(Hook, TimesItsLanesAFewCallsAtATime) {
    make(1, 1);
    iterations(100);
    LaneTimes* const times = executor_->lane_times();
    ASSERT_NE(times, nullptr);
    EXPECT_EQ(times->calls(), 0U);
    g_fake.busy = true;
    times->take();
    EXPECT_EQ(times->calls(), 0U) << "the device has yet to come to them";
    g_fake.busy = false;
    times->take();
    EXPECT_EQ(times->calls(), LaneTimes::kRing) << "nobody had taken them: the rest was not timed";
    const std::vector<LaneUse>& uses = times->uses();
    ASSERT_EQ(uses.size() % 3, 0U);
    std::uint64_t bytes = 0;
    for (const LaneUse& use : uses) {
        EXPECT_GE(use.measured, LaneTimes::kRing / uses.size());
        EXPECT_NEAR(use.seconds, static_cast<double>(use.measured) * 2e-3, 1e-9);
        for (const std::uint64_t piece : use.pieces) {
            bytes += piece;
        }
    }
    const Script& script = executor_->script();
    std::uint64_t sent = 0;
    for (const Launch& launch : script.launches) {
        sent += launch.end - launch.begin;
    }
    EXPECT_EQ(bytes, sent);
}

TEST_F(Hook, TimesItsLanesForAWhileOnly) {
    make(1, 0);
    LaneTimes* const times = executor_->lane_times();
    for (int i = 0; i < 200; ++i) {
        iterations(20);
        times->take();
    }
    EXPECT_EQ(times->calls(), LaneTimes::kMost);
    make(1, 0);
    executor_->lane_times()->stop();
    iterations(20);
    executor_->lane_times()->take();
    EXPECT_EQ(executor_->lane_times()->calls(), 0U);
}

// An event that carries a time may be had for none.
TEST_F(Hook, GoesOnWhereTheDriverTimesNothing) {
    g_fake.untimed = true;
    make(1, 1);
    EXPECT_EQ(executor_->lane_times(), nullptr);
    iterations(20);
    EXPECT_FALSE(executor_->broken());
    g_fake.untimed = false;
}

// What the driver refuses is not what the job asked for: the call goes to NCCL, as all later ones.
TEST_F(Hook, ForwardsWhatTheDriverRefuses) {
    make(1, 1);
    iterations(2);
    g_fake.refuses = true;
    const std::uint64_t reduces = g_fake.reduces;
    int result = 77;
    EXPECT_FALSE(call(0, result));
    EXPECT_EQ(result, 77) << "NCCL's, not ours";
    g_fake.refuses = false;
    EXPECT_EQ(executor_->why(), BreakReason::Error);
    EXPECT_EQ(g_fake.reduces, reduces) << "no other rank has seen anything of it";
    EXPECT_FALSE(call(1, result));
}

TEST_F(Hook, ForwardsACallOnAStreamOfAnotherContext) {
    make(1, 0);
    iterations(2);
    g_fake.foreign = kStream;
    const std::uint64_t reduces = g_fake.reduces;
    int result = 77;
    EXPECT_FALSE(call(0, result));
    g_fake.foreign = 0;
    EXPECT_EQ(result, 77);
    EXPECT_EQ(executor_->why(), BreakReason::Error);
    EXPECT_EQ(g_fake.reduces, reduces);
    EXPECT_FALSE(call(1, result));
}

// The others take part in the transfers: they are waited for, and delivered on another stream.
TEST_F(Hook, CarriesThroughWhatIsUnderWay) {
    for (const std::uint32_t delay : {0U, 1U}) {
        make(1, delay);
        iterations(2);
        g_fake.foreign_later = kStream;
        const std::uint64_t reduces = g_fake.reduces;
        const int copies = g_fake.copies;
        int result = 77;
        EXPECT_TRUE(call(0, result)) << delay;
        EXPECT_EQ(result, DEFT_NCCL_SUCCESS) << delay;
        g_fake.foreign = 0;
        EXPECT_EQ(executor_->why(), BreakReason::Error) << delay;
        EXPECT_EQ(g_fake.reduces, reduces + 2) << delay;
        EXPECT_GE(g_fake.copies, copies + static_cast<int>(delay)) << delay;
    }
}

TEST_F(Hook, EndsWithACapturedCall) {
    make(1, 1);
    iterations(1);
    g_fake.captured = true;
    int result = 0;
    EXPECT_FALSE(call(0, result));
    g_fake.captured = false;
    EXPECT_EQ(executor_->why(), BreakReason::Capture);
    EXPECT_FALSE(call(0, result));
}

TEST_F(Hook, CountsWhatItDoes) {
    make(2, 0);
    iterations(10);
    const ExecutorStats stats = executor_->stats();
    EXPECT_EQ(stats.iterations, 10U);
    EXPECT_EQ(stats.executed, 30U);
    EXPECT_EQ(stats.launched, 5U * 6);
    EXPECT_EQ(stats.launched_bytes, 5U * 4 * (4096 + (1 << 20) + 333));
    EXPECT_EQ(stats.zeroed, 5U * 3);
    EXPECT_EQ(stats.delivered, 5U * 3);
    EXPECT_EQ(stats.dropped, 0U);
    EXPECT_EQ(executor_->iteration(), 10U);
}

}  // namespace
}  // namespace deft::executor::test
