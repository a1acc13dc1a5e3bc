// SPDX-License-Identifier: Apache-2.0
// Policy `us-byte`: small gradients are fused where that is worth the wait, and not otherwise.
#include <gtest/gtest.h>

#include "planner/policies/policy.h"
#include "tests/unit/planner/random_cases.h"

namespace deft::planner {
namespace {

double seconds(const char* policy, const Profile& profile, const Fabric& fabric) {
    Options options;
    options.barrier = Barrier::Layer;
    return make_plan(policy, profile, fabric, options).predicted.iteration;
}

std::size_t messages(const Plan& plan) {
    return plan.transfers.back().message + std::size_t{1};
}

// `apart`: seconds between the gradients of the two buckets.
Profile two_buckets(double apart) {
    Profile profile;
    profile.forward = 4.135e-3;
    profile.backward = 20.778e-3;
    profile.buckets.resize(2);
    profile.buckets[0].bytes = 10991876;
    profile.buckets[0].ready = 20.754e-3 - apart;
    profile.buckets[1].bytes = 2032988;
    profile.buckets[1].ready = 20.754e-3;
    return profile;
}

TEST(UsByte, SendsASmallGradientWhoseSuccessorIsFarOff) {
    const Profile profile = two_buckets(19.78e-3);
    const Fabric fabric = testing::one_link(1 / 8.294e-10, 3e-3);
    const double as_it_is = seconds("none", profile, fabric);
    EXPECT_NEAR(as_it_is, 29.575e-3, 1e-6);
    EXPECT_LE(seconds("us-byte", profile, fabric), as_it_is * (1 + 1e-9));
    EXPECT_EQ(messages(make_plan("us-byte", profile, fabric)), 2U);
}

// 2 ms of waiting save a start-up of 3 ms.
TEST(UsByte, WaitsForASuccessorThatIsNear) {
    const Profile profile = two_buckets(2e-3);
    const Fabric fabric = testing::one_link(1 / 8.294e-10, 3e-3);
    EXPECT_EQ(messages(make_plan("us-byte", profile, fabric)), 1U);
    EXPECT_LT(seconds("us-byte", profile, fabric), seconds("wfbp", profile, fabric) - 0.9e-3);
}

TEST(UsByte, IsNeverSlowerThanFirstReadyFirstSent) {
    for (std::uint64_t seed = 0; seed < 5000; ++seed) {
        std::mt19937_64 random(seed);
        const Profile profile =
            testing::random_profile(random, 1 + static_cast<std::uint32_t>(random() % 8));
        const double rate = static_cast<double>(profile.bytes()) / profile.compute() *
                            testing::uniform(random, 0.3, 3);
        const Fabric fabric = seed % 4 == 3
                                  ? testing::random_fabric(random, 1, true)
                                  : testing::one_link(rate, testing::uniform(random, 0, 3e-3));
        const double mine = seconds("us-byte", profile, fabric);
        EXPECT_LE(mine, seconds("wfbp", profile, fabric) * (1 + 1e-9)) << "seed " << seed;
        EXPECT_LE(mine, seconds("none", profile, fabric) * (1 + 1e-9)) << "seed " << seed;
    }
}

}  // namespace
}  // namespace deft::planner
