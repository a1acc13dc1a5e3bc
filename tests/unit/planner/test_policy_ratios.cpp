// SPDX-License-Identifier: Apache-2.0
// Policies at their papers' level: beside what exhaustive search finds over small cases, and never
// worse than the job as it is where the paper promises a gain. The table: perf/results.
#include <gtest/gtest.h>

#include "planner/model/collective.h"
#include "planner/model/model.h"
#include "planner/model/presets.h"
#include "planner/policies/policy.h"
#include "planner/solver/closed_forms.h"
#include "tests/unit/planner/policy_ratios.h"
#include "tests/unit/planner/random_cases.h"
#include "tests/unit/planner/shapes.h"

namespace deft::planner {
namespace {

using testing::PolicyRatio;

const PolicyRatio& ratio(const std::string& policy, const std::string& reference) {
    static const std::vector<PolicyRatio> kAll = testing::policy_ratios();
    for (const PolicyRatio& one : kAll) {
        if (one.policy == policy && one.reference == reference) {
            return one;
        }
    }
    static const PolicyRatio kNone;
    ADD_FAILURE() << "no ratio of " << policy << " to " << reference;
    return kNone;
}

TEST(PolicyRatios, SecondPhaseOfUsByteIsOptimal) {
    const PolicyRatio& r =
        ratio("us-byte", "every grouping of neighbours, all sent after backward");
    EXPECT_EQ(r.equal, r.cases);
    EXPECT_GE(r.cases, 200U);
}

TEST(PolicyRatios, DeadlineFirstIsNeverLongerThanFirstFitDecreasing) {
    const PolicyRatio& first = ratio("edf", "first-fit decreasing");
    EXPECT_LE(first.most, 1 + 1e-4);
    EXPECT_GE(first.cases, 150U);
    const PolicyRatio& exact = ratio("edf", "every assignment of whole buckets");
    EXPECT_LE(exact.mean, 1.01);
    EXPECT_LT(exact.mean, ratio("first-fit decreasing", "every assignment of whole buckets").mean);
}

// The paper: within 4.3 % of the optimum.
TEST(PolicyRatios, FewestLinksIsWithinItsPapersDistance) {
    EXPECT_LE(ratio("fewest-links", "least number of links, summed").mean, 1.043);
}

// Against queues written apart, with every packing: the same updates, but for a greedy window.
TEST(PolicyRatios, DeftGetsTheUpdatesOfExactWindows) {
    const PolicyRatio& r =
        ratio("deft", "its queues with every packing (updates: theirs over ours)");
    EXPECT_GE(r.cases, 100U);
    EXPECT_GE(r.equal, 90U);
    EXPECT_LE(r.mean, 1.005);
    EXPECT_GE(r.mean, 0.99);
}

TEST(PolicyRatios, CovapsFilterIsNearTheBestTurns) {
    EXPECT_LE(ratio("covap", "every way to hand its pieces to turns").mean, 1.01);
}

TEST(PolicyRatios, TheRestStaysNearItsOptimum) {
    EXPECT_LE(ratio("bytescheduler, ideal", "best order (no start-ups)").most, 1 + 1e-6);
    EXPECT_LE(ratio("mg-wfbp", "every grouping of neighbours").mean, 1.02);
    EXPECT_LE(ratio("dear", "every grouping of neighbours").mean, 1.05);
    EXPECT_LE(ratio("best", "every assignment of whole buckets").most, 1.02);
    EXPECT_LE(ratio("deft, one knapsack", "every packing (value: theirs over ours)").mean, 1.02);
}

// Start-ups counted: what is lost to the best order is not theirs.
TEST(PolicyRatios, LayersThatWaitForTheirOwnAreNearTheBestOrder) {
    const std::string order = "every order of messages of thirds of buckets, with start-ups";
    EXPECT_GE(ratio("us-byte", order).cases, 100U);
    EXPECT_LE(ratio("us-byte", order).mean, 1.1);
    EXPECT_LE(ratio("bytescheduler, tuned", order).mean, 1.1);
    EXPECT_LT(ratio("bytescheduler, tuned", order).mean, ratio("bytescheduler", order).mean);
    EXPECT_LE(ratio("best, layers wait", order).mean, 1.03);
}

// What the exhaustive searches find can be found: a reference below the bound would flatter nobody.
TEST(PolicyRatios, NothingBeatsItsReference) {
    for (const PolicyRatio& one : testing::policy_ratios()) {
        const bool exhaustive = one.reference.rfind("every", 0) == 0 && one.policy != "best";
        if (exhaustive) {
            EXPECT_GE(one.mean, 1 - 1e-9) << one.policy << ": " << one.reference;
        }
    }
}

// Tuned fusion is as fast as any of the sizes its tuner may try.
TEST(DearFusion, IsTuned) {
    for (const char* model : {"resnet50", "vgg16", "bert-base", "gpt2"}) {
        ModelRun run;
        run.seconds = 0.25;
        run.first_bucket = run.bucket = 1;
        const Profile profile = model_profile(make_model(model), run);
        for (const std::uint32_t ranks : {8U, 64U, 512U}) {
            Fabric fabric;
            fabric.links.push_back(preset_link("10GbE", ranks));
            const double tuned = make_plan("dear", profile, fabric).predicted.iteration;
            Options options;
            for (const std::uint64_t mb : {0ULL, 1ULL, 4ULL, 16ULL, 64ULL, 256ULL}) {
                options.fusion_bytes = std::max<std::uint64_t>(1, mb << 20);
                EXPECT_LE(tuned, make_plan("dear", profile, fabric, options).predicted.iteration *
                                     (1 + 1e-9))
                    << model << ", " << ranks << " ranks, " << mb << " MiB";
            }
        }
    }
}

// The interval is the ratio of communication to compute, rounded up, as far as the cap goes.
TEST(CovapInterval, FollowsTheRatioWithinTheCap) {
    const Profile profile = testing::profile_of(testing::equal_shape(16));
    for (const double coverage : {0.7, 1.3, 2.4, 4.6, 7.9}) {
        const Fabric fabric = testing::fabric_of(coverage, {1});
        for (const std::uint32_t cap : {1U, 2U, 5U, 64U}) {
            Options options;
            options.max_merge = cap;
            const Plan plan = make_plan("covap", profile, fabric, options);
            EXPECT_EQ(plan.period, std::min(cap, static_cast<std::uint32_t>(std::ceil(coverage))))
                << coverage << ", cap " << cap;
        }
    }
}

// Pieces never cost more start-up than they carry: DeFT does not fall behind the job as it is.
TEST(DeftPieces, NeverLoseToTheJobAsItIs) {
    for (const char* model : {"resnet50", "vgg19", "bert-large", "gpt2"}) {
        for (const double seconds : {0.02, 0.1, 0.5}) {
            ModelRun run;
            run.seconds = seconds;
            const Profile profile = model_profile(make_model(model), run);
            for (const std::uint32_t ranks : {16U, 128U, 1024U, 10000U}) {
                Fabric fabric;
                fabric.links.push_back(ring_link("nic", ranks, 30e-6, 1.16e9));
                for (const std::uint32_t cap : {1U, 2U, 4U}) {
                    Options options;
                    options.max_delay = options.max_merge = cap;
                    const Prediction got = make_plan("deft", profile, fabric, options).predicted;
                    EXPECT_LE(got.iteration, got.baseline * (1 + 1e-9))
                        << model << " " << seconds << " s, " << ranks << " ranks, cap " << cap;
                }
            }
        }
    }
}

}  // namespace
}  // namespace deft::planner
