// SPDX-License-Identifier: Apache-2.0
// The switch between plans, under the three threads that use it: hooks, agreement, background.
#include <limits>
#include <random>
#include <thread>

#include "shim/executor/layer_sums.h"
#include "shim/nccl/sum_mark.h"
#include "tests/unit/shim/control/plan_switch_fixture.h"

namespace deft::director {
namespace {

// Each series has numbers of its own, and a plan is for one.
TEST_F(PlanSwitchTest, CallsOfTheOtherSeriesPassAPlanBy) {
    const std::vector<Shape> gathers{{4096, DEFT_NCCL_FLOAT32, -1, false, Function::AllGather}};
    const auto plan = make_executor(gathers, 0);
    std::uint64_t gathered = 0;
    const auto gather = [&] {
        const Call call{Function::AllGather,
                        4096,
                        DEFT_NCCL_FLOAT32,
                        -1,
                        -1,
                        executor::test::handle<void>(1 << 24),
                        executor::test::handle<void>(1 << 25)};
        int result = DEFT_NCCL_SUCCESS;
        return switch_.all_reduce(call, gathered++, false,
                                  executor::test::handle<deft_cuda_stream>(128), result);
    };
    calls(6, false);  // sums alone come past the call by its number
    EXPECT_FALSE(gather());
    ASSERT_TRUE(switch_.name({1, 2, 0, 0, plan.get()}));
    switch_.commit();
    calls(4, false);
    EXPECT_EQ(switch_.active(), nullptr);
    EXPECT_FALSE(gather());
    EXPECT_TRUE(gather());
    EXPECT_EQ(switch_.active(), plan.get());
    calls(4, false);
    EXPECT_TRUE(gather());
    EXPECT_FALSE(plan->broken()) << "sums between them are none of the plan's";
    switch_.set_series(Series::Shards);
    EXPECT_EQ(switch_.calls(), 4U);
    switch_.set_series(Series::Sums);
    EXPECT_EQ(switch_.calls(), 14U);
    EXPECT_FALSE(switch_.in_iteration());
    EXPECT_EQ(switch_.flush(), 0) << "nothing of shards is late";
    EXPECT_FALSE(plan->broken());
    const auto other = make_executor();
    EXPECT_FALSE(switch_.name({2, 20, 0, 0, other.get()})) << "that plan has to end first";
}

TEST_F(PlanSwitchTest, TakesCallsFromTheSwitchOnAndForwardsThemFromTheNext) {
    const auto plan = make_executor();
    ASSERT_TRUE(switch_.name({1, 4, 0, 0, plan.get()}));
    EXPECT_TRUE(switch_.ahead());
    EXPECT_FALSE(switch_.committed_ahead());
    switch_.commit();
    EXPECT_TRUE(switch_.committed_ahead());
    EXPECT_TRUE(switch_.uses(plan.get()));
    calls(4, false);
    EXPECT_EQ(switch_.active(), nullptr);
    EXPECT_EQ(switch_.used_lanes(), 0U);
    calls(4, true);
    EXPECT_EQ(switch_.active(), plan.get());
    EXPECT_EQ(switch_.used_lanes(), 1U);
    EXPECT_FALSE(switch_.ahead());
    ASSERT_TRUE(switch_.name({2, PlanSwitch::kAtRenewal, 0, 8, nullptr}));
    switch_.commit();
    EXPECT_TRUE(switch_.committed_ahead());
    calls(4, true);
    executor::test::g_fake.answer = 2;
    calls(12, true);  // they ask each other in the plan's 7th iteration, and hear in the 11th
    EXPECT_EQ(said(), 2);
    calls(2, false);
    EXPECT_EQ(switch_.active(), nullptr);
    EXPECT_FALSE(switch_.uses(plan.get()));
    EXPECT_EQ(plan->why(), executor::BreakReason::Stopped);
    EXPECT_TRUE(switch_.unreferenced());
}

TEST_F(PlanSwitchTest, RefusesACallThatHasBeenMade) {
    calls(3, false);
    EXPECT_FALSE(switch_.name({1, 2, 0, 0, nullptr}));
    switch_.cancel(1);
    EXPECT_FALSE(switch_.ahead());
    EXPECT_TRUE(switch_.name({2, 3, 0, 2, nullptr})) << "the next one";
}

TEST_F(PlanSwitchTest, ACancelledSwitchChangesNothingAndALateCancelLeavesTheNextAlone) {
    const auto plan = make_executor();
    ASSERT_TRUE(switch_.name({1, 2, 0, 0, plan.get()}));
    switch_.cancel(1);
    calls(4, false);
    ASSERT_TRUE(switch_.name({2, 6, 0, 4, plan.get()}));
    switch_.cancel(1);
    switch_.commit();
    calls(2, false);
    calls(2, true);
}

TEST_F(PlanSwitchTest, EndsAPlanBeforeItsFirstCallWhereNoIterationBegins) {
    const auto plan = make_executor();
    calls(2, false);
    ordinal_ += 1;  // a metric came in between
    calls(1, false);
    ASSERT_TRUE(switch_.name({1, 5, 0, 2, plan.get()}));
    switch_.commit();
    calls(1, false);
    calls(2, false);
    EXPECT_EQ(plan->why(), executor::BreakReason::Misplaced);
    EXPECT_EQ(switch_.used_lanes(), 0U);
    EXPECT_TRUE(switch_.withdraw(plan.get()));
    EXPECT_FALSE(switch_.withdraw(plan.get()));
}

TEST_F(PlanSwitchTest, EndsAPlanThatTheJobHasFlushedSinceItWasNamed) {
    const auto plan = make_executor();
    calls(2, false);
    ASSERT_TRUE(switch_.name({1, 4, 0, 1, plan.get()}));
    switch_.commit();
    EXPECT_EQ(switch_.flush(), 0);
    EXPECT_EQ(switch_.iteration_begin(), 2U);
    calls(4, false);
    EXPECT_EQ(plan->why(), executor::BreakReason::Stopped);
}

TEST_F(PlanSwitchTest, WaitsForTheDecisionAtTheSwitchAlone) {
    const auto plan = make_executor();
    ASSERT_TRUE(switch_.name({7, 2, 0, 0, plan.get()}));
    calls(2, false);
    std::thread hook([&] { calls(2, true); });
    decisions_.await_waiter();
    EXPECT_FALSE(switch_.unreferenced());
    switch_.commit();
    decisions_.decide(7, Decision::Commit);
    hook.join();
    EXPECT_TRUE(switch_.unreferenced());
}

TEST_F(PlanSwitchTest, FailsWhereNcclDoesNotTellWhatTheOthersKnow) {
    const auto plan = make_executor();
    ASSERT_TRUE(switch_.name({7, 0, 2, 0, plan.get()}));
    switch_.commit();
    lane_.abort();
    EXPECT_TRUE(call(DEFT_NCCL_SYSTEM_ERROR));
    EXPECT_TRUE(switch_.failed());
    EXPECT_TRUE(call(DEFT_NCCL_SYSTEM_ERROR)) << "from there on";
}

// Others may know, and would wait for its word.
TEST_F(PlanSwitchTest, FailsWhereARankThatDoesNotKnowCannotSaySo) {
    const auto plan = make_executor();
    ASSERT_TRUE(switch_.name({7, 0, 2, 0, plan.get()}));
    decisions_.decide(7, Decision::Lost);
    lane_.abort();
    EXPECT_TRUE(call(DEFT_NCCL_SYSTEM_ERROR));
    EXPECT_TRUE(switch_.failed());
}

TEST_F(PlanSwitchTest, FailsWhereTheOthersDoNotAnswerForLong) {
    PlanSwitch impatient(
        0, [](std::uint64_t, agreement::Clock::time_point) { return Decision::Lost; }, {},
        std::chrono::milliseconds(20));
    const auto plan = make_executor();
    ASSERT_TRUE(impatient.name({7, 0, 1, 0, plan.get()}));
    impatient.commit();
    executor::test::g_fake.busy = true;
    EXPECT_FALSE(call_on(impatient, DEFT_NCCL_SUCCESS));
    EXPECT_TRUE(call_on(impatient, DEFT_NCCL_SYSTEM_ERROR));
    EXPECT_TRUE(impatient.failed());
}

TEST_F(PlanSwitchTest, APlanThatHasEndedKeepsItsReasonWhenTheNextBegins) {
    const auto plan = make_executor();
    const auto next = make_executor();
    ASSERT_NO_FATAL_FAILURE(begin(*plan));
    plan->end(executor::BreakReason::Error);
    ASSERT_TRUE(switch_.name({2, 4, 0, 2, next.get()}));
    switch_.commit();
    calls(2, false);
    calls(2, true);
    EXPECT_EQ(plan->why(), executor::BreakReason::Error);
}

TEST_F(PlanSwitchTest, AHookThatWaitsForTheOthersIsReleasedByAnEnd) {
    const auto plan = make_executor();
    ASSERT_TRUE(switch_.name({7, 0, 2, 0, plan.get()}));
    switch_.commit();
    executor::test::g_fake.busy = true;
    calls(2, false);
    std::thread hook([&] { EXPECT_TRUE(call(DEFT_NCCL_SYSTEM_ERROR)); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(switch_.unreferenced());
    switch_.end();
    hook.join();
    switch_.clear();
    EXPECT_FALSE(switch_.failed());
    calls(2, false);
}

TEST_F(PlanSwitchTest, AHookThatAnEndHasReleasedFailsOneCallAlone) {
    const auto plan = make_executor();
    ASSERT_TRUE(switch_.name({7, 0, 0, 0, plan.get()}));
    std::thread hook([&] { EXPECT_TRUE(call(DEFT_NCCL_SYSTEM_ERROR)); });
    decisions_.await_waiter();
    switch_.end();
    decisions_.decide(7, Decision::Lost);
    hook.join();
    switch_.clear();
    EXPECT_FALSE(switch_.failed());
    calls(2, false);
    EXPECT_FALSE(switch_.uses(plan.get()));
}

TEST_F(PlanSwitchTest, TellsZerosFromSumsOnce) {
    EXPECT_FALSE(switch_.in_iteration());
    switch_.note_sums();
    EXPECT_EQ(switch_.take_update(), Update::None) << "no plan has delivered zeros";
    const auto plan = make_executor();
    ASSERT_TRUE(switch_.name({1, 0, 0, 0, plan.get()}));
    switch_.commit();
    calls(1, true);
    EXPECT_TRUE(switch_.in_iteration()) << "it began when the job last asked";
    calls(1, true);
    EXPECT_EQ(switch_.take_update(), Update::Zeros);
    EXPECT_EQ(switch_.take_update(), Update::None);
    calls(2, true);
    switch_.note_sums();
    EXPECT_EQ(switch_.take_update(), Update::Sums);
    calls(1, true);
    EXPECT_TRUE(switch_.in_iteration());
    EXPECT_EQ(switch_.flush(), -1);
}

// All three threads at once, thousands of calls and hundreds of switches: each call must find what
// the last committed switch before it says, and no executor may be freed under a hook. The thread
// sanitizer runs this test too.
class Storm : public PlanSwitchTest {
protected:
    static constexpr int kCommitted = 300;
    struct Owned {
        std::unique_ptr<Executor> plan;
        bool decided = false;
    };

    void hooks() {
        while (!done_) {
            taken_.push_back(call());
            std::this_thread::yield();
        }
    }
    void agreement() {
        std::mt19937 random(7);
        std::uint64_t serial = 0;
        for (int committed = 0; committed < kCommitted;) {
            if (switch_.committed_ahead()) {
                std::this_thread::yield();
                continue;
            }
            const bool ended = random() % 3 == 0;
            Executor* const plan = own(ended);
            const std::uint64_t at = switch_.calls();
            const std::uint64_t call = (at + random() % 40) / 2 * 2;
            const bool yes = switch_.name({++serial, call, 0, at, plan});
            const bool commit = yes && random() % 4 != 0;
            if (commit) {
                switch_.commit();
                expected_[call] = !ended;
                ++committed;
            } else {
                switch_.cancel(serial);
            }
            decisions_.decide(serial, commit ? Decision::Commit : Decision::Cancel);
            const std::lock_guard lock(mutex_);
            for (Owned& owned : owned_) {
                owned.decided = true;
            }
        }
        done_ = true;
    }
    // One that has ended takes no calls.
    Executor* own(bool ended) {
        const std::lock_guard lock(mutex_);
        owned_.push_back({make_executor()});
        if (ended) {
            owned_.back().plan->end(executor::BreakReason::Sequence);
        }
        return owned_.back().plan.get();
    }
    // Frees as the director does: what no switch has in force, once no hook holds a reference.
    void background() {
        while (!done_) {
            std::this_thread::sleep_for(std::chrono::microseconds(200));
            const std::lock_guard lock(mutex_);
            std::erase_if(owned_, [this](const Owned& owned) {
                // In this order: a hook that comes later finds the one in force now.
                const bool over =
                    owned.decided && !switch_.uses(owned.plan.get()) && switch_.unreferenced();
                freed_ += over ? 1 : 0;
                return over;
            });
        }
    }

    std::atomic<bool> done_{false};
    std::mutex mutex_;
    std::vector<Owned> owned_;
    std::map<std::uint64_t, bool> expected_;  // by the call of each committed switch
    std::vector<bool> taken_;                 // by ordinal
    int freed_ = 0;
};

TEST_F(Storm, EachCallFindsWhatTheLastCommittedSwitchSays) {
    std::thread hook([this] { hooks(); });
    std::thread background_thread([this] { background(); });
    agreement();
    hook.join();
    background_thread.join();
    bool in_force = false;
    for (std::uint64_t i = 0; i < taken_.size(); ++i) {
        const auto here = expected_.find(i);
        in_force = here != expected_.end() ? here->second : in_force;
        ASSERT_EQ(taken_[i], in_force) << "call " << i << " of " << taken_.size();
    }
    EXPECT_GT(freed_, 0);
    switch_.end();
    switch_.clear();
}

// Of a plan for layers, whose second bucket overtakes the rest of the first.
std::unique_ptr<Executor> make_overtaking(executor::Lane& lane,
                                          const std::array<std::uint64_t, 2>& marks) {
    executor::test::Plan plan = executor::test::uniform_plan(
        {kShapes[0].bytes(), kShapes[1].bytes()}, 1, 0, {{0.5, 0}, {0.5, 0}}, 1);
    plan.barrier = planner::Barrier::Layer;
    plan.transfers = {plan.transfers[0], plan.transfers[2], plan.transfers[3], plan.transfers[1]};
    for (std::uint32_t i = 0; i < plan.transfers.size(); ++i) {
        plan.transfers[i].order = i;
    }
    executor::CompileOptions options;
    options.lanes = 1;
    options.layers = true;
    options.ranks = 2;
    std::string problem;
    executor::Script script = executor::compile(plan, kShapes, options, problem);
    EXPECT_EQ(problem, "");
    script.marks.assign(marks.begin(), marks.end());
    executor::ExecutorOptions executing;
    executing.lease = true;
    auto made = Executor::create(executor::test::fake_execution(), executor::test::fake_nccl(), 0,
                                 {&lane}, std::move(script), executing, problem);
    EXPECT_NE(made, nullptr) << problem;
    made->vouch(std::numeric_limits<std::int64_t>::max());
    return made;
}

// The plan has begun an iteration, and a group of several calls is open.
class PlanSwitchGroupTest : public PlanSwitchTest {
protected:
    void SetUp() override {
        ASSERT_NO_FATAL_FAILURE(PlanSwitchTest::SetUp());
        marks_ = {pack({DEFT_SUM_BUCKET, 1, 0, false}), pack({DEFT_SUM_BUCKET, 1, 1, true})};
        plan_ = make_overtaking(lane_, marks_);
        ASSERT_NO_FATAL_FAILURE(begin(*plan_));
        EXPECT_TRUE(call());
        executor::take_left_sum().sums->release();
        ASSERT_TRUE(plan_->sums_unsent());
        before_ = reduces();
        for (int i = 0; i < 3; ++i) {
            EXPECT_FALSE(call(DEFT_NCCL_SUCCESS, true));
        }
    }
    void expect_rest_sent() const {
        EXPECT_EQ(reduces(), before_ + 1);
        EXPECT_EQ(plan_->why(), executor::BreakReason::Sequence);
    }

    std::unique_ptr<Executor> plan_;
    std::uint64_t before_ = 0;
};

// In an open group NCCL would only keep the transfers, and what tells that they are over would come
// before them.
TEST_F(PlanSwitchGroupTest, WhatThePlanHasYetToSendComesBehindTheGroup) {
    EXPECT_EQ(reduces(), before_);
    for (int i = 0; i < 3; ++i) {
        switch_.forwarded(executor::test::handle<deft_cuda_stream>(128));
    }
    expect_rest_sent();
    EXPECT_FALSE(call());
    expect_rest_sent();
}

TEST_F(PlanSwitchGroupTest, WhereNcclRefusesTheGroupItComesBeforeTheNextCall) {
    EXPECT_FALSE(call());
    expect_rest_sent();
}

}  // namespace
}  // namespace deft::director
