// SPDX-License-Identifier: Apache-2.0
// A switch between plans whose job, lane and council the test plays.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "perf/executor/fake_driver.h"
#include "perf/executor/plans.h"
#include "shim/control/plan_switch.h"

namespace deft::director {

using agreement::Decision;
using executor::Executor;
using executor::Shape;

inline const std::vector<Shape> kShapes{{4096, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM},
                                        {333, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM}};

// What the council knows of decisions.
class Decisions {
public:
    void decide(std::uint64_t serial, Decision decision) {
        const std::lock_guard lock(mutex_);
        decisions_[serial] = decision;
        changed_.notify_all();
    }
    Decision wait(std::uint64_t serial) {
        std::unique_lock lock(mutex_);
        ++waits_;
        changed_.notify_all();
        changed_.wait(lock, [&] { return decisions_.count(serial) != 0; });
        return decisions_[serial];
    }
    void await_waiter() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return waits_ > 0; });
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::uint64_t, Decision> decisions_;
    int waits_ = 0;
};

class PlanSwitchTest : public ::testing::Test {
protected:
    void SetUp() override {
        executor::test::g_fake.busy = false;
        executor::test::g_fake.captured = false;
        executor::test::g_fake.answer = 1;
        std::string problem;
        ASSERT_TRUE(lane_.open({}, 2, 0, {}, problem)) << problem;
    }
    // Of a plan that delivers every sum one iteration late, zeros in the first.
    std::unique_ptr<Executor> make_executor() { return make_executor(kShapes, 1); }
    std::unique_ptr<Executor> make_executor(const std::vector<Shape>& shapes, std::uint32_t delay) {
        return make_executor(shapes, delay, {&lane_});
    }
    static std::unique_ptr<Executor> make_executor(const std::vector<Shape>& shapes,
                                                   std::uint32_t delay,
                                                   const std::vector<executor::Lane*>& lanes) {
        std::vector<std::uint64_t> bytes;
        for (const Shape& shape : shapes) {
            bytes.push_back(shape.bytes());
        }
        executor::CompileOptions options;
        options.lanes = static_cast<std::uint32_t>(lanes.size());
        options.forward_lane = executor::kNoLane;
        options.ranks = 2;
        std::string problem;
        auto made = Executor::create(
            executor::test::fake_execution(), executor::test::fake_nccl(), 0, lanes,
            executor::compile(executor::test::uniform_plan(bytes, 1, delay, {{1, 0}}, 1), shapes,
                              options, problem),
            {}, problem);
        EXPECT_NE(made, nullptr) << problem;
        return made;
    }
    static std::uint64_t reduces() { return executor::test::g_fake.reduces; }
    // What the rank has told the others last.
    static int said() { return static_cast<int>(executor::test::g_fake.sent % 4); }
    static bool said_yes() { return said() == static_cast<int>(executor::Ballot::Word::Yes); }
    // The job's next call. True if a plan takes it.
    bool call(int expected = DEFT_NCCL_SUCCESS, bool grouped = false) {
        return call_on(switch_, expected, grouped);
    }
    bool call_on(PlanSwitch& asked, int expected, bool grouped = false) {
        const Shape& shape = kShapes[ordinal_ % kShapes.size()];
        Call call;
        call.count = shape.count;
        call.type = shape.type;
        call.op = shape.op;
        call.send = call.receive = executor::test::handle<void>(1 << 24);
        call.mark = marks_[ordinal_ % kShapes.size()];
        int result = DEFT_NCCL_SUCCESS;
        const bool taken = asked.all_reduce(call, ordinal_++, grouped,
                                            executor::test::handle<deft_cuda_stream>(128), result);
        EXPECT_EQ(result, expected);
        return taken;
    }
    // That plan is in force, in its first iteration. One with which it is to be replaced (null:
    // that it is to end) is named, and not decided.
    void begin(Executor& plan) {
        ASSERT_TRUE(switch_.name({1, 0, 0, 0, &plan}));
        switch_.commit();
        calls(2, true);
    }
    void begin_and_replace(Executor& plan, Executor* next) {
        ASSERT_NO_FATAL_FAILURE(begin(plan));
        ASSERT_TRUE(switch_.name({2, PlanSwitch::kAtRenewal, 0, 2, next}));
    }
    void calls(int times, bool taken) {
        for (int i = 0; i < times; ++i) {
            EXPECT_EQ(call(), taken) << ordinal_;
        }
    }

    executor::Lane lane_{executor::test::fake_nccl(), executor::test::fake_execution(), 0};
    Decisions decisions_;
    PlanSwitch switch_{0, [this](std::uint64_t serial, agreement::Clock::time_point) {
                           return decisions_.wait(serial);
                       }};
    std::uint64_t ordinal_ = 0;
    std::array<std::uint64_t, 2> marks_{};  // of the calls
};

}  // namespace deft::director
