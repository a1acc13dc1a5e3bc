// SPDX-License-Identifier: Apache-2.0
// What the ranks ask each other before they switch between plans, and what they do by the answer.
#include "tests/unit/shim/control/plan_switch_fixture.h"

namespace deft::director {
namespace {

// ---- under a plan

TEST_F(PlanSwitchTest, APlanGoesOnWhereARankDoesNotKnowThatItIsToEnd) {
    const auto plan = make_executor();
    ASSERT_NO_FATAL_FAILURE(begin_and_replace(*plan, nullptr));
    calls(12, true);
    EXPECT_EQ(said(), 1) << "it is not decided";
    switch_.commit();
    calls(12, true);
    EXPECT_EQ(said(), 2) << "and was not known to the others";
    EXPECT_TRUE(switch_.ahead());
    executor::test::g_fake.answer = 2;
    calls(14, true);  // to the 21st iteration: they ask each other in the 17th
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
    ASSERT_NO_FATAL_FAILURE(begin_and_replace(*plan, next.get()));
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
    ASSERT_NO_FATAL_FAILURE(begin_and_replace(*plan, next.get()));
    switch_.commit();
    switch_.drop_renewal();
    EXPECT_EQ(switch_.voided(), 2U);
    EXPECT_FALSE(switch_.uses(next.get()));
    calls(8, true);  // they ask each other in the plan's second iteration
    EXPECT_EQ(said(), 1);
}

// All others may have said the same, and will then switch.
TEST_F(PlanSwitchTest, ASwitchIsNotDroppedBetweenThisRanksWordAndTheAnswer) {
    const auto plan = make_executor();
    const auto next = make_executor();
    ASSERT_NO_FATAL_FAILURE(begin_and_replace(*plan, next.get()));
    switch_.commit();
    calls(8, true);
    EXPECT_EQ(said(), 2);
    switch_.drop_renewal();
    EXPECT_TRUE(switch_.uses(next.get()));
    calls(2, true);  // to the answer: not all of them
    EXPECT_EQ(switch_.active(), plan.get());
    switch_.drop_renewal();
    EXPECT_FALSE(switch_.uses(next.get()));
    ASSERT_TRUE(switch_.name({3, PlanSwitch::kAtRenewal, 0, 12, next.get()}));
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
    ASSERT_NO_FATAL_FAILURE(begin_and_replace(*plan, next.get()));
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

// The ranks ask each other over the first network, which is the job's own.
TEST_F(PlanSwitchTest, BeginsNowhereWhereARankKnowsThatAnotherNetworkHasFailed) {
    static std::atomic<int> error;
    error = DEFT_NCCL_SUCCESS;
    executor::Nccl nccl = executor::test::fake_nccl();
    nccl.CommGetAsyncError = [](deft_nccl_comm_t, int* told) {
        *told = error;
        return 0;
    };
    executor::Lane second(nccl, executor::test::fake_execution(), 0);
    std::string problem;
    ASSERT_TRUE(second.open({}, 2, 0, {}, problem)) << problem;
    const auto plan = make_executor(kShapes, 1, {&lane_, &second});
    ASSERT_TRUE(switch_.name({1, 2, 6, 0, plan.get()}));
    switch_.commit();
    error = DEFT_NCCL_REMOTE_ERROR;
    executor::test::g_fake.answer = 0;
    calls(3, false);
    EXPECT_EQ(said(), 0);
    calls(5, false);
    EXPECT_EQ(switch_.voided(), 1U);
    EXPECT_FALSE(switch_.uses(plan.get()));
    EXPECT_FALSE(switch_.failed());
    EXPECT_EQ(switch_.used_lanes(), 0U) << "its error is not the communicator's";
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

}  // namespace
}  // namespace deft::director
