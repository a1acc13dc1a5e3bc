// SPDX-License-Identifier: Apache-2.0
// The switch between plans, under the three threads that use it: hooks, agreement, background.
#include "shim/control/plan_switch.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "perf/executor/fake_driver.h"
#include "perf/executor/plans.h"

namespace deft::director {
namespace {

using agreement::Decision;
using executor::Executor;
using executor::Shape;

const std::vector<Shape> kShapes{{4096, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM},
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
        std::vector<std::uint64_t> bytes;
        for (const Shape& shape : shapes) {
            bytes.push_back(shape.bytes());
        }
        executor::CompileOptions options;
        options.lanes = 1;
        options.forward_lane = executor::kNoLane;
        options.ranks = 2;
        std::string problem;
        auto made = Executor::create(
            executor::test::fake_execution(), executor::test::fake_nccl(), 0, {&lane_},
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
        int result = DEFT_NCCL_SUCCESS;
        const bool taken = asked.all_reduce(call, ordinal_++, grouped,
                                            executor::test::handle<deft_cuda_stream>(128), result);
        EXPECT_EQ(result, expected);
        return taken;
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
};

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
    calls(8, true);  // they ask each other in the plan's fifth iteration, and hear in the ninth
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
    ASSERT_TRUE(switch_.name({1, 0, 0, 0, plan.get()}));
    switch_.commit();
    calls(2, true);
    plan->end(executor::BreakReason::Error);
    ASSERT_TRUE(switch_.name({2, 4, 0, 2, next.get()}));
    switch_.commit();
    calls(2, false);
    calls(2, true);
    EXPECT_EQ(plan->why(), executor::BreakReason::Error);
}

// ---- under a plan

TEST_F(PlanSwitchTest, APlanGoesOnWhereARankDoesNotKnowThatItIsToEnd) {
    const auto plan = make_executor();
    ASSERT_TRUE(switch_.name({1, 0, 0, 0, plan.get()}));
    switch_.commit();
    calls(2, true);
    ASSERT_TRUE(switch_.name({2, PlanSwitch::kAtRenewal, 0, 2, nullptr}));
    calls(12, true);
    EXPECT_EQ(said(), 1) << "it is not decided";
    switch_.commit();
    calls(12, true);
    EXPECT_EQ(said(), 2) << "and was not known to the others";
    EXPECT_TRUE(switch_.ahead());
    executor::test::g_fake.answer = 2;
    calls(22, true);  // to the 25th iteration: they ask each other in the 21st
    calls(2, false);
    EXPECT_FALSE(switch_.ahead());
}

TEST_F(PlanSwitchTest, WhereThePlanEndsBeforeItCallsAreForwardedAndNoOtherBegins) {
    const auto plan = make_executor();
    const auto other = make_executor();
    for (Executor* const next : {other.get(), static_cast<Executor*>(nullptr)}) {
        ASSERT_TRUE(switch_.name({1, switch_.calls(), 0, 0, plan.get()}));
        switch_.commit();
        calls(2, !plan->broken());
        ASSERT_TRUE(switch_.name({2, PlanSwitch::kAtRenewal, 0, 2, next}));
        plan->end(executor::BreakReason::Sequence);
        calls(2, false);
        EXPECT_TRUE(switch_.ahead()) << "it may be decided yet";
        switch_.commit();
        calls(2, false);
        EXPECT_FALSE(switch_.ahead());
        EXPECT_EQ(switch_.voided(), 2U);  // the one with another plan
    }
}

// The council has closed, so nobody will ever know.
TEST_F(PlanSwitchTest, ASwitchWithoutADecisionGoesWithThePlanThatItWasFor) {
    const auto plan = make_executor();
    const auto next = make_executor();
    ASSERT_TRUE(switch_.name({1, 0, 0, 0, plan.get()}));
    switch_.commit();
    calls(2, true);
    ASSERT_TRUE(switch_.name({2, PlanSwitch::kAtRenewal, 0, 2, next.get()}));
    plan->end(executor::BreakReason::Sequence);
    calls(2, false);
    EXPECT_TRUE(switch_.uses(next.get()));
    switch_.drop_renewal();
    EXPECT_FALSE(switch_.uses(next.get()));
    EXPECT_FALSE(switch_.ahead());
    EXPECT_EQ(switch_.voided(), 2U);
    switch_.commit();
    EXPECT_FALSE(switch_.committed_ahead()) << "the decision comes after all";
    calls(2, false);
}

TEST_F(PlanSwitchTest, ASwitchThatTheOthersDoNotKnowIsDroppedUnderThePlan) {
    const auto plan = make_executor();
    const auto next = make_executor();
    ASSERT_TRUE(switch_.name({1, 0, 0, 0, plan.get()}));
    switch_.commit();
    calls(2, true);
    ASSERT_TRUE(switch_.name({2, PlanSwitch::kAtRenewal, 0, 2, next.get()}));
    switch_.commit();
    switch_.drop_renewal();
    EXPECT_EQ(switch_.voided(), 2U);
    EXPECT_FALSE(switch_.uses(next.get()));
    calls(8, true);  // they ask each other in the plan's fifth iteration
    EXPECT_EQ(said(), 1);
}

// All others may have said the same, and will then switch.
TEST_F(PlanSwitchTest, ASwitchIsNotDroppedBetweenThisRanksWordAndTheAnswer) {
    const auto plan = make_executor();
    const auto next = make_executor();
    ASSERT_TRUE(switch_.name({1, 0, 0, 0, plan.get()}));
    switch_.commit();
    calls(2, true);
    ASSERT_TRUE(switch_.name({2, PlanSwitch::kAtRenewal, 0, 2, next.get()}));
    switch_.commit();
    calls(8, true);
    EXPECT_EQ(said(), 2);
    switch_.drop_renewal();
    EXPECT_TRUE(switch_.uses(next.get()));
    calls(8, true);  // to the answer: not all of them
    EXPECT_EQ(switch_.active(), plan.get());
    switch_.drop_renewal();
    EXPECT_FALSE(switch_.uses(next.get()));
    ASSERT_TRUE(switch_.name({3, PlanSwitch::kAtRenewal, 0, 18, next.get()}));
    switch_.commit();
    executor::test::g_fake.answer = 2;
    calls(8, true);
    EXPECT_EQ(said(), 2);
    switch_.drop_renewal();
    calls(8, true);
    EXPECT_EQ(switch_.active(), next.get()) << "all of them";
}

TEST_F(PlanSwitchTest, WhatHasBeenSaidOfASwitchIsOverWithThePlanThatEndsMeanwhile) {
    const auto plan = make_executor();
    const auto next = make_executor();
    ASSERT_TRUE(switch_.name({1, 0, 0, 0, plan.get()}));
    switch_.commit();
    calls(2, true);
    ASSERT_TRUE(switch_.name({2, PlanSwitch::kAtRenewal, 0, 2, next.get()}));
    switch_.commit();
    calls(8, true);
    EXPECT_EQ(said(), 2);
    plan->end(executor::BreakReason::Sequence);
    calls(2, false);
    EXPECT_FALSE(switch_.ahead());
    EXPECT_EQ(switch_.voided(), 2U);
}

// ---- a plan that begins where none is in force

TEST_F(PlanSwitchTest, BeginsWhereAllRanksHaveSaidThatTheyKnow) {
    const auto plan = make_executor();
    ASSERT_TRUE(switch_.name({1, 2, 6, 0, plan.get()}));
    switch_.commit();
    const std::uint64_t before = reduces();
    calls(2, false);
    EXPECT_EQ(reduces(), before);
    calls(1, false);
    EXPECT_EQ(reduces(), before + 1);
    EXPECT_TRUE(said_yes());
    EXPECT_TRUE(switch_.ahead());
    EXPECT_TRUE(switch_.committed_ahead()) << "no other may be named";
    EXPECT_TRUE(switch_.uses(plan.get()));
    calls(3, false);
    EXPECT_EQ(switch_.used_lanes(), 0U);
    calls(4, true);
    EXPECT_EQ(switch_.used_lanes(), 1U);
    EXPECT_FALSE(switch_.ahead());
    EXPECT_EQ(switch_.voided(), 0U);
}

TEST_F(PlanSwitchTest, BeginsNowhereWhereARankDoesNotKnow) {
    const auto plan = make_executor();
    ASSERT_TRUE(switch_.name({1, 2, 6, 0, plan.get()}));
    switch_.commit();
    executor::test::g_fake.answer = 0;
    calls(8, false);
    EXPECT_EQ(switch_.voided(), 1U);
    EXPECT_FALSE(switch_.ahead());
    EXPECT_FALSE(switch_.uses(plan.get()));
    EXPECT_FALSE(switch_.failed());
    executor::test::g_fake.answer = 1;
    ASSERT_TRUE(switch_.name({2, 10, 12, 8, plan.get()}));
    switch_.commit();
    calls(4, false);
    calls(2, true);
}

// It can neither switch nor be sure that the others do not: so it sees to that.
TEST_F(PlanSwitchTest, ARankThatDoesNotKnowSaysSoAndGoesOn) {
    const auto plan = make_executor();
    ASSERT_TRUE(switch_.name({7, 2, 6, 0, plan.get()}));
    decisions_.decide(7, Decision::Lost);
    const std::uint64_t before = reduces();
    executor::test::g_fake.busy = true;
    calls(3, false);
    EXPECT_EQ(reduces(), before + 1);
    EXPECT_FALSE(said_yes());
    EXPECT_TRUE(lane_.casts_in_doubt());
    EXPECT_FALSE(lane_.casts_alone(0)) << "the job's call has not been made";
    EXPECT_FALSE(switch_.failed());
    EXPECT_EQ(switch_.voided(), 7U);
    EXPECT_FALSE(switch_.uses(plan.get()));
    switch_.forwarded(executor::test::handle<deft_cuda_stream>(128));
    calls(6, false);
    EXPECT_EQ(reduces(), before + 1);
    executor::test::g_fake.busy = false;
    EXPECT_FALSE(lane_.casts_in_doubt()) << "the others have asked, too";
}

TEST_F(PlanSwitchTest, ARankThatKnowsIsInNoDoubt) {
    const auto plan = make_executor();
    ASSERT_TRUE(switch_.name({7, 2, 6, 0, plan.get()}));
    switch_.commit();
    executor::test::g_fake.busy = true;
    calls(3, false);
    EXPECT_TRUE(said_yes());
    EXPECT_FALSE(lane_.casts_in_doubt());
    switch_.end();
}

TEST_F(PlanSwitchTest, ADecisionThatComesInTimeIsAsGoodAsOneThatWasThere) {
    const auto plan = make_executor();
    ASSERT_TRUE(switch_.name({7, 2, 4, 0, plan.get()}));
    calls(2, false);
    std::thread hook([&] { calls(2, false); });
    decisions_.await_waiter();
    switch_.commit();
    decisions_.decide(7, Decision::Commit);
    hook.join();
    EXPECT_TRUE(said_yes());
    calls(2, true);
}

TEST_F(PlanSwitchTest, NobodyIsAskedAboutASwitchThatIsCancelled) {
    const auto plan = make_executor();
    ASSERT_TRUE(switch_.name({7, 2, 4, 0, plan.get()}));
    const std::uint64_t before = reduces();
    std::thread hook([&] { calls(3, false); });
    decisions_.await_waiter();
    switch_.cancel(7);
    decisions_.decide(7, Decision::Cancel);
    hook.join();
    calls(5, false);
    EXPECT_EQ(reduces(), before);
}

TEST_F(PlanSwitchTest, NobodyIsAskedInAGroupOrACapture) {
    const auto plan = make_executor();
    const std::uint64_t before = reduces();
    ASSERT_TRUE(switch_.name({1, 2, 4, 0, plan.get()}));
    switch_.commit();
    calls(2, false);
    EXPECT_FALSE(call(DEFT_NCCL_SUCCESS, true));
    EXPECT_EQ(switch_.voided(), 1U);
    switch_.set_driver(&executor::test::fake_execution());
    ASSERT_TRUE(switch_.name({2, 4, 6, 3, plan.get()}));
    switch_.commit();
    calls(1, false);
    executor::test::g_fake.captured = true;
    calls(3, false);
    EXPECT_EQ(switch_.voided(), 2U);
    EXPECT_EQ(reduces(), before);
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

}  // namespace
}  // namespace deft::director
