// SPDX-License-Identifier: Apache-2.0
// What a second look finds, once a plan is in force and its times are known.
#include "shim/control/reestimate.h"

#include <gtest/gtest.h>

#include "tests/unit/shim/control/measured_job.h"

namespace deft::director {
namespace {

using namespace test;

// What is made of a plan for the job as it was guessed, if an iteration takes so long under it.
Reestimate second_look(const planner::Profile& job, double guess_to_truth) {
    std::string note;
    const planner::Plan plan = choose_plan(guessed(job), {}, late_or_merged(), note);
    const double guess = predict(plan, guessed(job), {});
    const double truth = predict(plan, job, {});
    const double took = guess + guess_to_truth * (truth - guess);
    Reestimate look = reestimate(plan, took, {guessed(job), {}}, {job, {}}, late_or_merged());
    EXPECT_DOUBLE_EQ(look.thought, guess);
    EXPECT_DOUBLE_EQ(look.as_started, truth);
    return look;
}

TEST(Reestimate, APlanMadeFromAWrongGuessIsReplaced) {
    // Little to send: the guess sees transfers that nothing hides, and merges them.
    const planner::Profile job = job_of(0.7);
    const Reestimate look = second_look(job, 1);
    EXPECT_TRUE(look.believed);
    ASSERT_TRUE(look.better) << look.as_started;
    EXPECT_LT(look.better->predicted.iteration, 0.98 * look.as_started);
    EXPECT_NE(look.note, "");
}

TEST(Reestimate, WhatExplainsTheTimeWorseIsNotBelieved) {
    const Reestimate look = second_look(job_of(0.7), 0.4);
    EXPECT_FALSE(look.believed);
    EXPECT_FALSE(look.better);
}

TEST(Reestimate, APlanThatIsTheBestAnywayStays) {
    const planner::Profile job = job_of(2);
    std::string note;
    const planner::Plan plan = choose_plan(job, {}, late_or_merged(), note);
    const Reestimate look =
        reestimate(plan, plan.predicted.iteration, {guessed(job), {}}, {job, {}}, late_or_merged());
    EXPECT_TRUE(look.believed);
    EXPECT_FALSE(look.better);
}

// The guess sees more to send than there is, and merges always.
TEST(Late, HasMoreUpdatesAtTheSecondLook) {
    Settings settings = late_or_merged();
    settings.combined = true;
    const planner::Profile job = job_of(1.15);
    std::string note;
    const planner::Plan plan = choose_plan(guessed(job), {}, settings, note);
    ASSERT_NEAR(plan.predicted.updates, 0.5, 1e-9);
    const Reestimate look =
        reestimate(plan, predict(plan, job, {}), {guessed(job), {}}, {job, {}}, settings);
    ASSERT_TRUE(look.better) << look.note;
    EXPECT_GT(look.better->predicted.updates, 0.6);
    EXPECT_LE(look.better->predicted.iteration, 1.005 * predict(plan, job, {}));
}

// What the operator names is not what gains most, but it is made for the windows that there are.
TEST(Queues, AreThoseOfTheSecondLook) {
    Settings settings = late_or_merged();
    settings.forced_queues = true;
    settings.forced_delay = 3;
    settings.forced_merge = 2;
    const planner::Profile job = job_of(1.3);
    std::string note;
    const planner::Plan plan = choose_plan(guessed(job), {}, settings, note);
    EXPECT_EQ(plan.predicted.updates, 0.5) << "by the guess there is much more to send";
    const double truth = predict(plan, job, {});
    const Reestimate look = reestimate(plan, truth, {guessed(job), {}}, {job, {}}, settings);
    ASSERT_TRUE(look.better) << look.note;
    EXPECT_GT(look.better->predicted.updates, 0.6);
    const Reestimate again =
        reestimate(*look.better, look.better->predicted.iteration, {job, {}}, {job, {}}, settings);
    EXPECT_FALSE(again.better);
}

// A second look finds a plan that is as fast with less of it late, whichever profile it believes.
TEST(Late, BecomesLessAtTheSecondLook) {
    Settings settings = late_or_merged();
    settings.max_merge = 1;
    const planner::Profile job = job_of(0.8);
    std::string note;
    const planner::Plan plan = choose_plan(job, {}, settings, note);
    settings.mixed_ages = true;
    for (const bool guess_was_right : {false, true}) {
        const planner::Profile thought = guess_was_right ? job : guessed(job);
        const planner::Profile started = guess_was_right ? guessed(job) : job;
        const Reestimate look =
            reestimate(plan, predict(plan, job, {}), {thought, {}}, {started, {}}, settings);
        EXPECT_EQ(look.believed, !guess_was_right);
        ASSERT_TRUE(look.better) << look.note;
        EXPECT_LT(look.better->predicted.late, 0.5);
        EXPECT_LE(look.better->predicted.iteration, 1.005 * plan.predicted.iteration);
        EXPECT_NE(look.note.find("of the bytes are late"), std::string::npos) << look.note;
    }
}

// Fresher, or with more updates, but slower: it is no better.
TEST(Late, IsNotMadeLessWhereThatCostsTime) {
    Settings settings = late_or_merged();
    settings.combined = true;
    std::string note;
    const planner::Profile job = job_of(1.9);
    const planner::Plan plan = choose_plan(job, {}, settings, note);
    ASSERT_EQ(plan.predicted.max_delay, 1U);
    ASSERT_EQ(plan.predicted.max_merge, 2U);
    for (const bool mixed_ages : {false, true}) {
        for (const auto& [max_delay, max_merge] : {std::pair{0U, 2U}, {1U, 1U}, {0U, 1U}}) {
            settings.mixed_ages = mixed_ages;
            settings.max_delay = max_delay;
            settings.max_merge = max_merge;
            const Reestimate look =
                reestimate(plan, plan.predicted.iteration, {guessed(job), {}}, {job, {}}, settings);
            EXPECT_FALSE(look.better) << max_delay << " " << max_merge << ": " << look.note;
        }
    }
}

}  // namespace
}  // namespace deft::director
