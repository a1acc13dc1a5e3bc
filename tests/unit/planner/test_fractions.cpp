// SPDX-License-Identifier: Apache-2.0
// One update in a fraction of iterations: as many as the links carry.
#include <gtest/gtest.h>

#include <numeric>

#include "planner/model/model.h"
#include "planner/policies/policy.h"
#include "planner/policies/spreading.h"
#include "planner/simulator/check.h"
#include "tests/unit/planner/shapes.h"

namespace deft::planner {
namespace {

Profile resnet() {
    ModelRun run;
    run.seconds = 0.1;
    run.bucket = 25U << 20;
    return model_profile(make_model("resnet101"), run);
}

Fabric at_coverage(const Profile& profile, double coverage) {
    return testing::one_link(static_cast<double>(profile.bytes()) / (coverage * profile.compute()));
}

Options late_and_merged() {
    Options options;
    options.max_delay = 1;
    options.max_merge = 2;
    options.complete_generations = true;
    options.objective = Objective::IterationTime;
    return options;
}

std::string problems(const Plan& plan, const Profile& profile, const Fabric& fabric,
                     const Options& options) {
    std::string text;
    for (const std::string& problem : check_plan(plan, profile, fabric, options)) {
        text += problem + "\n";
    }
    return text;
}

TEST(Fractions, EveryGradientIsInOneUpdate) {
    const Profile profile = resnet();
    const Fabric fabric = at_coverage(profile, 1.2);
    Options options = late_and_merged();
    options.max_merge = 4;
    options.max_delay = 2;
    Shares cut(fabric, options);
    for (std::uint32_t n = 1; n <= 7; ++n) {
        for (std::uint32_t updates = (n + 3) / 4; updates <= n; ++updates) {
            const Plan plan = generations(profile, fabric, options, {updates, n}, 2,
                                          std::vector<std::uint32_t>(profile.size(), 0), cut);
            EXPECT_EQ(problems(plan, profile, fabric, options), "") << updates << "/" << n;
            EXPECT_TRUE(plan.complete_generations());
            EXPECT_NEAR(plan.predicted.updates, static_cast<double>(updates) / n, 1e-9);
        }
    }
}

// No faster, but with more updates than merging two always: k = 4/3 where the links bear it.
TEST(Fractions, MoreUpdatesAreTakenWhereTheyCostNoTime) {
    const Profile profile = resnet();
    const Options options = late_and_merged();
    const Fabric fabric = at_coverage(profile, 1.18);
    const Plan plan = plan_best(profile, fabric, options);
    EXPECT_NEAR(plan.predicted.iteration, profile.compute(), 1e-3 * profile.compute());
    EXPECT_NEAR(plan.predicted.updates, 0.75, 1e-9);
    EXPECT_EQ(problems(plan, profile, fabric, options), "");
    EXPECT_NEAR(plan_generations(profile, fabric, options, 2, 1).predicted.iteration,
                plan.predicted.iteration, 1e-3 * profile.compute());
    Options merged = options;
    merged.max_delay = 0;
    EXPECT_NEAR(plan_best(profile, fabric, merged).predicted.updates, 0.5, 1e-9)
        << "only a late sum takes more than an iteration's time";
}

TEST(Fractions, NeverTakeLongerThanWholeOnes) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
        std::mt19937_64 random(seed);
        const Profile profile =
            testing::random_profile(random, 2 + static_cast<std::uint32_t>(random() % 8));
        const Fabric fabric = at_coverage(profile, testing::uniform(random, 0.8, 2));
        const Options options = late_and_merged();
        const Plan best = plan_best(profile, fabric, options);
        EXPECT_EQ(problems(best, profile, fabric, options), "") << seed;
        for (const std::uint32_t merge : {1U, 2U}) {
            const Plan whole = plan_generations(profile, fabric, options, merge, 1);
            EXPECT_LE(best.predicted.iteration, whole.predicted.iteration * 1.03) << seed;
        }
    }
}

}  // namespace
}  // namespace deft::planner
