// SPDX-License-Identifier: Apache-2.0
// What is tried, and what is made of the times.
#include "shim/tuning/judgement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace deft::tuning {
namespace {

constexpr CollectiveChoice kRing{DEFT_TUNER_RING, DEFT_TUNER_SIMPLE, 0};
constexpr CollectiveChoice kTree{DEFT_TUNER_TREE, DEFT_TUNER_SIMPLE, 0};

JobCalls::Repeated call_of(Function function, int type, CollectiveChoice own) {
    JobCalls::Repeated call;
    call.key = key_of(function, 1 << 20, type, DEFT_NCCL_SUM);
    call.offer.own = own;
    for (const int algorithm : {DEFT_TUNER_TREE, DEFT_TUNER_RING, DEFT_TUNER_NVLS}) {
        for (const int protocol : {DEFT_TUNER_LL, DEFT_TUNER_SIMPLE}) {
            call.offer.available |= CollectiveOffer::bit_of(algorithm, protocol);
        }
    }
    call.offer.worth = call.offer.available;
    return call;
}

bool tries(const std::vector<CollectiveChoice>& ways, int algorithm) {
    return std::any_of(ways.begin(), ways.end(),
                       [algorithm](const auto& way) { return way.algorithm == algorithm; });
}

TEST(Ways, AreThoseThatNcclHasAndNcclsOwnIsTheFirst) {
    const auto ways = tuning::ways(call_of(Function::AllReduce, DEFT_NCCL_FLOAT32, kRing), {4});
    ASSERT_EQ(ways.size(), 4u) << "ring LL, tree LL, tree Simple";
    EXPECT_TRUE(ways.front().own());
    EXPECT_EQ(std::count(ways.begin(), ways.end(), kRing), 0) << "it is NCCL's own";
    EXPECT_FALSE(tries(ways, DEFT_TUNER_NVLS)) << "it needs hardware, and NCCL knows better";
}

TEST(Ways, LeaveOutWhatNcclThinksFarFromTheBest) {
    JobCalls::Repeated call = call_of(Function::AllReduce, DEFT_NCCL_FLOAT32, kRing);
    call.offer.worth = CollectiveOffer::bit_of(DEFT_TUNER_TREE, DEFT_TUNER_SIMPLE);
    EXPECT_EQ(ways(call, {4}), (std::vector<CollectiveChoice>{{}, kTree}));
}

TEST(Ways, LeaveSpecialHardwareAlone) {
    const auto call =
        call_of(Function::AllReduce, DEFT_NCCL_FLOAT32, {DEFT_TUNER_NVLS, DEFT_TUNER_SIMPLE, 0});
    EXPECT_EQ(ways(call, {4}).size(), 1u);
    for (const int own : {DEFT_TUNER_NVLS, DEFT_TUNER_NVLS_TREE, DEFT_TUNER_COLLNET_CHAIN}) {
        const CollectiveChoice special{static_cast<std::int8_t>(own), DEFT_TUNER_SIMPLE, 0};
        EXPECT_EQ(narrower({}, {}, special, {4}).size(), 1u) << "nor are its channels changed";
    }
}

TEST(Ways, WithoutMemoryForConnectionsKeepTheAlgorithm) {
    Freedom freedom{4};
    freedom.algorithms = false;
    const auto call = call_of(Function::AllReduce, DEFT_NCCL_FLOAT32, kRing);
    EXPECT_FALSE(tries(ways(call, freedom), DEFT_TUNER_TREE));
    EXPECT_TRUE(tries(ways(call, freedom), DEFT_TUNER_RING)) << "another protocol";
}

TEST(Ways, NeverRoundMoreOften) {
    const auto own_tree = [](int type) {
        return call_of(Function::AllReduce, type, {DEFT_TUNER_TREE, DEFT_TUNER_LL, 0});
    };
    EXPECT_FALSE(tries(ways(own_tree(DEFT_NCCL_FLOAT8_E4M3), {4}), DEFT_TUNER_RING));
    EXPECT_FALSE(tries(ways(own_tree(DEFT_NCCL_BFLOAT16), {16}), DEFT_TUNER_RING));
    EXPECT_TRUE(tries(ways(own_tree(DEFT_NCCL_BFLOAT16), {8}), DEFT_TUNER_RING));
    EXPECT_TRUE(tries(ways(own_tree(DEFT_NCCL_FLOAT32), {16}), DEFT_TUNER_RING));
    EXPECT_TRUE(tries(ways(own_tree(DEFT_NCCL_FLOAT8_E4M3), {2}), DEFT_TUNER_RING))
        << "two numbers are added but once";
    const auto gather =
        call_of(Function::AllGather, DEFT_NCCL_FLOAT8_E4M3, {DEFT_TUNER_TREE, DEFT_TUNER_LL, 0});
    EXPECT_TRUE(tries(ways(gather, {64}), DEFT_TUNER_RING)) << "nothing is added";
}

TEST(Ways, ChannelsBecomeFewerUnlessTheJobHasNamedThem) {
    EXPECT_EQ(narrower({}, kTree, kRing, {2}).size(), 4u);
    Freedom freedom{2};
    freedom.channels = false;
    EXPECT_EQ(narrower({}, kTree, kRing, freedom), std::vector<CollectiveChoice>{kTree});
}

TEST(Ways, KeepTheOrderOfAdditionWhereTheOperatorWantsIt) {
    Freedom freedom{4};
    freedom.reorder = false;
    const auto sum = call_of(Function::ReduceScatter, DEFT_NCCL_FLOAT32, kRing);
    EXPECT_EQ(ways(sum, freedom).size(), 1u);
    EXPECT_EQ(narrower(sum.key, {}, kRing, freedom).size(), 1u) << "channels move chunks";
    const auto gather = call_of(Function::AllGather, DEFT_NCCL_FLOAT32, kRing);
    EXPECT_GT(ways(gather, freedom).size(), 1u) << "nothing is added";
    const auto integers = call_of(Function::AllReduce, DEFT_NCCL_INT32, kRing);
    EXPECT_GT(ways(integers, freedom).size(), 1u);
    freedom.nranks = 2;
    EXPECT_GT(ways(sum, freedom).size(), 1u) << "a + b is b + a";
    JobCalls::Repeated scaled = sum;
    scaled.key.op = DEFT_NCCL_NUM_OPS;
    EXPECT_EQ(ways(scaled, freedom).size(), 1u) << "s * a + b is another thing";
}

TEST(Judgement, ACallTakesAsLongAsOnTheRankThatCameLast) {
    const Times one{{10, 50, 7}};
    const Times other{{12, 9, 0}};
    EXPECT_EQ(least({one, other}), (Times{{10, 9, 0}})) << "0: nobody knows";
    std::uint64_t serial = 0;
    Times read;
    ASSERT_TRUE(decode(encode(5, one), serial, read));
    EXPECT_EQ(serial, 5u);
    EXPECT_EQ(read, one);
    const std::vector<std::byte> bytes = encode(5, one);
    EXPECT_FALSE(decode(std::span(bytes).first(20), serial, read));
}

TEST(Judgement, ComparesIterationsNextToEachOther) {
    std::vector<std::int64_t> begins{1};
    double drift = 1;
    for (std::uint32_t window = 0; window < kWindows; ++window) {
        const double length = (window % 2 == 1 ? 0.8 : 1.0) * drift * 1e9;
        drift *= 1.05;
        begins.push_back(begins.back() + static_cast<std::int64_t>(length));
    }
    const std::vector<double> ratios = ratios_of(begins);
    ASSERT_EQ(ratios.size(), kWindows / 2);
    for (const double ratio : ratios) {
        EXPECT_NEAR(ratio, 0.8, 0.01) << "the job becomes slower all the time";
    }
    EXPECT_NEAR(median_of(ratios), 0.8, 0.01);
    begins[4] = 0;
    EXPECT_TRUE(ratios_of(begins).empty()) << "a window's beginning was missed";
    EXPECT_TRUE(ratios_of({}).empty());
}

TEST(Judgement, AComparisonGoesOnWhileItsWindowsDisagree) {
    EXPECT_TRUE(clear({0.9, 0.8, 0.95, 0.98, 0.9}, kGain));
    EXPECT_TRUE(clear({1.1, 1.2, 1.3, 1.0, 1.1}, kGain));
    EXPECT_FALSE(clear({0.9, 0.8, 1.0, 0.98, 0.9}, kGain));
    EXPECT_FALSE(clear({1.1, 1.2, 0.9, 1.0, 1.1}, kGain));
    const std::vector<double> two_parts{0.9, 1.2, 0.9, 1.2, 0.9, 0.9, 1.2, 0.9, 1.2, 0.9};
    EXPECT_TRUE(clear(two_parts, kGain)) << "the median of two parts counts";
    EXPECT_EQ(median_of(two_parts), 0.9);
}

// A narrower way that takes as long is kept nearly always; one that takes 2 % more hardly ever,
// though windows differ by 1 %.
TEST(Judgement, AComparisonIsSeldomWrong) {
    std::mt19937 random(1);
    std::normal_distribution<double> noise(0, 0.01);
    const auto kept = [&](double truth) {
        int kept = 0;
        for (int job = 0; job < 1'000; ++job) {
            std::vector<double> ratios;
            do {
                for (std::uint32_t i = 0; i < kWindows / 2; ++i) {
                    ratios.push_back(truth + noise(random));
                }
            } while (!clear(ratios, kAboutAsLong));
            kept += median_of(ratios) <= kAboutAsLong ? 1 : 0;
        }
        return kept;
    };
    EXPECT_GT(kept(1), 800);
    EXPECT_LT(kept(1.02), 5);
}

SeenCall seen(const Key& key, std::uint64_t ordinal, std::uint32_t available) {
    SeenCall call;
    call.key = key;
    call.ordinal = ordinal;
    call.offer.available = available;
    return call;
}

TEST(JobCalls, KnowsWhatIsRepeatedAndWhatNcclAsksFor) {
    JobCalls job;
    const Key large = key_of(Function::AllReduce, 1 << 20, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM);
    const Key small = key_of(Function::AllReduce, 16, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM);
    const Key unasked = key_of(Function::AllGather, 1 << 20, DEFT_NCCL_FLOAT32, -1);
    const Key seldom = key_of(Function::AllReduce, 1 << 22, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM);
    std::uint64_t ordinal = 0;
    for (int i = 0; i < 10; ++i) {
        job.note(seen(small, ordinal++, 6));
        job.note(seen(large, ordinal++, 6));
        job.note(seen(unasked, ordinal++, i == 5 ? 0 : 6));
    }
    job.note(seen(seldom, ordinal++, 6));
    const auto most = job.most(8, 10, 16, 2);
    ASSERT_EQ(most.size(), 2u);
    EXPECT_EQ(most[0].key, large);
    EXPECT_EQ(most[1].key, small);
    EXPECT_FALSE(job.find(unasked)->steady) << "once NCCL did not ask";
    EXPECT_EQ(job.most(8, 10, 1, 2).size(), 1u);
}

// Of a kind that the job does not make any more no trial would ever end.
TEST(JobCalls, KnowsWhatIsStillMade) {
    JobCalls job;
    const Key first = key_of(Function::AllReduce, 16, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM);
    const Key later = key_of(Function::AllReduce, 32, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM);
    for (std::uint64_t ordinal = 0; ordinal < 20; ++ordinal) {
        job.note(seen(ordinal < 10 ? first : later, ordinal, 6));
    }
    const auto most = job.most(8, 10, 16, 2);
    ASSERT_EQ(most.size(), 1u);
    EXPECT_EQ(most[0].key, later);
    EXPECT_EQ(job.most(8, 11, 16, 2).size(), 2u);
}

TEST(JobCalls, SizesWithoutEndTakeNoMemoryWithoutEnd) {
    JobCalls job;
    for (std::uint64_t i = 0; i < 10 * JobCalls::kKept; ++i) {
        job.note(seen(key_of(Function::AllReduce, i, DEFT_NCCL_FLOAT32, 0), i, 6));
    }
    EXPECT_EQ(job.most(1, 1'000'000, 100'000, 2).size(), JobCalls::kKept);
}

}  // namespace
}  // namespace deft::tuning
