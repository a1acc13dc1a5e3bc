// SPDX-License-Identifier: Apache-2.0
#include "planner/adviser.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "planner/policies/policy.h"
#include "tests/unit/planner/shapes.h"

namespace deft::planner {
namespace {

TEST(Adviser, BoundsAndGainsOfTheTable) {
    const Profile profile = testing::profile_of(testing::gpt2_shape());
    const Advice advice = advise(profile, testing::fabric_of(1, {1}), {});
    EXPECT_NEAR(advice.coverage.middle, 1, 1e-9);
    EXPECT_NEAR(advice.gain_order.middle, 1.15, 0.006);
    EXPECT_NEAR(advice.gain_delay.middle, 1.58, 0.006);
    EXPECT_NEAR(advice.order_cap, 1.333, 0.001);
    EXPECT_FALSE(advice.nothing_to_gain);
    // The tied embedding is named.
    ASSERT_FALSE(advice.notes.empty());
    EXPECT_NE(advice.notes[0].find("last bucket"), std::string::npos);
}

TEST(Adviser, NothingToGain) {
    const Profile profile = testing::profile_of(testing::vgg16_shape());
    const Advice advice = advise(profile, testing::fabric_of(0.3, {1}), {});
    EXPECT_TRUE(advice.nothing_to_gain);
    EXPECT_NE(advice.verdict.find("do nothing"), std::string::npos);
}

TEST(Adviser, MoreLinksWhereCommunicationDominates) {
    const Profile profile = testing::profile_of(testing::vgg16_shape());
    const Advice advice = advise(profile, testing::fabric_of(3, {1, 1.65}), {});
    EXPECT_NE(advice.verdict.find("more links"), std::string::npos);
    EXPECT_NEAR(advice.bound_delay, 3 / (1 + 1 / 1.65), 1e-6);
    EXPECT_GT(advice.gain_merge.middle, advice.gain_delay.middle);
}

// Where no compute was measured, or none is to come, nothing is divided by it.
TEST(Adviser, WithoutCompute) {
    Profile profile = testing::profile_of(testing::gpt2_shape());
    profile.forward = profile.backward = 0;
    for (Bucket& bucket : profile.buckets) {
        bucket.ready = bucket.forward = 0;
    }
    const Fabric fabric = testing::fabric_of(2, {1});
    const Advice advice = advise(profile, fabric, {});
    EXPECT_NEAR(advice.communication, 2, 1e-9);
    EXPECT_NE(advice.verdict.find("no compute"), std::string::npos) << advice.verdict;
    const Benefit benefit = benefit_of(profile, fabric, {});
    EXPECT_TRUE(benefit.curve.empty());
    EXPECT_EQ(benefit.bounds.over_overlap, advice.order_cap);
}

// Far beyond compute nothing is hidden under it, and nothing is promised that the caps forbid.
TEST(Adviser, PromisesOnlyWhatTheCapsAllow) {
    const Profile profile = testing::profile_of(testing::gpt2_shape());
    for (const double coverage : {0.3, 0.9, 1.2, 3.0, 29.0}) {
        const Fabric fabric = testing::fabric_of(coverage, {1});
        Options none;
        none.max_delay = 0;
        none.max_merge = 1;
        const Advice advice = advise(profile, fabric, none);
        EXPECT_LE(advice.gain_delay.middle, advice.gain_links.middle * (1 + 1e-12)) << coverage;
        EXPECT_LE(advice.gain_merge.middle, advice.gain_links.middle * (1 + 1e-12)) << coverage;
        EXPECT_EQ(advice.verdict.find("late update"), std::string::npos) << advice.verdict;
        EXPECT_EQ(advice.verdict.find("fewer updates ("), std::string::npos) << advice.verdict;
        Options merged = none;
        merged.max_merge = 2;
        const BenefitPoint here = benefit_of(profile, fabric, merged).here;
        EXPECT_EQ(here.late, here.layered) << coverage;
        EXPECT_LE(make_plan("best", profile, fabric, merged).predicted.bound,
                  here.as_is * (1 + 1e-9));
        EXPECT_GE(make_plan("best", profile, fabric, merged).predicted.iteration,
                  here.bound * (1 - 1e-9))
            << coverage;
    }
    const Advice far = advise(profile, testing::fabric_of(29, {1}), {});
    EXPECT_EQ(far.verdict.find("hidden"), std::string::npos) << far.verdict;
    EXPECT_NE(far.verdict.find("fewer updates (1.9"), std::string::npos) << far.verdict;
}

// The parts of the gain add up, no point beats a bound, and each curve has one hump at most.
TEST(Adviser, TheBenefitCurveKeepsToItsBounds) {
    for (const testing::Shape& shape :
         {testing::vgg16_shape(), testing::gpt2_shape(), testing::equal_shape(16)}) {
        const Profile profile = testing::profile_of(shape);
        const Benefit benefit = benefit_of(profile, testing::fabric_of(1.3, {1}), {});
        EXPECT_NEAR(benefit.here.ratio, 1 / 1.3, 1e-6);
        EXPECT_NEAR(benefit.bounds.over_overlap, 4.0 / 3, 1e-9);
        ASSERT_EQ(benefit.curve.size(), 33U);
        EXPECT_NEAR(benefit.curve[16].ratio, 1, 1e-9);
        bool falls = false;
        double before = 0;
        for (const BenefitPoint& point : benefit.curve) {
            EXPECT_GE(point.no_overlap, point.as_is * (1 - 1e-12));
            EXPECT_GE(point.as_is, point.striped * (1 - 1e-12));
            EXPECT_GE(point.striped, point.layered * (1 - 1e-12));
            EXPECT_GE(point.layered, point.late * (1 - 1e-12));
            EXPECT_GE(point.late, point.merged * (1 - 1e-12));
            EXPECT_GE(point.merged, point.bound * (1 - 1e-12));
            EXPECT_GE(point.bound, point.compute * (1 - 1e-12));
            EXPECT_LE(point.no_overlap / point.layered, benefit.bounds.order * (1 + 1e-12));
            EXPECT_LE(point.as_is / point.layered, benefit.bounds.over_overlap * (1 + 1e-12));
            EXPECT_LE(point.no_overlap / point.merged,
                      benefit.bounds.three_resources * (1 + 1e-12));
            const double gain = point.no_overlap / point.layered;
            EXPECT_FALSE(falls && gain > before * (1 + 1e-9)) << shape.name << " " << point.ratio;
            falls = falls || gain < before * (1 - 1e-9);
            before = gain;
        }
    }
}

TEST(Adviser, AsksWhatIsMeantByAJobThatOnlyTransfers) {
    const Profile profile = testing::profile_of(testing::equal_shape(16));
    const auto asks = [&](double coverage) {
        for (const std::string& note :
             advise(profile, testing::fabric_of(coverage, {1}), {}).notes) {
            if (note.find("is the batch meant") != std::string::npos) {
                return true;
            }
        }
        return false;
    };
    EXPECT_TRUE(asks(150));
    EXPECT_FALSE(asks(50));
}

TEST(Adviser, IntervalFollowsTheSpread) {
    Profile profile = testing::profile_of(testing::equal_shape(8));
    for (Bucket& bucket : profile.buckets) {
        bucket.transfer = {0.125, 0.12, 0.14, 100};
    }
    const Advice advice = advise(profile, testing::fabric_of(1, {1}), {});
    EXPECT_NEAR(advice.coverage.low, 0.96, 1e-9);
    EXPECT_NEAR(advice.coverage.middle, 1, 1e-9);
    EXPECT_NEAR(advice.coverage.high, 1.12, 1e-9);
    EXPECT_LE(advice.gain_delay.low, advice.gain_delay.middle);
    EXPECT_LT(advice.gain_delay.low, advice.gain_delay.high);
}

TEST(Adviser, LinksThatAreNotTheMeasuredOnesAreNamed) {
    Profile profile = testing::profile_of(testing::equal_shape(8));
    for (Bucket& bucket : profile.buckets) {
        bucket.transfer = {0.125, 0.12, 0.14, 100};
    }
    const auto says = [&](double coverage) {
        for (const std::string& note :
             advise(profile, testing::fabric_of(coverage, {1}), {}).notes) {
            if (note.find("first link given") != std::string::npos) {
                return true;
            }
        }
        return false;
    };
    EXPECT_FALSE(says(1));
    EXPECT_TRUE(says(3));
    EXPECT_TRUE(says(0.3));
}

TEST(Adviser, MeasuredIterationBeyondTheModelIsOverhead) {
    Profile profile = testing::profile_of(testing::equal_shape(8));
    profile.iteration = {2, 1.9, 2.1, 50};
    const Advice advice = advise(profile, testing::fabric_of(0.5, {1}), {});
    EXPECT_GT(advice.overhead, 0.9);
    ASSERT_FALSE(advice.notes.empty());
    EXPECT_NE(advice.notes[0].find("stragglers"), std::string::npos);
}

TEST(Adviser, LinkFromTransfersIsMonotone) {
    Profile profile = testing::profile_of(testing::equal_shape(4));
    const double seconds[] = {0.35, 0.25, 0.36, 0.44};
    for (std::size_t i = 0; i < 4; ++i) {
        profile.buckets[i].bytes = (i + 1) * 1000000;
        profile.buckets[i].transfer = {seconds[i], seconds[i], seconds[i], 3};
    }
    Fabric fabric;
    fabric.links.push_back(link_from_transfers(profile));
    EXPECT_EQ(fabric.problem(), "");
    EXPECT_DOUBLE_EQ(fabric.links[0].seconds(1e6), 0.3);
    EXPECT_DOUBLE_EQ(fabric.links[0].seconds(2e6), 0.3);
    EXPECT_DOUBLE_EQ(fabric.links[0].seconds(4e6), 0.44);
    EXPECT_DOUBLE_EQ(fabric.links[0].seconds(3.5e6), 0.4);  // few sizes: a part takes its share
    profile.buckets[0].transfer = profile.buckets[1].transfer = {};
    profile.buckets[2].transfer = profile.buckets[3].transfer = {};
    EXPECT_TRUE(link_from_transfers(profile).name.empty());
}

TEST(Adviser, LinkFromTransfersSharesWhatIsOutOfOrderByTheByte) {
    Profile profile = testing::profile_of(testing::equal_shape(4));
    const double seconds[] = {0.3, 0.2, 0.4, 0.5};  // 0.1, 0.133 and 0.125 for each of the later MB
    for (std::size_t i = 0; i < 4; ++i) {
        profile.buckets[i].bytes = (i + 1) * 1000000;
        profile.buckets[i].transfer = {seconds[i], seconds[i], seconds[i], 3};
    }
    const Link link = link_from_transfers(profile);
    for (const double megabytes : {3.0, 4.0}) {
        EXPECT_NEAR(link.seconds(megabytes * 1e6), megabytes * 1.1 / 9, 1e-9);
    }
    EXPECT_NEAR(link.seconds(2e6), (0.3 + 2.2 / 9) / 2, 1e-9) << "and falls nowhere";
}

// A small bucket that was as fast as a burst: no plan may think that cutting makes bytes cheaper.
TEST(Adviser, LinkFromTransfersNeverTakesMorePerByteForMoreBytes) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        std::mt19937_64 random(seed);
        Profile profile = testing::profile_of(testing::equal_shape(6));
        for (Bucket& bucket : profile.buckets) {
            bucket.bytes = 1'000'000 * (1 + random() % 20);
            const double seconds = 1e-3 * static_cast<double>(1 + random() % 50);
            bucket.transfer = {seconds, seconds, seconds, 3};
        }
        Fabric fabric;
        fabric.links.push_back(link_from_transfers(profile));
        ASSERT_EQ(fabric.problem(), "") << seed;
        const CostCurve& cost = fabric.links[0].cost;
        double before = INFINITY;
        for (double bytes = 1e6; bytes < 2e7; bytes += 1e5) {
            EXPECT_LE(cost.seconds(bytes) / bytes, before * (1 + 1e-9)) << seed << " " << bytes;
            before = cost.seconds(bytes) / bytes;
        }
        EXPECT_LT(cost.best_rate(), INFINITY) << seed;
    }
}

}  // namespace
}  // namespace deft::planner
