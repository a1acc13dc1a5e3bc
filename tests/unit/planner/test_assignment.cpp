// SPDX-License-Identifier: Apache-2.0
// Whole buckets on links: deadline-first and fewest-links beside first-fit decreasing, every
// assignment and the job as it is.
#include <gtest/gtest.h>

#include "planner/policies/policy.h"
#include "tests/unit/planner/brute_force.h"
#include "tests/unit/planner/random_cases.h"

namespace deft::planner {
namespace {

double seconds(const char* policy, const Profile& profile, const Fabric& fabric,
               const Options& options = {}) {
    return make_plan(policy, profile, fabric, options).predicted.iteration;
}

Options same_numbers() {
    Options options;
    options.max_delay = 0;
    options.max_merge = 1;
    options.noise = 0;
    return options;
}

// The second link is faster for large messages, the first for small ones.
Fabric crossing(double alpha, double beta, double other_alpha, double other_beta) {
    Fabric fabric;
    fabric.links = {testing::line("near", 1 / beta, alpha),
                    testing::line("wide", 1 / other_beta, other_alpha)};
    return fabric;
}

Fabric draw_crossing(std::mt19937_64& random, const Profile& profile) {
    const double beta =
        testing::uniform(random, 0.5, 3) * profile.compute() / static_cast<double>(profile.bytes());
    return crossing(testing::uniform(random, 0, 3e-4), beta, testing::uniform(random, 5e-4, 4e-3),
                    beta / testing::uniform(random, 1.2, 4));
}

// What fits into some lengths does not fit into longer ones: bisection alone ends at 5.654 ms.
TEST(DeadlineFirst, FindsWhatBisectionMisses) {
    Profile profile;
    profile.forward = 2.64671e-3;
    profile.backward = 0.573793e-3;
    for (const auto& [bytes, ready] :
         std::initializer_list<std::pair<std::uint64_t, double>>{{26214436, .0182918e-3},
                                                                 {26215872, .0182918e-3},
                                                                 {5373944, .0342078e-3},
                                                                 {145067468, .0342078e-3},
                                                                 {173664, .0342078e-3},
                                                                 {13109844, .0782711e-3}}) {
        Bucket bucket;
        bucket.bytes = bytes;
        bucket.ready = ready;
        profile.buckets.push_back(bucket);
    }
    const Fabric fabric = crossing(118.338e-6, 1.5267e-11, 1198.93e-6, 6.30301e-12);
    const double optimum = testing::best_whole_buckets(profile, fabric);
    EXPECT_NEAR(optimum, 4.794e-3, 1e-6);
    EXPECT_NEAR(testing::first_fit_decreasing(profile, fabric), optimum, 1e-9);
    EXPECT_LE(seconds("edf", profile, fabric), optimum * (1 + 1e-6));
    EXPECT_LE(seconds("fewest-links", profile, fabric), optimum * (1 + 1e-6));
    EXPECT_LE(seconds("best", profile, fabric, same_numbers()), optimum * (1 + 1e-6));
}

TEST(DeadlineFirst, IsNeverLongerThanFirstFitDecreasingWhereCostsCross) {
    for (std::uint64_t seed = 0; seed < 2000; ++seed) {
        std::mt19937_64 random(seed);
        const Profile profile =
            testing::random_profile(random, 3 + static_cast<std::uint32_t>(random() % 8));
        Fabric fabric = draw_crossing(random, profile);
        if (seed % 2 == 1) {
            fabric.links.push_back(draw_crossing(random, profile).links[1]);
            fabric.links.back().name = "wider";
        }
        EXPECT_LE(seconds("edf", profile, fabric),
                  testing::first_fit_decreasing(profile, fabric) * (1 + 1e-6))
            << "seed " << seed;
    }
}

// Hundreds of buckets: of any size, of few sizes as DDP makes them, all alike, and a few that are
// large among small ones; links up to 100 times as fast as others.
TEST(DeadlineFirst, IsNeverLongerThanFirstFitDecreasingOfHundredsOfBuckets) {
    for (std::uint64_t seed = 0; seed < 36; ++seed) {
        std::mt19937_64 random(seed);
        Profile profile =
            testing::random_profile(random, 40 + static_cast<std::uint32_t>(random() % 400));
        for (Bucket& bucket : profile.buckets) {
            const bool large = random() % 10 == 0;
            const std::uint64_t sizes[] = {bucket.bytes, (1 + random() % 5) * 26214400, 26214400,
                                           large ? 200000000 : 4096 * (1 + random() % 64)};
            bucket.bytes = sizes[seed % 4];
        }
        const double beta = testing::uniform(random, 0.5, 3) * profile.compute() /
                            static_cast<double>(profile.bytes());
        const double fastest = seed % 3 == 0 ? 100 : 4;
        Fabric fabric;
        for (std::uint64_t j = 0; j < 2 + random() % 7; ++j) {
            const double alpha = testing::uniform(random, 0, 1) * profile.compute() /
                                 static_cast<double>(profile.size());
            fabric.links.push_back(testing::line("nic" + std::to_string(j),
                                                 testing::uniform(random, 0.3, fastest) / beta,
                                                 random() % 2 == 0 ? alpha : 0));
        }
        const double decreasing = testing::first_fit_decreasing(profile, fabric);
        Options options;
        for (const Barrier barrier : {Barrier::Update, Barrier::Layer}) {
            options.barrier = barrier;
            EXPECT_LE(seconds("edf", profile, fabric, options), decreasing * (1 + 1e-6))
                << "seed " << seed << ", barrier " << to_string(barrier);
        }
    }
}

// All buckets alike: as long as the latest of them takes the first place that is in time.
TEST(DeadlineFirst, IsTheOptimumOfBucketsThatAreAllAlike) {
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
        std::mt19937_64 random(seed);
        Profile profile =
            testing::random_profile(random, 3 + static_cast<std::uint32_t>(random() % 5));
        for (Bucket& bucket : profile.buckets) {
            bucket.bytes = 26214400;
        }
        const Fabric fabric =
            testing::random_fabric(random, 2 + static_cast<std::uint32_t>(random() % 2), false);
        EXPECT_NEAR(seconds("edf", profile, fabric) / testing::best_whole_buckets(profile, fabric),
                    1, 1e-6)
            << "seed " << seed;
    }
}

// An assignment knows nothing of pipes that links share, nor of compute that they slow down.
TEST(DeadlineFirst, IsNeverSlowerThanTheJobAsItIs) {
    for (std::uint64_t seed = 0; seed < 1000; ++seed) {
        std::mt19937_64 random(seed);
        const Profile profile =
            testing::random_profile(random, 2 + static_cast<std::uint32_t>(random() % 8));
        const Fabric fabric =
            testing::random_fabric(random, 1 + static_cast<std::uint32_t>(random() % 4), true);
        Options options;
        options.barrier = seed % 3 == 0 ? Barrier::Layer : Barrier::Update;
        const double as_it_is = seconds("none", profile, fabric);
        EXPECT_LE(seconds("edf", profile, fabric, options), as_it_is * (1 + 1e-9))
            << "seed " << seed;
        EXPECT_LE(seconds("fewest-links", profile, fabric, options), as_it_is * (1 + 1e-6))
            << "seed " << seed;
    }
}

// So few placements that the search tries all of them, with all links as with fewer.
TEST(FewestLinks, ReachesEveryTargetThatItsSearchCanReach) {
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
        std::mt19937_64 random(seed);
        const Profile profile =
            testing::random_profile(random, 3 + static_cast<std::uint32_t>(random() % 5));
        const Fabric fabric = draw_crossing(random, profile);
        Options options;
        options.target_seconds = testing::best_whole_buckets(profile, fabric);
        EXPECT_LE(seconds("fewest-links", profile, fabric, options),
                  options.target_seconds * (1 + 1e-6))
            << "seed " << seed;
    }
}

}  // namespace
}  // namespace deft::planner
