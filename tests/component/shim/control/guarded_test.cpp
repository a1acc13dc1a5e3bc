// SPDX-License-Identifier: Apache-2.0
// What the leader does of what the accuracy guard decides: another plan, none, the plan again. Up
// to three gradients may be merged here.
#include <bit>

#include "tests/component/shim/control/leader.h"

namespace deft::director::test {
namespace {

constexpr int kFirst = 3;  // gradients that the first plan merges, and its period

class Guarded : public Leader {
protected:
    void SetUp() override {
        ASSERT_NO_FATAL_FAILURE(Leader::SetUp());
        iterate(kHidden, false, 20);
        ASSERT_EQ(staged().predicted.max_merge, kFirst);
        ASSERT_NO_FATAL_FAILURE(comes_into_force(1));
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
    // To the call that the leader names, from which on nothing is planned.
    void falls() {
        reach(heard(Kind::Forward).switch_call, true);
        iterate(kHidden, false);
        ASSERT_TRUE(ticks_until([&] { return director_->facts().state == "fallen"; }));
    }
    // As long as the guard holds a plan back, and not an iteration less.
    void expect_back_after(int iterations, std::uint32_t merge) {
        const std::size_t before = asked();
        iterate(kHidden, false, iterations - 2);
        linger();
        EXPECT_EQ(asked(), before) << "too early";
        iterate(kHidden, false, 2);
        EXPECT_EQ(staged().predicted.max_merge, merge);
    }
    // What both ranks measure of gradients with next to no noise, so that an update of many is
    // worth one of one.
    void report_clean(double merged) {
        constexpr double kNoise = 0.02;  // against a signal of 1
        // The sums are as large as those of the lanes, which the leader measures too.
        const double lanes_sum = std::bit_cast<float>(0x02020202);
        for (int i = 0; i < 12; ++i) {
            guard::Statistics measured;
            measured.iteration = 1'000'000 + measured_++;  // beyond the leader's own
            measured.complete = true;
            measured.bytes = 4;
            measured.merged = merged;
            const double sum = kRanks * kRanks * merged * merged + kRanks * merged * kNoise;
            measured.local_square =
                lanes_sum * lanes_sum / sum * (merged * merged + merged * kNoise);
            measured.reduced_square = lanes_sum * lanes_sum;
            report(measured);
        }
    }
    // And of a training that swings, in as many updates as the guard looks at.
    void report_swing() {
        for (std::uint32_t i = 0; i < guard::Settings().swing_window; ++i) {
            guard::Statistics measured;
            measured.iteration = 1'000'000 + measured_++;
            measured.bytes = 4;
            measured.cosine_before = 0.8;
            measured.cosine_earlier = -0.3;
            report(measured);
        }
    }
    // And what their companions tell of so many iterations.
    void report_losses(int iterations, bool late, double loss) {
        std::vector<guard::Training> told;
        for (int i = 0; i < iterations; ++i) {
            told.push_back({trained_++, late, loss + 0.01 * (i % 2), 1, 0.1});
        }
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_TRUE(scene_[rank].report(guard::encode(told)));
        }
    }
    void report(const guard::Statistics& measured) {
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_TRUE(scene_[rank].report(guard::encode(measured)));
        }
    }
    // Enough periods that the leader looks again and wants another plan.
    void wanted_after_a_second_look() {
        for (int i = 0; i < 8; ++i) {
            iterate(kIdle, true, kFirst - 1);
            iterate(kHidden, true);
        }
        ASSERT_EQ(staged().predicted.max_merge, 1U);
    }

    // What the follower says to the next proposal; and yes again to those after it.
    void answer_next(agreement::Answer answer) {
        std::vector<agreement::Answer> answers(proposed() + 20, agreement::Answer::Yes);
        answers[proposed()] = answer;
        scene_.member(1).answer_with(answers);
    }
    // The job interrupts the plan while the follower has yet to answer to its fall, the
    // `asked_for`th proposal.
    void interrupted_in_its_fall(std::size_t asked_for) {
        answer_next(agreement::Answer::Later);
        report_not_finite();
        ASSERT_TRUE(ticks_until([&] { return asked() == asked_for; }));
        interrupt();
        interrupt();
        ASSERT_TRUE(ticks_until([&] { return director_->facts().ended == 1; }));
    }

    std::uint64_t measured_ = 0;
    std::uint64_t trained_ = 0;
};

TEST_F(Guarded, APlanThatMergesLessTakesOver) {
    report_clean(kFirst);
    EXPECT_EQ(staged().predicted.max_merge, 2U);
    comes_into_force(2);
    EXPECT_EQ(director_->facts().max_merge, 2U);
    interrupt();
    ASSERT_TRUE(ticks_until([&] { return director_->facts().ended == 1; }));
    iterate(kHidden, false, 5);
    EXPECT_EQ(staged().predicted.max_merge, 2U) << "what the guard refused comes back";
}

TEST_F(Guarded, APlanUnderWhichTheTrainingSwingsFalls) {
    EXPECT_TRUE(director_->facts().guard_history.empty());
    report_swing();
    falls();
    const std::vector<GuardEvent> history = director_->facts().guard_history;
    ASSERT_EQ(history.size(), director_->facts().guard_decisions);
    EXPECT_EQ(history[0].action, "fall back");
    EXPECT_NE(history[0].reason, "");
    EXPECT_TRUE(history[0].acted);
    EXPECT_EQ(director_->facts().guard_decisions, 1U);
    expect_back_after(200, kFirst);
}

TEST_F(Guarded, APlanUnderWhichTheLossRisesFalls) {
    report_losses(30, false, 1);
    report_losses(20, true, 1);
    linger();
    EXPECT_EQ(director_->facts().guard_decisions, 0U);
    report_losses(5, true, 3);
    falls();
    const GuardEvent event = director_->facts().guard_history.at(0);
    EXPECT_EQ(event.reason.substr(0, 13), "the loss rose") << event.reason;
    EXPECT_EQ(event.from, 30U);
    EXPECT_EQ(event.to, 54U);
    EXPECT_EQ(event.late_by, kFirst - 1);
    EXPECT_NEAR(event.loss_expected, 1, 0.02);
    EXPECT_NEAR(event.loss_seen, 3, 0.02);
    // Not before the loss has a trend again.
    iterate(kHidden, false, 250);
    linger();
    EXPECT_EQ(director_->facts().state, "fallen");
    report_losses(32, false, 1);
    EXPECT_EQ(staged().predicted.max_merge, kFirst);
}

TEST_F(Guarded, WhatWasMeasuredOfThePlanBeforeSaysNothingOfTheNext) {
    report_clean(kFirst);
    ASSERT_EQ(staged().predicted.max_merge, 2U);
    const std::uint64_t at = armed();
    report_swing();
    linger();  // they have come
    reach(at, director_->facts().state == "running");
    iterate(kIdle, true);
    ASSERT_TRUE(ticks_until([&] { return director_->facts().switched == 2; }));
    linger();
    EXPECT_EQ(director_->facts().guard_decisions, 1U);
}

// The slowest rank may take minutes to be ready for it.
TEST_F(Guarded, ValuesThatAreNotFiniteEndAPlanThatIsBeingTightened) {
    report_clean(kFirst);
    EXPECT_EQ(staged().predicted.max_merge, 2U);
    report_not_finite();
    heard(Kind::Drop);
    falls();
    EXPECT_EQ(director_->facts().switched, 1U);
    EXPECT_EQ(director_->facts().guard_decisions, 2U);
    expect_back_after(200, 2);
}

TEST_F(Guarded, APlanFallsWhereTheTighterOneCannotBeCarriedOut) {
    report_clean(kFirst);
    staged();
    answer(Step::Refused, false, "no such function");
    heard(Kind::Drop);
    falls();
    expect_back_after(200, 2);
}

TEST_F(Guarded, APlanThatCannotBeTightenedAnyMoreFalls) {
    report_clean(kFirst);
    staged();
    comes_into_force(2);
    report_clean(2);
    falls();
    expect_back_after(200, 2);
    comes_into_force(3);
    report_clean(2);
    falls();
    expect_back_after(400, 2);
}

TEST_F(Guarded, ATighterPlanGoesBeforeOneThatIsFaster) {
    wanted_after_a_second_look();
    report_clean(kFirst);
    heard(Kind::Drop);
    EXPECT_EQ(staged().predicted.max_merge, 2U);
    comes_into_force(2);
    EXPECT_EQ(director_->facts().max_merge, 2U);
    EXPECT_EQ(director_->facts().guard_decisions, 1U);
}

// A job may evaluate when the time is up, with calls that could be gradients.
TEST_F(Guarded, APlanComesBackWithItsOwnCycle) {
    report_not_finite();
    falls();
    iterate(kHidden, false, 190);
    iterate_other(kIdle, 4);
    linger();
    EXPECT_EQ(asked(), 4U) << "another cycle";
    iterate_other(kIdle, 16);
    EXPECT_EQ(hear().order.kind, Kind::Close) << "nothing is gained there";
    // Until then no lane is made anew.
    ASSERT_TRUE(ticks_until([] { return g_lanes.destroyed == 1; }));
    iterate(kHidden, false, 5);
    EXPECT_EQ(staged().predicted.max_merge, kFirst);
    comes_into_force(2);
    report_clean(kFirst);
    const planner::Plan tighter = staged();
    EXPECT_EQ(tighter.predicted.max_merge, 2U);
    EXPECT_EQ(tighter.bucket_bytes,
              (std::vector<std::uint64_t>{kGradients[0] * 4, kGradients[1] * 4}));
}

// What the guard has ended does not come back at once because the job has interrupted it.
TEST_F(Guarded, APlanComesBackWhenTheCouncilIsFreeAgain) {
    wanted_after_a_second_look();
    ASSERT_NO_FATAL_FAILURE(interrupted_in_its_fall(5));
    iterate(kHidden, false, 201);
    linger();
    EXPECT_EQ(asked(), 5U) << "one thing at a time";
    scene_[1].answer(scene_.member(1).asked().back().serial, true);
    heard(Kind::Drop);
    EXPECT_EQ(staged().predicted.max_merge, kFirst);
}

// The others are being asked about its call, and it cannot be taken back any more.
TEST_F(Guarded, APlanThatComesAfterTheGuardHasSpokenEndsToo) {
    wanted_after_a_second_look();
    answer(Step::Learned);
    opened();
    answer_next(agreement::Answer::Later);
    answer_from(0, Step::Ready);
    ASSERT_TRUE(ticks_until([&] { return asked() == 6; }));
    report_not_finite();
    ASSERT_TRUE(ticks_until([&] { return director_->facts().guard_decisions == 1; }));
    scene_[1].answer(scene_.member(1).asked().back().serial, true);
    const std::uint64_t at = heard(Kind::Arm).switch_call;
    heard(Kind::Discard);
    reach(at, true);
    in_force_at_ = at;
    iterate(kHidden, true);
    ASSERT_TRUE(ticks_until([&] { return director_->facts().switched == 2; }));
    period_ = director_->facts().period;
    EXPECT_EQ(director_->facts().max_delay, 1U);
    falls();
    EXPECT_EQ(director_->facts().guard_decisions, 1U);
}

TEST_F(Guarded, APlanThatFellAndWasInterruptedStaysAwayAsLong) {
    ASSERT_NO_FATAL_FAILURE(interrupted_in_its_fall(4));
    iterate(kHidden, false, 5);
    scene_[1].answer(scene_.member(1).asked().back().serial, false);  // it is past that call
    expect_back_after(195, kFirst);
}

}  // namespace
}  // namespace deft::director::test
