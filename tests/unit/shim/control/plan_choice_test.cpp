// SPDX-License-Identifier: Apache-2.0
// Which plan a measured job gets, within the caps.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "planner/policies/mixed_ages.h"
#include "planner/simulator/check.h"
#include "planner/simulator/simulator.h"
#include "tests/unit/shim/control/measured_job.h"

namespace deft::director {
namespace {

using namespace test;

TEST(Prediction, OfAPlanIsThatOfTheJobItIsAskedAbout) {
    std::string note;
    const planner::Profile thought = guessed(job_of(2));
    const planner::Plan plan = choose_plan(thought, {}, late_or_merged(), note);
    EXPECT_NEAR(predict(plan, thought, {}), plan.predicted.iteration, 1e-9);
    const planner::Plan better = choose_plan(job_of(2), {}, late_or_merged(), note);
    EXPECT_LE(better.predicted.iteration, predict(plan, job_of(2), {}) + 1e-9);
    EXPECT_GE(predict(plan, job_of(2), {}), plan.predicted.iteration);
}

Settings waiting_layers(const char* policy = "") {
    Settings settings;
    settings.mode = ShimMode::Exact;
    settings.layers = true;
    settings.policy = policy;
    return settings;
}

TEST(Layers, GetAnOrderWhereTheyWaitForThemselvesAndNoneElse) {
    for (const char* policy : {"", "best", "bytescheduler", "us-byte"}) {
        const planner::Plan plan = plan_for(1, waiting_layers(policy));
        EXPECT_EQ(plan.barrier, planner::Barrier::Layer) << policy;
        EXPECT_EQ(plan.predicted.verdict, planner::Verdict::Use) << policy;
        if (std::string_view(policy) != "us-byte") {  // its blocks cost starts, which are not known
            EXPECT_LT(plan.predicted.iteration, 0.9 * plan.predicted.baseline) << policy;
        }
        EXPECT_FALSE(plan.predicted.late_or_merged()) << policy;
        for (const planner::Transfer& transfer : plan.transfers) {
            EXPECT_EQ(transfer.operation, planner::Operation::AllReduce) << policy;
        }
        Settings settings = waiting_layers(policy);
        settings.layers = false;
        const planner::Plan without = plan_for(1, settings);
        EXPECT_EQ(without.barrier, planner::Barrier::Update) << policy;
        EXPECT_EQ(without.predicted.verdict, planner::Verdict::Keep) << policy;
    }
}

// The last bucket, which forward needs first, is not sent last.
TEST(Layers, WhatForwardNeedsFirstOvertakes) {
    const planner::Plan plan = plan_for(1, waiting_layers("bytescheduler"));
    ASSERT_FALSE(plan.transfers.empty());
    EXPECT_EQ(plan.transfers.front().bucket, 0U);
    EXPECT_LT(plan.transfers.back().bucket, 7U);
}

// Of the job's sums, all of one size, nothing is known of smaller ones. A lane that was measured
// tells what a part takes to start, and sums are cut.
TEST(Layers, HaveTheirSumsCutWhereALaneWasMeasured) {
    const planner::Plan whole = plan_for(1.3, waiting_layers("bytescheduler"));
    EXPECT_LE(whole.transfers.size(), 8U);
    Settings settings = waiting_layers();
    settings.lane_start = 1e-4;
    settings.lane_per_byte = 1;  // beside the job's own transfers: those are faster
    const planner::Plan cut = plan_for(1.3, settings);
    EXPECT_GT(cut.transfers.size(), 8U);
    EXPECT_LT(cut.predicted.iteration, 0.99 * whole.predicted.iteration);
    EXPECT_LT(cut.predicted.iteration, 1.02 * cut.predicted.bound);
    settings.lane_start = kCompute;  // more than a sum itself: not believed
    EXPECT_LT(plan_for(1.3, settings).predicted.iteration, 2 * whole.predicted.iteration);
    settings.layers = false;
    EXPECT_EQ(plan_for(1.3, settings).predicted.baseline, plan_for(1.3, {}).predicted.baseline);
}

TEST(Layers, OfMoreThanTwoRanksHaveTheirSumsWhole) {
    for (const char* policy : {"", "bytescheduler"}) {
        Settings settings = waiting_layers(policy);
        settings.cuts = false;
        const planner::Plan plan = plan_for(1, settings);
        EXPECT_LT(plan.predicted.iteration, 0.95 * plan.predicted.baseline) << policy;
        EXPECT_EQ(plan.transfers.size(), 8U) << policy;
        for (const planner::Transfer& transfer : plan.transfers) {
            EXPECT_EQ(transfer.bytes(), kBytes) << policy;
        }
    }
}

Settings slow_start(const char* policy) {
    Settings settings = waiting_layers(policy);
    settings.lane_start = 0.01 * kCompute;  // of a sum that takes 0.125 of it
    settings.lane_per_byte = 1;
    return settings;
}

// DeAR's: every sum by itself, first halves in backward's order and second ones in forward's.
TEST(Layers, OfTwoRanksMayHaveTheirSumsInHalves) {
    const planner::Profile job = job_of(1);
    const Settings settings = slow_start("dear");
    std::string note;
    const planner::Plan plan = choose_plan(job, {}, settings, note);
    EXPECT_EQ(plan.predicted.verdict, planner::Verdict::Use);
    EXPECT_FALSE(plan.predicted.late_or_merged());
    ASSERT_EQ(plan.transfers.size(), 16U);
    for (std::uint32_t i = 0; i < 16; ++i) {
        const planner::Transfer& t = plan.transfers[i];
        EXPECT_EQ(t.operation,
                  i < 8 ? planner::Operation::ReduceScatter : planner::Operation::AllGather);
        EXPECT_EQ(t.bucket, i < 8 ? i : 15 - i);
        EXPECT_EQ(t.bytes(), kBytes);
        EXPECT_EQ(t.message, i);
    }
    const planner::Fabric fabric = fabric_of(job, {}, settings);
    EXPECT_EQ(plan.predicted.iteration, planner::simulate(plan, job, fabric).iteration);
    planner::Options options;
    options.max_delay = 0;
    options.max_merge = 1;
    EXPECT_EQ(planner::check_plan(plan, job, fabric, options), std::vector<std::string>());
    EXPECT_LT(plan.predicted.iteration, 0.95 * plan.predicted.baseline);
}

bool in_halves(const planner::Plan& plan) {
    return std::any_of(plan.transfers.begin(), plan.transfers.end(), [](const auto& transfer) {
        return transfer.operation != planner::Operation::AllReduce;
    });
}

// By itself no plan has halves: with the questions that their calls ask they gain nothing.
TEST(Layers, HaveTheirSumsInHalvesWhereThatIsNamed) {
    for (const double coverage : {0.5, 0.9, 1.0, 1.6}) {
        EXPECT_TRUE(in_halves(plan_for(coverage, slow_start("dear")))) << coverage;
        for (const char* const policy : {"", "best", "us-byte", "bytescheduler"}) {
            EXPECT_FALSE(in_halves(plan_for(coverage, slow_start(policy)))) << policy << coverage;
        }
    }
}

TEST(Layers, GetANamedOrderThoughItGainsNothing) {
    EXPECT_EQ(plan_for(0.1, waiting_layers("us-byte")).predicted.verdict, planner::Verdict::Use);
    const planner::Plan best = plan_for(0.1, waiting_layers("best"));
    EXPECT_EQ(best.predicted.verdict, planner::Verdict::Use);
    EXPECT_EQ(best.barrier, planner::Barrier::Layer);
    EXPECT_EQ(plan_for(0.1, waiting_layers()).predicted.verdict, planner::Verdict::Keep);
    Settings trial = waiting_layers();
    trial.trial = true;
    const planner::Plan tried = plan_for(0.1, trial);
    EXPECT_EQ(tried.predicted.verdict, planner::Verdict::Use);
    EXPECT_EQ(tried.barrier, planner::Barrier::Layer);
}

TEST(Caps, DelayAndMergingAreCombinedOnlyWhereTheOperatorSetsBoth) {
    Settings settings = late_or_merged();
    for (const double coverage : {0.5, 1.0, 1.5, 2.0, 3.0}) {
        for (const bool lanes : {false, true}) {
            const planner::Prediction p =
                (lanes ? plan_for(coverage, settings, {network(coverage, 0.5)})
                       : plan_for(coverage, settings))
                    .predicted;
            EXPECT_TRUE(p.max_delay == 0 || p.max_merge == 1) << coverage;
            EXPECT_LT(p.iteration, p.baseline) << coverage;
        }
    }
    settings.combined = true;
    const planner::Prediction both = plan_for(2.0, settings).predicted;
    EXPECT_EQ(both.max_delay, 1U);
    EXPECT_EQ(both.max_merge, 2U);
}

// Half the buckets in one update and half in the next would be faster here.
TEST(Generations, AreCompleteInEveryUpdate) {
    Settings settings = late_or_merged();
    for (const std::uint32_t delay : {0U, 1U}) {
        settings.max_delay = delay;
        for (const double coverage : {0.8, 1.5, 2.0, 3.0}) {
            const planner::Plan plan = plan_for(coverage, settings);
            EXPECT_TRUE(plan.complete_generations()) << coverage;
            EXPECT_GE(plan.predicted.iteration, plan.predicted.bound * (1 - 1e-9)) << coverage;
            if (delay == 0 && coverage > 1) {
                EXPECT_EQ(plan.predicted.max_merge, 2U) << coverage;
                EXPECT_LT(plan.predicted.iteration, 1.05 * plan.predicted.bound) << coverage;
            }
        }
    }
    const double whole = plan_for(2, settings).predicted.iteration;
    settings.turns = true;
    EXPECT_FALSE(plan_for(2, settings).complete_generations());
    EXPECT_LT(plan_for(2, settings).predicted.iteration, 0.9 * whole);
    settings.forced_merge = 2;
    EXPECT_FALSE(plan_for(2, settings).complete_generations());
    settings.forced_delay = 1;
    EXPECT_TRUE(plan_for(2, settings).complete_generations());
    settings = late_or_merged();
    settings.mode = ShimMode::Covap;
    EXPECT_FALSE(plan_for(2, settings).complete_generations());
}

// What is late costs progress, so no more of it is than the time needs.
TEST(Late, IsOnlyWhatBackwardEndsWith) {
    Settings settings = late_or_merged();
    settings.max_merge = 1;
    EXPECT_EQ(plan_for(0.8, settings).predicted.late, 1) << "when calls are ready is a guess yet";
    settings.mixed_ages = true;
    const planner::Plan plan = plan_for(0.8, settings);
    EXPECT_EQ(plan.origin, "mixed-ages");
    EXPECT_NEAR(plan.predicted.iteration, kCompute, 0.01 * kCompute);
    EXPECT_GT(plan.predicted.late, 0);
    EXPECT_LT(plan.predicted.late, 0.5);
    EXPECT_EQ(plan.predicted.max_delay, 1U);
    EXPECT_TRUE(plan.whole_updates());
    const planner::Profile job = job_of(0.8);
    const planner::Plan least = planner::least_late(job, fabric_of(job, {}), {});
    EXPECT_NEAR(1 - plan.predicted.late, 0.9 * (1 - least.predicted.late), 0.03)
        << "a tenth of what may be fresh is late too: times vary";
    settings.forced_merge = 1;
    settings.forced_delay = 1;
    EXPECT_EQ(plan_for(0.8, settings).predicted.late, 1);
    settings.forced_tail = true;
    EXPECT_NEAR(plan_for(0.8, settings).predicted.late, plan.predicted.late, 1e-9);
}

// The paper's queues, where the operator names them: an update in a fraction of iterations.
TEST(Queues, AreDeftsOwnWithinTheCaps) {
    Settings settings = late_or_merged();
    settings.forced_queues = true;
    settings.forced_delay = 3;
    settings.forced_merge = 2;
    for (const bool lanes : {false, true}) {
        const std::vector<planner::Link> others =
            lanes ? std::vector<planner::Link>{network(1.3, 0.1)} : std::vector<planner::Link>();
        const planner::Plan plan = plan_for(1.3, settings, others);
        EXPECT_EQ(plan.policy, "deft");
        EXPECT_EQ(plan.predicted.verdict, planner::Verdict::Use) << "though it gains no progress";
        EXPECT_TRUE(plan.complete_generations());
        EXPECT_GT(plan.predicted.updates, 0.5);
        EXPECT_LT(plan.predicted.updates, 1);
        EXPECT_LE(plan.predicted.iteration, 1.05 * kCompute);
        EXPECT_LE(plan.predicted.max_delay, 3U);
        EXPECT_LE(plan.predicted.max_merge, 2U);
    }
    settings.forced_merge = 1;
    EXPECT_EQ(plan_for(1.3, settings).predicted.updates, 1);
}

// Over two networks late ones would wait in the hook for fresh ones.
TEST(Late, IsEverythingOverSeveralNetworks) {
    Settings settings = late_or_merged();
    settings.max_merge = 1;
    settings.mixed_ages = true;
    const double late = plan_for(1.6, settings, {network(1.6, 1)}).predicted.late;
    EXPECT_TRUE(late == 0 || late == 1) << late;
}

Settings priced(double noise_scale, double age_price) {
    Settings settings = late_or_merged();
    settings.noise_scale = noise_scale;
    settings.age_price = age_price;
    return settings;
}

// What lateness costs in progress has to come back in time.
TEST(Progress, DecidesWhatIsLate) {
    for (const bool lanes : {false, true}) {
        const auto others = [&](double coverage) {
            return lanes ? std::vector<planner::Link>{network(coverage, 0.1)}
                         : std::vector<planner::Link>();
        };
        Settings settings = priced(planner::kNoiseScale, 0.1);
        settings.max_merge = 1;
        const planner::Prediction cheap = plan_for(0.9, settings, others(0.9)).predicted;
        EXPECT_EQ(cheap.verdict, planner::Verdict::Use) << lanes;
        EXPECT_EQ(cheap.late, 1) << lanes;
        EXPECT_NEAR(cheap.progress, 1 / 1.1, 1e-9) << lanes;
        EXPECT_LT(cheap.iteration / cheap.progress, cheap.baseline) << lanes;
        settings.age_price = 1;
        const planner::Prediction dear = plan_for(0.9, settings, others(0.9)).predicted;
        EXPECT_EQ(dear.max_delay, lanes ? 0U : dear.max_delay);
        EXPECT_GE(cheap.iteration * 2, dear.baseline) << "or it would be worth it";
    }
}

// Where backward ends is a guess yet: a plan that would delay that alone is worth it, and all is
// late until it is known. Where not even that is, nothing is.
TEST(Progress, EverythingIsLateForAWhileWhereTheTailAloneWillBe) {
    Settings settings = priced(planner::kNoiseScale, planner::kAgePrice);
    settings.max_merge = 1;
    const planner::Plan probe = plan_for(0.8, settings);
    EXPECT_EQ(probe.predicted.late, 1);
    EXPECT_EQ(probe.predicted.verdict, planner::Verdict::Use);
    EXPECT_GT(probe.predicted.iteration / probe.predicted.progress, probe.predicted.baseline)
        << "it would not be worth it by itself";
    settings.mixed_ages = true;
    const planner::Plan tail = plan_for(0.8, settings);
    EXPECT_EQ(tail.origin, "mixed-ages");
    EXPECT_EQ(tail.predicted.verdict, planner::Verdict::Use);
    EXPECT_LT(tail.predicted.iteration / tail.predicted.progress, 0.98 * tail.predicted.baseline);
    for (const bool known : {false, true}) {
        settings.mixed_ages = known;
        settings.age_price = 50;
        EXPECT_EQ(plan_for(0.8, settings).predicted.verdict, planner::Verdict::Keep) << known;
    }
}

// Two gradients in a step are worth two steps where noise rules, and one where there is none.
TEST(Progress, DecidesWhatIsMerged) {
    Settings settings = priced(0, planner::kAgePrice);
    settings.max_delay = 0;
    EXPECT_EQ(plan_for(2, settings).predicted.verdict, planner::Verdict::Keep);
    settings.noise_scale = 20;
    const planner::Plan merged = plan_for(2, settings);
    EXPECT_EQ(merged.predicted.verdict, planner::Verdict::Use);
    EXPECT_EQ(merged.predicted.max_merge, 2U);
    EXPECT_NEAR(merged.predicted.updates, 0.5, 1e-9);
    EXPECT_NEAR(merged.predicted.progress, 21.0 / 22, 1e-9);
    settings.mode = ShimMode::Covap;  // asked for by its name
    settings.noise_scale = 0;
    EXPECT_EQ(plan_for(2, settings).predicted.verdict, planner::Verdict::Use);
}

TEST(Progress, OfEquallyFastPlansTheOneWithMoreUpdatesIsTaken) {
    Settings settings = late_or_merged();
    settings.combined = true;
    const planner::Plan plan = plan_for(1.15, settings);
    EXPECT_NEAR(plan.predicted.iteration, kCompute, 0.01 * kCompute);
    EXPECT_GT(plan.predicted.updates, 0.6) << "half as many are as fast";
    std::string note;
    choose_plan(job_of(1.15), {}, settings, note);
    EXPECT_NE(note.find("updates and "), std::string::npos) << note;
}

// Three updates in four iterations at 1.3 keep the links busy for 0.975 of the time, and a job
// needs 7 to 10 % longer than predicted then.
TEST(Progress, AFractionOfUpdatesLeavesTheLinksSomeTime) {
    Settings settings = priced(3, 0.15);
    settings.combined = true;
    for (const double coverage : {1.2, 1.3, 1.4, 1.45}) {
        const planner::Prediction plan = plan_for(coverage, settings).predicted;
        EXPECT_LT(plan.updates, 1) << coverage;
        EXPECT_LE(plan.updates * coverage, 0.955) << coverage;
        EXPECT_NEAR(plan.iteration, kCompute, 0.01 * kCompute) << coverage;
        EXPECT_EQ(plan.verdict, planner::Verdict::Use) << coverage;
    }
}

// An executor carries out each call by itself: what buckets fused into one message would save is
// nothing it can have. Here nearly everything would: transfers take nearly as long whatever their
// size.
TEST(Calls, AreNeverFusedIntoOneMessage) {
    planner::Profile profile = job_of(1.2);
    for (std::size_t i = 0; i < profile.size(); ++i) {
        profile.buckets[i].bytes = kBytes + 100'000 * i;
        profile.buckets[i].transfer.median *= 1 + 0.001 * static_cast<double>(i);
    }
    for (const ShimMode mode : {ShimMode::Exact, ShimMode::Deft}) {
        Settings settings = late_or_merged();
        settings.mode = mode;
        settings.max_delay = mode == ShimMode::Exact ? 0 : 1;
        settings.max_merge = mode == ShimMode::Exact ? 1 : 2;
        std::string note;
        const planner::Plan plan = choose_plan(profile, {}, settings, note);
        std::set<std::uint32_t> messages;
        for (const planner::Transfer& transfer : plan.transfers) {
            EXPECT_TRUE(messages.insert(transfer.message).second) << note;
        }
        if (mode == ShimMode::Exact) {
            EXPECT_EQ(plan.predicted.verdict, planner::Verdict::Keep) << note;
        } else {
            EXPECT_GT(plan.predicted.max_delay + plan.predicted.max_merge, 1U) << note;
        }
    }
}

}  // namespace
}  // namespace deft::director
