// SPDX-License-Identifier: Apache-2.0
// Only hard dependencies late: the fewest late bytes for a given time, by bucket and by cut; what
// updates are worth; and that nothing of it is chosen where the executor cannot carry it out.
#include "planner/policies/mixed_ages.h"

#include <gtest/gtest.h>

#include <cmath>

#include "planner/model/model.h"
#include "planner/model/progress.h"
#include "planner/policies/policy.h"
#include "planner/simulator/check.h"
#include "tests/unit/planner/shapes.h"

namespace deft::planner {
namespace {

Profile ddp(const char* model, std::uint64_t bucket_mb = 25) {
    ModelRun run;
    run.seconds = 0.3;
    run.bucket = bucket_mb << 20;
    return model_profile(make_model(model), run);
}

Fabric at_coverage(const Profile& profile, double coverage) {
    return testing::one_link(static_cast<double>(profile.bytes()) / (coverage * profile.compute()));
}

std::vector<std::uint32_t> first_link(const Profile& profile) {
    return std::vector<std::uint32_t>(profile.size(), 0);
}

std::string problems(const Plan& plan, const Profile& profile, const Fabric& fabric) {
    Options one_late;
    one_late.max_merge = 1;
    std::string text;
    for (const std::string& problem : check_plan(plan, profile, fabric, one_late)) {
        text += problem + "\n";
    }
    return text;
}

// Late bytes, in per cent of all, at the time of everything late, in whole DDP buckets: figures of
// an independent search, but for gpt2 at 0.9, where that says 53: one bucket less, and 0.1 %
// longer.
struct LeastLate {
    const char* model;
    double percent[3];  // at coverage rates 0.75, 0.9, 1.0
};

class MixedAges : public ::testing::TestWithParam<LeastLate> {};

TEST_P(MixedAges, DelaysTheLeastBytesForTheTimeOfEverythingLate) {
    const Profile profile = ddp(GetParam().model);
    const double coverage[] = {0.75, 0.9, 1.0};
    for (int i = 0; i < 3; ++i) {
        const Fabric fabric = at_coverage(profile, coverage[i]);
        Options options;
        options.allow_split = false;
        Shares cut(fabric, options);
        const auto whole = first_link(profile);
        const double time = std::max(1.0, coverage[i]) * profile.compute();
        const Plan late = mixed_ages(profile, fabric, options, 0, whole, cut);
        EXPECT_NEAR(late.predicted.iteration, time, 1e-6 * time);
        const std::uint64_t fresh =
            most_fresh(profile, fabric, options, time * (1 + 1e-5), whole, cut);
        const Plan plan = mixed_ages(profile, fabric, options, fresh, whole, cut);
        EXPECT_NEAR(100 * plan.predicted.late, GetParam().percent[i], 1.2)
            << GetParam().model << " " << coverage[i];
        EXPECT_LE(plan.predicted.iteration, time * (1 + 1e-5));
        EXPECT_EQ(problems(plan, profile, fabric), "");
        EXPECT_FALSE(plan.complete_generations());
        EXPECT_TRUE(plan.whole_updates());
        // A cut can only leave less late.
        options.allow_split = true;
        const std::uint64_t more =
            most_fresh(profile, fabric, options, time * (1 + 1e-5), whole, cut);
        EXPECT_GE(more, fresh);
        EXPECT_EQ(problems(mixed_ages(profile, fabric, options, more, whole, cut), profile, fabric),
                  "");
        // Late bytes >= C - (B - r_1), in seconds of the link: nothing fresh moves before r_1.
        const double least = coverage[i] * profile.compute() -
                             (profile.backward - profile.buckets[0].ready) -
                             (time - profile.compute());
        EXPECT_GE(static_cast<double>(profile.bytes() - more),
                  least / (coverage[i] * profile.compute()) * static_cast<double>(profile.bytes()) -
                      1e-4 * static_cast<double>(profile.bytes()));
    }
}

INSTANTIATE_TEST_SUITE_P(
    Models, MixedAges,
    ::testing::Values(LeastLate{"resnet101", {17, 32, 47}}, LeastLate{"bert-base", {28, 35, 41}},
                      LeastLate{"bert-large", {17, 30, 37}}, LeastLate{"gpt2", {47, 58, 58}},
                      LeastLate{"gpt2-xl", {16, 31, 38}}, LeastLate{"llama-2-7b", {13, 28, 34}}));

// Slack is left out of what is fresh, in pieces that may be sent.
TEST(MixedAgesSlack, LeavesSoMuchLessFresh) {
    const Profile profile = ddp("resnet101");
    const Fabric fabric = at_coverage(profile, 0.9);
    for (const bool split : {false, true}) {
        Options options;
        options.allow_split = split;
        Shares cut(fabric, options);
        const auto whole = first_link(profile);
        const double time = profile.compute() * (1 + 1e-5);
        const std::uint64_t all = most_fresh(profile, fabric, options, time, whole, cut);
        options.slack = 0.1;
        const std::uint64_t less = most_fresh(profile, fabric, options, time, whole, cut);
        EXPECT_LE(less, all - all / 10 + options.grain);
        EXPECT_GE(less, split ? all - all / 10 - (2U << 20) : all / 2);
        const Plan plan = mixed_ages(profile, fabric, options, less, whole, cut);
        EXPECT_EQ(problems(plan, profile, fabric), "");
        for (const Transfer& transfer : plan.transfers) {
            EXPECT_GE(transfer.bytes(),
                      std::min<std::uint64_t>(options.least_piece,
                                              profile.buckets[transfer.bucket].bytes));
        }
    }
}

// Beside every number of late buckets that backward may end with.
TEST(MixedAgesSearch, NoTailIsShorter) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        std::mt19937_64 random(seed);
        const Profile profile =
            testing::random_profile(random, 2 + static_cast<std::uint32_t>(random() % 8));
        const Fabric fabric = at_coverage(profile, testing::uniform(random, 0.5, 1.4));
        Options options;
        options.allow_split = false;
        Shares cut(fabric, options);
        const auto whole = first_link(profile);
        const double time =
            mixed_ages(profile, fabric, options, 0, whole, cut).predicted.iteration * (1 + 1e-5);
        const std::uint64_t found = most_fresh(profile, fabric, options, time, whole, cut);
        std::uint64_t fresh = 0;
        std::uint64_t most = 0;
        for (const Bucket& bucket : profile.buckets) {
            fresh += bucket.bytes;
            const Plan plan = mixed_ages(profile, fabric, options, fresh, whole, cut);
            most = plan.predicted.iteration <= time ? std::max(most, fresh) : most;
        }
        EXPECT_EQ(found, most) << "seed " << seed;
    }
}

TEST(Progress, CountsMergingByNoiseAndLatenessByBytes) {
    const Profile profile = ddp("bert-base");
    const Fabric fabric = at_coverage(profile, 1);
    Options options;
    EXPECT_DOUBLE_EQ(progress_per_iteration(make_plan("none", profile, fabric), options), 1);
    const auto generations = [&](std::uint32_t merge, std::uint32_t delay) {
        return progress_per_iteration(plan_generations(profile, fabric, options, merge, delay),
                                      options);
    };
    EXPECT_NEAR(generations(1, 1), 1 / 1.4, 1e-12);
    EXPECT_NEAR(generations(1, 2), 1 / 1.8, 1e-12);
    // Merged and in time: half an update an iteration, worth 4/3 each.
    EXPECT_NEAR(generations(2, 0), 0.5 * 4 / 3, 1e-12);
    // Merged and late: of its two gradients one has missed an update.
    EXPECT_NEAR(generations(2, 1), 0.5 * 4 / 3 / 1.2, 1e-12);
    options.noise_scale = 1e9;  // noise rules: merged iterations are worth their number
    EXPECT_NEAR(generations(4, 0), 1, 1e-6);
    options.noise_scale = 0;
    EXPECT_NEAR(generations(4, 0), 0.25, 1e-12);
    Shares cut(fabric, options);
    const Plan tail =
        mixed_ages(profile, fabric, options, profile.bytes() / 4 * 3, first_link(profile), cut);
    EXPECT_NEAR(tail.predicted.late, 0.25, 0.01);
    EXPECT_NEAR(progress_per_iteration(tail, options), 0.75 + 0.25 / 1.4, 0.01);
}

// COVAP's turns: each piece gets all it has missed, and misses no update of its own.
TEST(Progress, TakingTurnsIsMergingWithoutLateness) {
    const Profile profile = ddp("bert-base");
    Options options;
    options.max_merge = 3;
    options.covap_interval = 3;
    const Plan plan = make_plan("covap", profile, at_coverage(profile, 2.5), options);
    ASSERT_EQ(plan.period, 3U);
    EXPECT_NEAR(progress_per_iteration(plan, options), merged_worth(3, options.noise_scale) / 3,
                1e-9);
    EXPECT_EQ(late_part(plan), 0);
}

// DeFT's fractional update frequency: k = CR, whole and in order.
TEST(Progress, FractionalUpdateFrequencyIsOffered) {
    const Profile profile = ddp("bert-large");
    const Fabric fabric = at_coverage(profile, 1.5);
    Options options;
    options.max_delay = options.max_merge = 4;
    options.complete_generations = true;
    options.objective = Objective::Progress;
    options.noise_scale = 20;  // merging is cheap
    options.age_price = 0.01;
    const Plan plan = make_plan("best", profile, fabric, options);
    EXPECT_TRUE(plan.complete_generations());
    EXPECT_LE(plan.predicted.iteration, profile.compute() * 1.01);
    EXPECT_NEAR(1 / plan.predicted.updates, 1.5, 0.1);  // neither 1 nor 2
    // In time alone, whole merging is as fast, and its updates are fewer.
    options.objective = Objective::IterationTime;
    const Plan merged = make_plan("best", profile, fabric, options);
    EXPECT_LE(merged.predicted.updates, plan.predicted.updates + 1e-9);
}

TEST(Capability, MixedAgesAreChosenOnlyWhereTheExecutorCan) {
    for (const double coverage : {0.75, 0.9, 1.1}) {
        for (const char* model : {"resnet101", "gpt2", "bert-large"}) {
            const Profile profile = ddp(model);
            const Fabric fabric = at_coverage(profile, coverage);
            for (const Objective objective :
                 {Objective::IterationTime, Objective::UpdateTime, Objective::Progress}) {
                Options options;
                options.max_merge = 1;
                options.objective = objective;
                const Plan product = make_plan("best", profile, fabric, options);
                EXPECT_FALSE(product.predicted.mixed_ages());
                options.mixed_ages = true;
                options.complete_generations = true;
                const Plan plan = make_plan("best", profile, fabric, options);
                EXPECT_EQ(problems(plan, profile, fabric), "");
                // A part late may pay where everything late does not.
                if (product.predicted.late > 0) {
                    EXPECT_LT(plan.predicted.late, product.predicted.late);
                }
                EXPECT_LE(plan.predicted.iteration / progress_per_iteration(plan, options),
                          product.predicted.iteration / progress_per_iteration(product, options) *
                              (1 + 2e-4));
                if (objective == Objective::IterationTime) {
                    EXPECT_EQ(plan.origin, "mixed-ages") << model << " " << coverage;
                    EXPECT_LT(plan.predicted.late, 0.75);
                    EXPECT_NEAR(plan.predicted.iteration, product.predicted.iteration,
                                2e-4 * product.predicted.iteration);
                }
            }
        }
    }
}

}  // namespace
}  // namespace deft::planner
