// SPDX-License-Identifier: Apache-2.0
// The leader's second look: the plan it finds is judged by the one whose place it took, which comes
// back where that was faster. What is known of the two says nothing of any other plan.
#include "shim/settings/optimizer.h"
#include "tests/component/shim/control/leader.h"

namespace deft::director::test {
namespace {

// An iteration took 143 ms under the first plan, in the mean, and 160 ms without any.
constexpr Pace kAsFast = {{30, 125}, {1, 20}};            // 145 ms
constexpr Pace kSlower = {{30, 125}, {1, 30}};            // 155 ms
constexpr Pace kSlowerThanNone = {{30, 125}, {100, 60}};  // 190 ms
constexpr int kJudged = 45;                               // iterations

class GoingBack : public Leader {
protected:
    void SetUp() override {
        ASSERT_NO_FATAL_FAILURE(Leader::SetUp());
        ASSERT_NO_FATAL_FAILURE(bring_into_force());
    }
    // What is staged.
    void comes_into_force(std::uint64_t switched) {
        const std::uint64_t at = armed();
        reach(at, director_->facts().state == "running");
        in_force_at_ = at;
        iterate(kIdle, true);
        ASSERT_TRUE(ticks_until([&] { return director_->facts().switched == switched; }));
        period_ = director_->facts().period;
    }
    void better_in_force() {
        const planner::Plan plan = wanted_instead();
        ASSERT_EQ(plan.predicted.max_merge, 1U);
        ASSERT_EQ(plan.predicted.max_delay, 1U);
        ASSERT_NO_FATAL_FAILURE(comes_into_force(2));
    }
    void expect_nothing_more_is_asked() {
        const std::size_t before = asked();
        linger();
        EXPECT_EQ(asked(), before);
    }
};

TEST_F(GoingBack, APlanThatIsSlowerThanTheOneBeforeGivesItsPlaceBackForGood) {
    ASSERT_NO_FATAL_FAILURE(better_in_force());
    iterate(kSlower, true, kJudged);
    EXPECT_EQ(staged().predicted.max_merge, 2U);
    ASSERT_NO_FATAL_FAILURE(comes_into_force(3));
    iterate(kHidden, true);
    iterate_merged(kIdle, kHidden, kJudged);
    expect_nothing_more_is_asked();
    EXPECT_EQ(director_->facts().max_merge, 2U);
}

TEST_F(GoingBack, APlanThatIsAsFastStays) {
    ASSERT_NO_FATAL_FAILURE(better_in_force());
    iterate(kAsFast, true, kJudged);
    expect_nothing_more_is_asked();
    iterate(kSlower, true, 20 * kJudged);
    expect_nothing_more_is_asked();  // it has shown itself
    EXPECT_EQ(director_->facts().max_delay, 1U);
}

// The plan before may gain all the same.
TEST_F(GoingBack, APlanThatIsSlowerThanNoneGivesItsPlaceBackToo) {
    ASSERT_NO_FATAL_FAILURE(better_in_force());
    iterate(kSlowerThanNone, true, kJudged);
    EXPECT_EQ(staged().predicted.max_merge, 2U);
    ASSERT_NO_FATAL_FAILURE(comes_into_force(3));
    iterate(kHidden, true);
    iterate_merged(kEarlyIdle, kSlow, kJudged);
    EXPECT_EQ(heard(Kind::Forward).order.kind, Kind::Forward) << "it does not";
}

// A rank may be busy, or the ranks may not agree on a call.
TEST_F(GoingBack, APlanThatCannotComeBackIsAskedForAgain) {
    ASSERT_NO_FATAL_FAILURE(better_in_force());
    iterate(kSlower, true, kJudged);
    EXPECT_EQ(staged().predicted.max_merge, 2U);
    answer(Step::Refused, true, "another sequence of gradients was learned");
    heard(Kind::Drop);
    expect_nothing_more_is_asked();
    iterate(kSlower, true, kJudged);
    EXPECT_EQ(staged().predicted.max_merge, 2U);
    ASSERT_NO_FATAL_FAILURE(comes_into_force(3));
    iterate(kHidden, true);
    iterate_merged(kIdle, kHidden, kJudged);
    expect_nothing_more_is_asked();
    EXPECT_EQ(director_->facts().max_merge, 2U);
}

TEST_F(GoingBack, APlanThatCanNeverComeBackIsAskedForAFewTimes) {
    ASSERT_NO_FATAL_FAILURE(better_in_force());
    for (int tries = 0; tries < 3; ++tries) {
        iterate(kSlower, true, kJudged << tries);
        EXPECT_EQ(staged().predicted.max_merge, 2U);
        answer(Step::Refused, true, "another sequence of gradients was learned");
        heard(Kind::Drop);
    }
    iterate(kSlower, true, 20 * kJudged);
    expect_nothing_more_is_asked();
    EXPECT_EQ(director_->facts().max_delay, 1U) << "which is faster than none";
}

// An evaluation in between, of which nothing is planned, is no reason to look a third time.
TEST_F(GoingBack, TheJobDoesNotGoToAndFroWhereItIsInterruptedNowAndThen) {
    ASSERT_NO_FATAL_FAILURE(better_in_force());
    iterate(kSlower, true, kJudged);
    staged();
    ASSERT_NO_FATAL_FAILURE(comes_into_force(3));
    iterate(kHidden, true);
    interrupt();
    ASSERT_TRUE(ticks_until([&] { return director_->facts().ended == 1; }));
    interrupt();
    iterate_other(kIdle, 20);
    EXPECT_EQ(hear().order.kind, Kind::Close) << "nothing is gained there";
    // Until then no lane is made anew.
    ASSERT_TRUE(ticks_until([] { return g_lanes.destroyed == 1; }));
    iterate(kHidden, false, 5);
    EXPECT_EQ(staged().predicted.max_merge, 2U);
    ASSERT_NO_FATAL_FAILURE(comes_into_force(4));
    iterate(kHidden, true);
    iterate_merged(kIdle, kHidden, kJudged);
    expect_nothing_more_is_asked();
}

// A follower has answered to nothing yet that another part of the leader has proposed.
TEST_F(GoingBack, ASecondLookThatFindsTheCouncilBusyIsTakenAgain) {
    std::vector<agreement::Answer> answers(proposed() + 20, agreement::Answer::Yes);
    answers[proposed()] = agreement::Answer::Later;
    scene_.member(1).answer_with(answers);
    Order harmless;
    harmless.kind = Kind::Close;
    harmless.keep = 1;
    agreement::Proposal proposal;
    proposal.serial = heard_ + 1;
    proposal.switch_call = PlanSwitch::kNever;
    proposal.body = encode(harmless);
    ASSERT_TRUE(scene_[0].propose(proposal));
    ASSERT_TRUE(eventually([&] { return asked() == 4; }));
    iterate_merged(kIdle, kHidden, 10);
    expect_nothing_more_is_asked();
    scene_[1].answer(proposal.serial, true);
    EXPECT_EQ(hear().order.kind, Kind::Close);
    EXPECT_EQ(staged().predicted.max_delay, 1U);
}

// The second look's plan never came; later the job trains otherwise, and has another plan.
TEST_F(GoingBack, APlanThatTookNoPlaceIsNotJudgedByTheOneBefore) {
    wanted_instead();
    answer(Step::Refused, false, "another sequence of gradients was learned");
    heard(Kind::Drop);
    set_gradient_scaling(true);
    reach(heard(Kind::Forward).switch_call, true);
    iterate(kHidden, false);
    ASSERT_TRUE(ticks_until([&] { return director_->facts().state == "watching"; }));
    constexpr Pace kLastWaits = {{30, 100}, {20, 100}};  // 200 ms
    iterate(kLastWaits, false, 20);
    EXPECT_EQ(hear().order.kind, Kind::Close);
    set_gradient_scaling(false);
    EXPECT_EQ(staged().predicted.max_delay, 1U);
    ASSERT_NO_FATAL_FAILURE(comes_into_force(2));
    iterate({{30, 100}, {1, 80}}, true, kJudged);  // 180 ms
    const std::size_t before = asked();
    linger();
    if (asked() != before) {
        EXPECT_EQ(staged().predicted.max_merge, 1U) << "of another plan for another job";
    }
}

}  // namespace
}  // namespace deft::director::test
