// SPDX-License-Identifier: Apache-2.0
// The leader's course: from a measured job to a plan in force, to another one, and back.
#include "tests/component/shim/control/leader.h"
#include "shim/settings/optimizer.h"

namespace deft::director::test {
namespace {

TEST_F(Leader, APlanComesIntoForceAtAnAgreedCallWhenAllRanksAreReady) {
    iterate(kHidden, false, 3);
    linger();
    EXPECT_EQ(asked(), 0U) << "too little was measured";
    iterate(kHidden, false, 17);
    const planner::Plan plan = staged();
    EXPECT_EQ(plan.predicted.max_merge, 2U);
    EXPECT_EQ(plan.predicted.verdict, planner::Verdict::Use);
    EXPECT_EQ(plan.bucket_bytes,
              (std::vector<std::uint64_t>{kGradients[0] * 4, kGradients[1] * 4}));
    linger();
    EXPECT_EQ(asked(), 1U) << "the follower has not learned the cycle yet";
    EXPECT_EQ(g_lanes.making, 0);
    answer(Step::Learned);
    EXPECT_EQ(opened().lanes.size(), 1U);
    ASSERT_TRUE(ticks_until([&] { return g_lanes.making == 1; }));
    linger();
    EXPECT_EQ(asked(), 2U) << "the follower is not ready yet";
    constexpr std::uint64_t kFurther = 20;
    answer_from(ordinal_ + kFurther, Step::Ready);
    const std::uint64_t at = heard(Kind::Arm).switch_call;
    EXPECT_GT(at, ordinal_ + kFurther) << "the follower is past it";
    EXPECT_EQ(director_->facts().switched, 0U);
    reach(at, false);
    iterate(kHidden, true);
    ASSERT_TRUE(ticks_until([&] { return director_->facts().switched == 1; }));
    const PlanFacts facts = director_->facts();
    EXPECT_EQ(facts.state, "running");
    EXPECT_EQ(facts.policy, plan.name());
    EXPECT_EQ(facts.max_merge, 2U);
    EXPECT_DOUBLE_EQ(facts.before_ms, 160);
    EXPECT_EQ(facts.executed, 2U);
    EXPECT_EQ(asked(), 3U);
    ASSERT_FALSE(facts.transfers.empty());
    director_->end(false);  // for the last report
    const PlanFacts last = director_->facts();
    EXPECT_EQ(last.policy, plan.name());
    EXPECT_EQ(last.transfers.size(), facts.transfers.size());
    EXPECT_EQ(last.cycles_ms, facts.cycles_ms);
    EXPECT_DOUBLE_EQ(last.before_ms, 160);
}

// The first iteration has another bucket, and the last one is the same as in all others.
class BegunElsewhere : public Leader {
protected:
    void SetUp() override {
        ASSERT_NO_FATAL_FAILURE(Leader::SetUp());
        EXPECT_FALSE(job_->make(*director_, ordinal_, kOthers[0]));
        observe(kOthers[0], kHidden, 0, now_ms_);
        EXPECT_FALSE(job_->make(*director_, ordinal_, kGradients[1]));
        observe(kGradients[1], kHidden, 1, now_ms_);
    }
    void expect_begins_with_the_first() {
        EXPECT_EQ(staged().bucket_bytes,
                  (std::vector<std::uint64_t>{kGradients[0] * 4, kGradients[1] * 4}));
        EXPECT_EQ(armed() % 2, 0U) << "the second gradient of an iteration";
    }
};

TEST_F(BegunElsewhere, AnIterationBeginsAfterTheLongestRest) {
    iterate(kHidden, false, 20);
    ASSERT_EQ(track_.current_shape().front().count, kGradients[1]) << "as it was learned";
    ASSERT_TRUE(ticks_until(
        [&] { return asked() > 0 || track_.current_shape().front().count == kGradients[0]; }));
    iterate(kHidden, false, 20);
    expect_begins_with_the_first();
}

TEST_F(BegunElsewhere, AnIterationBeginsWhereTheJobAsksWhetherToStep) {
    constexpr Pace kBusy = {{1, 125}, {120, 100}};  // hardly a rest, and the longer one is wrong
    for (int i = 0; i < 40; ++i) {
        iterate(kBusy, false);
        EXPECT_EQ(director_->take_update(), Update::None);
        director_->tick(track_);
    }
    expect_begins_with_the_first();
}

// It has been learned from the second gradient on. What the job says is believed, and all ranks
// hear it at the same call.
TEST_F(BegunElsewhere, AFlushEndsAPlanWhereTheJobsIterationBegins) {
    constexpr Pace kBusy = {{1, 125}, {120, 100}};  // hardly a rest, and the longer one is wrong
    iterate(kBusy, false, 40);
    const planner::Plan plan = staged();
    ASSERT_EQ(plan.bucket_bytes.front(), kGradients[1] * 4) << "as it was learned";
    const std::uint64_t at = armed();
    while (ordinal_ + 1 < at) {
        iterate(kBusy, false);
    }
    const std::int64_t begin = now_ms_;
    EXPECT_FALSE(job_->make(*director_, ordinal_, kGradients[0]));
    observe(kGradients[0], kBusy, 0, begin);
    EXPECT_TRUE(job_->make(*director_, ordinal_, kGradients[1]));
    observe(kGradients[1], kBusy, 1, begin);
    ASSERT_TRUE(ticks_until([&] { return director_->facts().state == "running"; }));
    iterate(kBusy, true, 3);
    EXPECT_GE(director_->flush(), 0) << "between two iterations of the job";
    iterate(kBusy, false, 1);
    ASSERT_TRUE(ticks_until([&] { return director_->facts().state != "running"; }));
    EXPECT_EQ(director_->facts().ended, 0U) << "the job has asked for it";
    for (int i = 0; i < 40; ++i) {
        director_->tick(track_);
        iterate(kBusy, false);
    }
    expect_begins_with_the_first();
}

TEST_F(Leader, AFlushInTheMiddleOfAnIterationThatTheJobHasBegunDoesNothing) {
    bring_into_force();
    const std::int64_t begin = now_ms_;
    director_->take_update();
    EXPECT_TRUE(job_->make(*director_, ordinal_, kGradients[0]));
    observe(kGradients[0], kIdle, 0, begin);
    EXPECT_EQ(director_->flush(), -1);
    EXPECT_TRUE(job_->make(*director_, ordinal_, kGradients[1]));
    observe(kGradients[1], kIdle, 1, begin);
    EXPECT_GE(director_->flush(), 0) << "it is through";
    iterate(kHidden, false);
}

// A follower that has made the call already says no.
TEST_F(Leader, ASwitchThatARankIsPastIsTriedAtALaterCall) {
    using agreement::Answer;
    scene_.member(1).answer_with({Answer::Yes, Answer::Yes, Answer::Yes, Answer::No, Answer::Yes});
    iterate(kHidden, false, 20);
    staged();
    const std::uint64_t at = armed();
    const std::vector<agreement::Proposal> proposals = scene_.member(1).asked();
    ASSERT_EQ(proposals.size(), 5U);
    EXPECT_GT(at, proposals[3].switch_call);
    reach(at, false);
    iterate(kHidden, true);
    EXPECT_TRUE(ticks_until([&] { return director_->facts().switched == 1; }));
}

TEST_F(Leader, APlanThatAFollowerCannotCarryOutIsToldOnceAndLeft) {
    iterate(kHidden, false, 20);
    staged();
    answer(Step::Refused, false, "no such function");
    heard(Kind::Drop);
    EXPECT_EQ(director_->facts().reason, "rank 1: no such function");
    EXPECT_TRUE(ticks_until([&] { return director_->facts().state == "watching"; }));
    iterate(kHidden, false, 20);
    linger(std::chrono::milliseconds(1500));  // what may pass is tried again after a second
    EXPECT_EQ(asked(), 2U) << "tried again";
    EXPECT_EQ(g_lanes.making, 0);
}

TEST_F(Leader, WhatMayPassIsTriedAgainASecondLater) {
    iterate(kHidden, false, 20);
    staged();
    const auto refused = agreement::Clock::now();
    answer(Step::Refused, true, "another sequence of gradients was learned");
    heard(Kind::Drop);
    staged();
    EXPECT_GE(agreement::Clock::now() - refused, std::chrono::seconds(1));
    const std::uint64_t at = armed();
    reach(at, false);
    iterate(kHidden, true);
    EXPECT_TRUE(ticks_until([&] { return director_->facts().switched == 1; }));
}

// NCCL goes on waiting for the others, with a thread and memory.
TEST_F(Leader, WhatHasTakenTooLongIsTriedOnceMore) {
    iterate(kHidden, false, 20);
    for (int tries = 0; tries < 2; ++tries) {
        staged();
        answer_from(ordinal_, Step::Refused, true, "a lane: its communicator took too long", true);
        heard(Kind::Drop);
    }
    EXPECT_TRUE(ticks_until([&] { return director_->facts().state == "resting"; }));
    EXPECT_NE(director_->facts().reason.find("given up after 2 attempts"), std::string::npos)
        << director_->facts().reason;
}

// A rank that does not know what was decided says so, and no rank switches.
TEST_F(Leader, APlanBeginsWhereAllRanksSayThatTheyKnowAndIsNamedAnewWhereTheyDoNot) {
    iterate(kHidden, false, 20);
    staged();
    answer(Step::Learned);
    opened();
    answer(Step::Ready);
    const Heard first = heard(Kind::Arm);
    EXPECT_EQ(first.switch_call, first.asked_at + 4) << "two iterations";
    g_lanes.refused = true;
    reach(first.switch_call, false);
    iterate(kHidden, false);
    g_lanes.refused = false;
    const Heard again = heard(Kind::Arm);
    EXPECT_GT(again.asked_at, first.switch_call);
    reach(again.switch_call, false);
    iterate(kHidden, true);
    EXPECT_TRUE(ticks_until([&] { return director_->facts().switched == 1; }));
}

// The follower's could not be made: the leader's has no partner there, and goes with it.
TEST_F(Leader, ALaneThatNotEveryRankHasIsMadeAnew) {
    iterate(kHidden, false, 20);
    staged();
    answer(Step::Learned);
    EXPECT_EQ(opened().lanes.size(), 1U);
    ASSERT_TRUE(ticks_until([&] { return g_lanes.making == 1; }));
    answer(Step::Refused, true, "its network was down");
    heard(Kind::Drop);
    staged();
    answer(Step::Learned);
    const Order again = opened();
    EXPECT_EQ(again.keep, 0U) << "the follower has none";
    EXPECT_EQ(again.lanes.size(), 1U);
    answer(Step::Ready);
    reach(heard(Kind::Arm).switch_call, false);
    EXPECT_EQ(g_lanes.making, 2);
    EXPECT_EQ(g_lanes.aborted, 1);
    iterate(kHidden, true);
    EXPECT_TRUE(ticks_until([&] { return director_->facts().switched == 1; }));
}

// Of a plan that merges, the second iteration of a period is no place to begin another.
TEST_F(Leader, ABetterPlanTakesOverWhereAPeriodOfTheOldOneBegins) {
    bring_into_force();
    const planner::Plan plan = wanted_instead();
    EXPECT_EQ(plan.predicted.max_merge, 1U);
    EXPECT_EQ(plan.predicted.max_delay, 1U);
    const std::uint64_t at = armed();
    EXPECT_EQ((at - in_force_at_) % kPeriod, 0U);
    reach(at, true);
    iterate(kHidden, true);
    ASSERT_TRUE(ticks_until([&] { return director_->facts().switched == 2; }));
    const PlanFacts facts = director_->facts();
    EXPECT_EQ(facts.policy, plan.name());
    EXPECT_EQ(facts.max_merge, 1U);
    EXPECT_EQ(facts.max_delay, 1U);
    EXPECT_EQ(facts.dropped, 0U) << "a sum was half made";
    EXPECT_EQ(facts.before_ms, 160) << "without any plan";
}

// The old plan goes on as it would have done, judged as before.
class NotReplaced : public Leader {
protected:
    void expect_old_plan_in_force_and_watched() {
        ASSERT_TRUE(old_plan_in_force());
        const std::size_t before = asked();
        iterate_merged(kIdle, kHidden, 4);
        linger();
        EXPECT_EQ(asked(), before) << "it is neither given up nor replaced";
        ASSERT_TRUE(old_plan_in_force());
        iterate_merged(kEarlyIdle, kSlow, 20);
        reach(heard(Kind::Forward).switch_call, true);
        iterate(kHidden, false);
        EXPECT_TRUE(ticks_until([&] { return director_->facts().state == "resting"; }));
    }
};

TEST_F(NotReplaced, WhereAFollowerRefusesBeforeItsLanesAreMade) {
    bring_into_force();
    wanted_instead();
    linger();
    ASSERT_TRUE(old_plan_in_force()) << "the other one is not yet";
    answer(Step::Refused, false, "another sequence of gradients was learned");
    heard(Kind::Drop);
    expect_old_plan_in_force_and_watched();
}

TEST_F(NotReplaced, WhereAFollowerHasNoMemoryForTheOtherPlan) {
    bring_into_force();
    wanted_instead();
    answer(Step::Learned);
    EXPECT_EQ(opened().lanes.size(), 0U) << "the lane is there";
    linger();  // the leader's own part: it has the memory
    answer(Step::Unfit, false, "no memory");
    heard(Kind::Discard);
    expect_old_plan_in_force_and_watched();
    EXPECT_EQ(g_lanes.making, 1);
    EXPECT_EQ(g_lanes.aborted, 0);
}

TEST_F(NotReplaced, AndIsTheOneThatIsTakenUpAfterAnInterruption) {
    bring_into_force();
    wanted_instead();
    answer(Step::Refused, false, "another sequence of gradients was learned");
    heard(Kind::Drop);
    interrupt();
    ASSERT_TRUE(ticks_until([&] { return director_->facts().ended == 1; }));
    iterate(kHidden, false, 5);
    EXPECT_EQ(staged().predicted.max_merge, 2U);
}

// Another optimizer would need another prediction, or bears no delay; here, none of it.
TEST_F(Leader, APlanEndsWhenTheJobBeginsToScaleItsGradients) {
    bring_into_force();
    set_gradient_scaling(true);
    reach(heard(Kind::Forward).switch_call, true);
    iterate(kHidden, false);
    ASSERT_TRUE(ticks_until([&] { return director_->facts().state == "watching"; }));
    iterate(kHidden, false, 20);
    EXPECT_EQ(hear().order.kind, Kind::Close) << "nothing gains that is neither late nor merged";
    EXPECT_NE(director_->facts().reason.find("scale"), std::string::npos)
        << director_->facts().reason;
    set_gradient_scaling(false);
    EXPECT_EQ(staged().predicted.max_merge, 2U) << "made anew";
}

// Under the plan hardly anything waits for a transfer: by those times nothing would gain.
TEST_F(Leader, APlanMadeAnewIsMadeFromTimesWithoutTheOldOne) {
    bring_into_force();
    iterate_merged(kEarlyIdle, {{30, 31}, {1, 1}}, 15);
    interrupt();
    ASSERT_TRUE(ticks_until([&] { return director_->facts().ended == 1; }));
    iterate(kEarlyIdle, false, 5);
    set_gradient_scaling(true);
    linger();
    set_gradient_scaling(false);
    linger();
    iterate(kHidden, false, 40);
    for (Heard next = hear(); next.order.kind != Kind::Stage; next = hear()) {
        ASSERT_EQ(next.order.kind, Kind::Close) << "the lane that nothing needed";
    }
    EXPECT_DOUBLE_EQ(director_->facts().before_ms, 160);
}

// An evaluation whose only sum changes its buffer is in doubt; the training's plan is not.
TEST_F(Leader, AnEvaluationInDoubtDoesNotForgetTheTrainingsPlan) {
    bring_into_force();
    iterate_merged(kIdle, kHidden, 2);
    interrupt();
    ASSERT_TRUE(ticks_until([&] { return director_->facts().ended == 1; }));
    for (int i = 0; i < 12; ++i) {
        CallRecord sum = record(ordinal_, 5'000);
        EXPECT_FALSE(job_->make(*director_, ordinal_++, 5'000));
        sum.stream = 7;
        sum.buffer = 0x1000 * static_cast<std::uint64_t>(i + 1);
        track_.feed(sum);
        track_.settle();
        director_->tick(track_);
    }
    iterate(kHidden, false, 5);
    EXPECT_EQ(staged().predicted.max_merge, 2U) << "at once: it is remembered";
}

// The ranks would have asked each other under it.
TEST_F(Leader, APlanThatIsArmedIsMadeAnewWhereTheOneItReplacesHasEnded) {
    bring_into_force();
    wanted_instead();
    armed();
    interrupt();
    interrupt();
    ASSERT_TRUE(ticks_until([&] { return director_->facts().ended == 1; }));
    heard(Kind::Discard);
    iterate(kHidden, false, 5);
    EXPECT_EQ(staged().predicted.max_delay, 1U);
    const std::uint64_t at = armed();
    reach(at, false);
    iterate(kHidden, true);
    EXPECT_TRUE(ticks_until([&] { return director_->facts().switched == 2; }));
    EXPECT_EQ(director_->facts().max_delay, 1U);
}

// The background thread may see the calls of another cycle before it sees the plan end by them.
TEST_F(Leader, AnotherCycleIsNoMeasureOfThePlan) {
    bring_into_force();
    iterate_merged(kIdle, kHidden, 2);
    track_.restart_profile();
    for (int i = 0; i < 20; ++i) {
        iterate_other(kIdle, 1, true);
        iterate_other(kHidden, 1, true);
    }
    linger();
    EXPECT_EQ(asked(), 3U);
}

// Two gradients of an iteration are alike, as layers are.
class Alike : public Leader {
protected:
    void iterate_alike(bool taken, int times) {
        for (int i = 0; i < times; ++i) {
            const std::int64_t begin = now_ms_;
            std::uint64_t buffer = 0;
            for (const int bucket : {0, 0, 1}) {
                EXPECT_EQ(job_->make(*director_, ordinal_, kGradients[bucket]), taken) << ordinal_;
                CallRecord called = record(ordinal_, kGradients[bucket]);
                called.buffer = ++buffer;
                observe(called, kHidden, bucket, begin);
            }
        }
    }
    void iterate_anyhow() override { iterate_alike(false, 1); }
    void reach_alike(std::uint64_t call) {
        ASSERT_LE(ordinal_, call);
        ASSERT_LE(call - ordinal_, 200U);
        iterate_alike(false, static_cast<int>((call - ordinal_ + 2) / 3));
    }
};

// Metrics of an evaluation, say. Of that iteration the plan would take the second gradient for the
// first, and end at the third: zeros and sums of its own in one update.
TEST_F(Alike, APlanWhoseCallIsInTheMiddleOfAnIterationIsArmedAnew) {
    iterate_alike(false, 20);
    staged();
    const std::uint64_t at = armed();
    ASSERT_GE(at, ordinal_ + 2);
    interrupt();
    interrupt();
    reach_alike(at);
    ASSERT_EQ(ordinal_, at + 2) << "it has two calls more than it would have had";
    iterate_alike(false, 5);
    ASSERT_TRUE(ticks_until([&] { return director_->facts().ended == 1; }));
    EXPECT_EQ(director_->facts().executed, 0U);
    EXPECT_EQ(g_lanes.aborted, 0);
    iterate_alike(false, 5);
    staged();
    answer(Step::Learned);
    EXPECT_EQ(opened().lanes.size(), 0U) << "they are there";
    answer(Step::Ready);
    const std::uint64_t again = heard(Kind::Arm).switch_call;
    reach_alike(again);
    ASSERT_EQ(ordinal_, again);
    iterate_alike(true, 1);
    ASSERT_TRUE(ticks_until([&] { return director_->facts().executed == 3; }));
    EXPECT_EQ(director_->facts().state, "running");
}

// NCCL may connect a lane when it first sums that much: not in the job's call.
TEST_F(Leader, LanesAreMadeAnewForACycleOfLargerSumsAndKeptForOneOfSmaller) {
    bring_into_force();
    interrupt();
    ASSERT_TRUE(ticks_until([&] { return director_->facts().ended == 1; }));
    iterate_other(kHidden, 20);
    staged();
    answer(Step::Learned);
    const Order smaller = opened();
    EXPECT_EQ(smaller.keep, 1U);
    EXPECT_EQ(smaller.lanes.size(), 0U);
    answer(Step::Refused, true, "it is too early");
    heard(Kind::Drop);
    for (int i = 0; i < 20; ++i) {
        const std::int64_t begin = now_ms_;
        observe(2 * kGradients[0], kHidden, 0, begin);
        observe(kGradients[1], kHidden, 1, begin);
    }
    staged();
    answer(Step::Learned);
    const Order larger = opened();
    EXPECT_EQ(larger.keep, 0U);
    EXPECT_EQ(larger.lanes.size(), 1U);
}

// DDP's map of used parameters, where a module that looks for them joins: what is late for one that
// is not used would be lost.
class UsedMap : public Leader {
protected:
    void iterate_with_map(bool taken, int times) {
        for (int i = 0; i < times; ++i) {
            iterate(taken && i % 2 == 0 ? kIdle : kHidden, taken);
            CallRecord map = record(CallRecord::kNoOrdinal, 60);
            map.type = DEFT_NCCL_INT32;
            observe(map, {{30, 125}, {1, 1}}, 1, now_ms_);
            --ordinal_;  // it has none
        }
    }
    bool keeps_it_back() {
        return ticks_until([&] {
            return director_->facts().reason.find("unused parameters") != std::string::npos;
        });
    }
};

TEST_F(UsedMap, EndsThePlanInForceWhichComesBackWithoutIt) {
    bring_into_force();
    iterate_with_map(true, 8);
    const std::uint64_t at = heard(Kind::Forward).switch_call;
    iterate_with_map(true, static_cast<int>(at - ordinal_) / 2);
    iterate_with_map(false, 8);
    ASSERT_TRUE(keeps_it_back()) << director_->facts().reason;
    iterate(kHidden, false, 8);
    Heard next = hear();
    for (; next.order.kind == Kind::Close; next = hear()) {
    }
    ASSERT_EQ(next.order.kind, Kind::Stage);
    EXPECT_EQ(planner::plan_from_json(next.order.plan).predicted.max_merge, 2U);
    EXPECT_EQ(director_->facts().before_ms, 160) << "as it was without any plan";
}

TEST_F(UsedMap, EndsWhatIsBeingMadeReady) {
    iterate(kHidden, false, 20);
    staged();
    answer(Step::Learned);
    opened();
    iterate_with_map(false, 8);
    linger();
    const Kind kind = hear().order.kind;  // as far as a rank has said that its trials are over
    EXPECT_TRUE(kind == Kind::Discard || kind == Kind::Drop);
    EXPECT_TRUE(keeps_it_back()) << director_->facts().reason;
}

}  // namespace
}  // namespace deft::director::test
