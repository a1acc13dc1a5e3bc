// SPDX-License-Identifier: Apache-2.0
// The leader's course where a plan ends: slower than none, by the guard, by the job's flush.
#include "tests/component/shim/control/leader.h"

namespace deft::director::test {
namespace {

TEST_F(Leader, APlanThatIsSlowerThanNoneIsGivenUp) {
    bring_into_force();
    iterate_merged(kEarlyIdle, kSlow, 10);
    linger();
    EXPECT_EQ(asked(), 3U) << "too few iterations to judge by";
    iterate_merged(kEarlyIdle, kSlow, 15);
    const std::uint64_t at = heard(Kind::Forward).switch_call;
    EXPECT_EQ((at - in_force_at_) % kPeriod, 0U) << "in the middle of a period";
    reach(at, true);
    iterate(kHidden, false);
    ASSERT_TRUE(ticks_until([&] { return director_->facts().state == "resting"; }));
    EXPECT_EQ(director_->facts().dropped, 0U);
    EXPECT_EQ(director_->facts().reason.find("no gain: "), 0U) << director_->facts().reason;
    iterate(kHidden, false, 20);
    linger();
    EXPECT_EQ(director_->facts().switched, 1U);
    EXPECT_EQ(director_->facts().state, "resting");
}

TEST_F(Leader, APlanThatIsToEndIsNeitherReplacedNorEndedTwice) {
    bring_into_force();
    iterate_merged(kIdle, {{30, 125}, {500, 100}}, 25);
    const std::uint64_t at = heard(Kind::Forward).switch_call;
    linger();
    EXPECT_EQ(asked(), 4U) << "the second gradient is ready late";
    reach(at, true);
    iterate(kHidden, false);
    EXPECT_TRUE(ticks_until([&] { return director_->facts().state == "resting"; }));
    EXPECT_EQ(director_->facts().switched, 1U);
}

TEST_F(Leader, APlanThatTheGuardEndsIsTakenUpAgainThoughItWasSlow) {
    bring_into_force();
    iterate_merged(kEarlyIdle, kSlow, 18);
    report_not_finite();
    const std::uint64_t at = heard(Kind::Forward).switch_call;
    for (int i = 0; ordinal_ < at; ++i) {
        iterate(i % 2 == 0 ? kEarlyIdle : kSlow, true);
    }
    linger();
    iterate(kHidden, false);
    EXPECT_TRUE(ticks_until([&] { return director_->facts().state == "fallen"; }));
    EXPECT_EQ(asked(), 4U);
    iterate(kHidden, false, 200);  // as long as it stays away at first
    EXPECT_EQ(staged().predicted.max_merge, 2U);
}

// The slowest rank may take minutes to be ready for another plan.
TEST_F(Leader, TheGuardEndsAPlanThatIsBeingReplaced) {
    bring_into_force();
    wanted_instead();
    report_not_finite();
    ASSERT_TRUE(ticks_until([&] { return director_->facts().guard_decisions == 1; }));
    heard(Kind::Drop);
    reach(heard(Kind::Forward).switch_call, true);
    iterate(kHidden, false);
    EXPECT_TRUE(ticks_until([&] { return director_->facts().state == "fallen"; }));
    EXPECT_EQ(director_->facts().switched, 1U);
}

TEST_F(Leader, WhatIsStagedGoesWhereThePlanItWasToReplaceEnds) {
    bring_into_force();
    wanted_instead();
    answer(Step::Learned);
    opened();
    interrupt();
    heard(Kind::Discard);
    EXPECT_EQ(director_->facts().ended, 1U);
}

// It is left alone for a while after 20 in a row that were soon over. A plan that has lasted is
// none of them, nor is one that was to take its place.
TEST_F(Leader, PlansThatAreSoonOverAreMadeAnewTwentyTimes) {
    bring_into_force();
    wanted_instead();
    armed();
    interrupt();
    ASSERT_TRUE(ticks_until([&] { return director_->facts().ended == 1; }));
    heard(Kind::Discard);
    iterate(kHidden, false, 5);
    for (std::uint64_t i = 1; i <= PlanBackoff::kFree; ++i) {
        EXPECT_EQ(staged().predicted.max_merge, 1U);
        reach(armed(), false);
        iterate(kIdle, true);
        ASSERT_TRUE(ticks_until([&] { return director_->facts().state == "running"; }));
        interrupt();
        ASSERT_TRUE(ticks_until([&] { return director_->facts().ended == 1 + i; }));
        if (i < PlanBackoff::kFree) {
            iterate(kHidden, false, 5 + static_cast<int>(i));  // else a longer cycle is learned
        }
    }
    EXPECT_NE(director_->facts().reason.find("changes often"), std::string::npos);
    const std::size_t before = asked();
    iterate(kHidden, false, static_cast<int>(PlanBackoff::kFirst) - 1);
    linger();
    EXPECT_EQ(asked(), before) << "it is too early";
    iterate(kHidden, false);
    staged();
}

// However often evaluations come: each of them ends the plan, and the plan comes back.
TEST_F(Leader, EvaluationsDoNotEndPlanningForEver) {
    bring_into_force();
    for (std::uint64_t i = 1; i <= 2 * PlanBackoff::kFree + 5; ++i) {
        iterate_merged(kEarlyIdle, kHidden, static_cast<int>(PlanBackoff::kWorthwhile) / 2);
        interrupt();
        ASSERT_TRUE(ticks_until([&] { return director_->facts().ended == i; }));
        iterate(kHidden, false, 5 + static_cast<int>(i));  // else a longer cycle is learned
        staged();
        reach(armed(), false);
        iterate(kIdle, true);
        ASSERT_TRUE(ticks_until([&] { return director_->facts().state == "running"; })) << i;
    }
}

// A job averages its parameters, of the same sizes, where it has flushed.
TEST_F(Leader, AFlushGoesForAPlanWhoseCallIsNamedToo) {
    iterate(kHidden, false, 20);
    staged();
    const std::uint64_t at = armed();
    reach(at, false);
    EXPECT_EQ(director_->flush(), 0);
    iterate(kHidden, false, 2);
    ASSERT_TRUE(ticks_until([&] { return director_->facts().switched == 1; }));
    EXPECT_NE(director_->facts().state, "running");
    EXPECT_EQ(director_->facts().executed, 0U);
    EXPECT_EQ(director_->facts().ended, 0U) << "the job has asked for it";
    iterate(kHidden, false, 5);
    staged();
    answer(Step::Learned);
    opened();
    answer(Step::Ready);
    reach(heard(Kind::Arm).switch_call, false);
    iterate(kHidden, true);
    EXPECT_TRUE(ticks_until([&] { return director_->facts().state == "running"; }))
        << "nothing was flushed since that call was named";
}

// Between two iterations: the leader has named the call with no call made since.
TEST_F(Leader, AFlushGoesForAPlanWhoseCallHasJustBeenNamed) {
    iterate(kHidden, false, 20);
    staged();
    const std::uint64_t at = armed();
    EXPECT_EQ(director_->flush(), 0);
    reach(at, false);
    iterate(kHidden, false, 2);
    ASSERT_TRUE(ticks_until([&] { return director_->facts().switched == 1; }));
    EXPECT_EQ(director_->facts().executed, 0U);
}

TEST_F(Leader, AFlushGoesForAPlanThatIsToReplaceTheOneInForceToo) {
    bring_into_force();
    wanted_instead();
    ASSERT_GE(armed(), ordinal_ + kPeriod + 2);
    iterate_merged(kIdle, kHidden, 1);
    EXPECT_EQ(director_->flush(), 0) << "all sums have been delivered";
    iterate(kHidden, false, 3);
    linger();
    EXPECT_EQ(director_->facts().switched, 1U);
    EXPECT_NE(director_->facts().state, "running");
    EXPECT_EQ(director_->facts().ended, 0U);
}

// Of covap's coefficient, which rises as the training goes on.
TEST_F(Leader, APlanGoesOnWhereTheLastOneEnded) {
    bring_into_force();
    iterate_merged(kIdle, kHidden, 2);
    interrupt();
    ASSERT_TRUE(ticks_until([&] { return director_->facts().ended == 1; }));
    const std::uint64_t iterations = director_->facts().iterations;
    EXPECT_EQ(iterations, 6U);
    iterate(kHidden, false, 5);
    EXPECT_EQ(hear().order.iterations, iterations);
}

// Calls that are no gradients do not disturb a plan, but the cycle is not learned any more.
TEST_F(Leader, AFallDoesNotWaitForTheCycleToBeLearned) {
    bring_into_force();
    std::uint64_t gathered = 0;
    for (int i = 0; i < 4; ++i) {
        iterate(i % 2 == 0 ? kIdle : kHidden, true);
        CallRecord gather = record(CallRecord::kNoOrdinal, ++gathered);
        gather.function = Function::AllGather;
        gather.op = -1;
        track_.feed(gather);
    }
    ASSERT_FALSE(track_.stable());
    report_not_finite();
    const std::uint64_t at = heard(Kind::Forward).switch_call;
    EXPECT_EQ((at - in_force_at_) % kPeriod, 0U);
    reach(at, true);
    iterate(kHidden, false);
    EXPECT_TRUE(ticks_until([&] { return director_->facts().state == "fallen"; }));
}

// A rank says no to the end of a plan.
class EndedLater : public Leader {
protected:
    void SetUp() override {
        ASSERT_NO_FATAL_FAILURE(Leader::SetUp());
        using agreement::Answer;
        scene_.member(1).answer_with({Answer::Yes, Answer::Yes, Answer::Yes, Answer::Yes,
                                      Answer::No, Answer::Yes, Answer::Yes});
        bring_into_force();
    }
    void expect_end() {
        reach(heard(Kind::Forward).switch_call, true);
        EXPECT_EQ(asked(), 5U);
        iterate(kHidden, false);
    }
};

TEST_F(EndedLater, WhereItIsSlow) {
    iterate_merged(kEarlyIdle, kSlow, 25);
    expect_end();
    EXPECT_TRUE(ticks_until([&] { return director_->facts().state == "resting"; }));
}

TEST_F(EndedLater, WhereAFollowerMeasuresWhatIsNotFinite) {
    report_not_finite();
    expect_end();
    EXPECT_TRUE(ticks_until([&] { return director_->facts().state == "fallen"; }));
    EXPECT_EQ(director_->facts().guard_decisions, 1U);
    iterate(kHidden, false, 200);  // as long as it stays away at first
    EXPECT_EQ(staged().predicted.max_merge, 2U);
}

// What the guard has said once is done when the council is free again.
TEST_F(Leader, APlanThatTheGuardEndsWhileAnotherIsGivenUpEndsAfterThat) {
    using agreement::Answer;
    // Stage, Open, Rehearse, Arm, Stage, Drop
    scene_.member(1).answer_with({Answer::Yes, Answer::Yes, Answer::Yes, Answer::Yes, Answer::Yes,
                                  Answer::Later, Answer::Yes});
    bring_into_force();
    wanted_instead();
    answer(Step::Refused, false, "another sequence of gradients was learned");
    ASSERT_TRUE(ticks_until([&] { return asked() == 5; }));
    report_not_finite();
    ASSERT_TRUE(ticks_until([&] { return director_->facts().guard_decisions == 1; }));
    scene_[1].answer(scene_.member(1).asked().back().serial, true);
    heard(Kind::Drop);
    reach(heard(Kind::Forward).switch_call, true);
    iterate(kHidden, false);
    EXPECT_TRUE(ticks_until([&] { return director_->facts().state == "fallen"; }));
}

}  // namespace
}  // namespace deft::director::test
