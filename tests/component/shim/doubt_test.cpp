// SPDX-License-Identifier: Apache-2.0
// The leader's plans for iterations with a small sum, which may be no gradient. Each test is run
// with the settings it is named for.
#include "tests/component/shim/leader.h"

namespace deft::director::test {
namespace {

constexpr std::uint64_t kSmall = 512;  // floats

class Doubt : public Leader {
protected:
    // The second gradient hides behind the first: merging two iterations gains.
    void iterate_with_small(std::size_t place) {
        for (int i = 0; i < 20; ++i) {
            const std::int64_t begin = now_ms_;
            for (std::size_t bucket = 0; bucket < 2; ++bucket) {
                if (bucket == place) {
                    observe(kSmall, {{30, 125}, {1, 1}}, static_cast<int>(bucket), begin);
                }
                observe(kGradients[bucket], kHidden, static_cast<int>(bucket), begin);
            }
        }
    }
    // Gradients of one size, each in a buffer of its own or all in one.
    void iterate_equal(bool own_buffers) {
        for (std::uint64_t i = 0; i < 40; ++i) {
            CallRecord called = record(ordinal_, kGradients[0]);
            called.buffer = own_buffers ? 1 + i % 4 : 1;
            observe(called, kHidden, 0, now_ms_);
        }
    }
    void expect_nothing(const std::string& why = "may be no gradient") {
        ASSERT_TRUE(ticks_until([&] { return asked() > 0 || !director_->facts().reason.empty(); }));
        linger();
        EXPECT_EQ(asked(), 0U) << "it was planned for";
        EXPECT_NE(director_->facts().reason.find(why), std::string::npos)
            << director_->facts().reason;
    }
};

class InModeDeft : public Doubt {};

// As SyncBatchNorm makes one in backward: late, or zeros, it would falsify the gradients. Without
// either nothing gains.
TEST_F(InModeDeft, ASmallSumBetweenLargeOnesIsNeitherDelayedNorMerged) {
    iterate_with_small(1);
    expect_nothing();
}

// DDP's remainder, with find_unused_parameters: full buckets follow it.
TEST_F(InModeDeft, ASmallSumBeforeFullBucketsIsAGradient) {
    for (int i = 0; i < 20; ++i) {
        const std::int64_t begin = now_ms_;
        observe(kSmall, {{30, 125}, {1, 1}}, 0, begin);
        observe(kGradients[0], kHidden, 0, begin);
        observe(kGradients[0], kHidden, 0, begin);
        observe(kGradients[1], kHidden, 1, begin);
    }
    EXPECT_EQ(staged().predicted.max_merge, 2U);
}

// SyncBatchNorm in a model's head.
TEST_F(InModeDeft, ASmallSumBeforeDdpsFirstBucketIsNeitherDelayedNorMerged) {
    iterate_with_small(0);
    expect_nothing();
}

// One iteration that looks like four: late, each sum would come in the next gradient's place.
TEST_F(InModeDeft, EqualGradientsInBuffersOfTheirOwnAreNeitherDelayedNorMerged) {
    iterate_equal(true);
    expect_nothing("change their buffers");
    // The job's next phase has one gradient of that size: it was not for good.
    iterate_equal(false);
    const planner::Plan plan = staged();
    EXPECT_TRUE(plan.predicted.max_merge > 1 || plan.predicted.max_delay > 0);
}

TEST_F(InModeDeft, AnOnlyGradientIsDelayedOrMerged) {
    iterate_equal(false);
    const planner::Plan plan = staged();
    EXPECT_TRUE(plan.predicted.max_merge > 1 || plan.predicted.max_delay > 0);
}

class WithLanes : public Doubt {};

// Another network takes a part of every call, whatever that sums: it is asked for and measured.
TEST_F(WithLanes, TransfersMayBeCut) {
    iterate_with_small(1);
    const Heard first = hear();
    ASSERT_EQ(first.order.kind, Kind::Stage);
    EXPECT_EQ(first.order.plan, "") << "lanes alone";
    stage_ = first.serial;
    answer(Step::Learned);
    EXPECT_EQ(heard(Kind::Open).order.lanes.size(), 2U);
    answer(Step::Ready);
    // Then the plan, for times that are taken anew. The fake's network is faster by far.
    for (int i = 0; i < 50 && asked() < 3; ++i) {
        iterate_with_small(1);
        linger(std::chrono::milliseconds(20));
    }
    const planner::Plan plan = staged();
    EXPECT_EQ(plan.links.size(), 2U);
    EXPECT_EQ(plan.predicted.max_delay, 0U);
    EXPECT_EQ(plan.predicted.max_merge, 1U);
}

class Named : public Doubt {};

TEST_F(Named, APlanOfTheOperatorsIsCarriedOutAllTheSame) {
    iterate_with_small(1);
    EXPECT_EQ(staged().predicted.max_merge, 2U);
}

class InModeCovap : public Doubt {};

TEST_F(InModeCovap, NothingIsPlanned) {
    iterate_with_small(1);
    expect_nothing();
}

TEST_F(InModeCovap, NothingIsPlannedForEqualGradientsInBuffersOfTheirOwn) {
    iterate_equal(true);
    expect_nothing("change their buffers");
}

}  // namespace
}  // namespace deft::director::test
