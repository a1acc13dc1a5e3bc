// SPDX-License-Identifier: Apache-2.0
// The leader's plans for iterations with a small sum, which may be no gradient. Each test is run
// with the settings it is named for.
#include <functional>
#include <utility>

#include "tests/component/shim/control/leader.h"

namespace deft::director::test {
namespace {

constexpr std::uint64_t kSmall = 512;  // floats
// Sent at 200 MB/s by the job.
constexpr std::uint64_t kLarge[] = {5'000'000, 1'500'000};

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
    // And behind them DDP's map of the parameters that were used, or none.
    void iterate_with_map(bool map_is_sent = true) {
        for (int i = 0; i < 20; ++i) {
            const std::int64_t begin = now_ms_;
            for (int bucket = 0; bucket < 2; ++bucket) {
                observe(kGradients[bucket], kHidden, bucket, begin);
            }
            if (!map_is_sent) {
                continue;
            }
            CallRecord map = record(CallRecord::kNoOrdinal, 60);
            map.type = DEFT_NCCL_INT32;
            observe(map, {{30, 125}, {1, 1}}, 1, begin);
            --ordinal_;  // it has none
        }
    }
    // Two large gradients, the first of them float16, which has half as many bytes a number.
    void iterate_large(bool half) {
        const std::uint64_t count = half ? 2 * kLarge[0] : kLarge[0];
        iterate_so(20, [this, half, count] {
            const std::int64_t begin = now_ms_;
            job_->make(*director_, ordinal_, count);
            job_->make(*director_, ordinal_ + 1, kLarge[1]);
            CallRecord first = record(ordinal_, count);
            first.type = half ? DEFT_NCCL_FLOAT16 : DEFT_NCCL_FLOAT32;
            observe(first, kHidden, 0, begin);
            observe(kLarge[1], kHidden, 1, begin);
        });
    }
    // The lanes of DEFT_LANES are made and measured; then the plan, for times that are taken anew.
    template <class Iterate>
    planner::Plan staged_over_lanes(Iterate iterate) {
        iterate();
        const Heard first = hear();
        EXPECT_EQ(first.order.kind, Kind::Stage);
        EXPECT_EQ(first.order.plan, "") << "lanes alone";
        stage_ = first.serial;
        answer(Step::Learned);
        EXPECT_EQ(opened().lanes.size(), 2U);
        answer(Step::Ready);
        for (int i = 0; i < 50 && asked() < 3; ++i) {
            iterate();
            linger(std::chrono::milliseconds(20));
        }
        return staged();
    }
    void expect_exact(const planner::Plan& plan) {
        EXPECT_EQ(plan.links.size(), 2U);
        EXPECT_EQ(plan.predicted.max_delay, 0U);
        EXPECT_EQ(plan.predicted.max_merge, 1U);
    }
    // The follower makes its lanes, and finds its card full.
    void refuse_for_memory(const planner::Plan& plan) {
        EXPECT_TRUE(plan.predicted.late_or_merged());
        answer(Step::Learned);
        opened();
        answer(Step::Unfit, false, "no memory");
        heard(Kind::Discard);
    }
    void expect_not_again() {
        EXPECT_EQ(hear().order.kind, Kind::Close) << "nothing uses the lane";
        linger(std::chrono::milliseconds(1200));  // what may pass is tried again after a second
        EXPECT_EQ(asked(), 4U) << "it was staged again";
        EXPECT_EQ(director_->facts().reason, "rank 1: no memory");
    }
    // Gradients of one size, each in a buffer of its own or all in one.
    void iterate_equal(bool own_buffers) {
        iterate_so(10, [this, own_buffers] {
            for (std::uint64_t i = 0; i < 4; ++i) {
                job_->make(*director_, ordinal_, kGradients[0]);
                CallRecord called = record(ordinal_, kGradients[0]);
                called.buffer = own_buffers ? 1 + i : 1;
                observe(called, kHidden, 0, now_ms_);
            }
        });
    }
    void expect_nothing(const std::string& why = "may be no gradient") {
        ASSERT_TRUE(ticks_until([&] { return asked() > 0 || !director_->facts().reason.empty(); }));
        linger();
        EXPECT_EQ(asked(), 0U) << "it was planned for";
        EXPECT_NE(director_->facts().reason.find(why), std::string::npos)
            << director_->facts().reason;
    }

private:
    void iterate_so(int times, std::function<void()> iteration) {
        goes_on_ = std::move(iteration);
        for (int i = 0; i < times; ++i) {
            goes_on_();
        }
    }
    void iterate_anyhow() override { goes_on_ ? goes_on_() : Leader::iterate_anyhow(); }

    std::function<void()> goes_on_;  // an iteration as the last ones; empty: an iteration of Leader
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
        for (std::uint64_t equal = 1; equal <= 2; ++equal) {
            CallRecord called = record(ordinal_, kGradients[0]);
            called.buffer = equal;
            observe(called, kHidden, 0, begin);
        }
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
    EXPECT_TRUE(plan.predicted.late_or_merged());
}

// The job's next phase has four gradients of the size that the only one had: the same calls.
TEST_F(InModeDeft, APlanIsNotTakenUpAgainForAPartOfAnIteration) {
    iterate_equal(false);
    const planner::Plan plan = staged();
    EXPECT_TRUE(plan.predicted.late_or_merged());
    answer(Step::Refused, true, "its network was down");
    heard(Kind::Drop);
    track_.feed(record(ordinal_++, kGradients[1]));
    iterate_equal(true);
    ASSERT_TRUE(ticks_until([&] {
        return director_->facts().reason.find("change their buffers") != std::string::npos;
    })) << director_->facts().reason;
    linger();
    EXPECT_EQ(asked(), 2U) << "it was staged again";
    iterate_equal(false);
    EXPECT_EQ(staged().policy, plan.policy) << "it was for that phase alone";
}

TEST_F(InModeDeft, HalfPrecisionIsNeitherDelayedNorMerged) {
    iterate_large(true);
    expect_nothing("float16");
}

// A bucket's sum that comes when its parameters are not used is thrown away by DDP.
TEST_F(InModeDeft, BucketsBesideAMapOfUsedParametersAreNeitherDelayedNorMerged) {
    iterate_with_map();
    expect_nothing("unused parameters");
}

TEST_F(InModeDeft, BucketsAreMergedOnceTheMapStaysAway) {
    iterate_with_map();
    expect_nothing("unused parameters");
    iterate_with_map(false);
    EXPECT_EQ(staged().predicted.max_merge, 2U);
}

// Its plan comes back with it; what was decided beside the map was for that phase alone.
TEST_F(InModeDeft, APlanIsTakenUpAgainOnceTheMapStaysAway) {
    iterate_with_map(false);
    EXPECT_EQ(staged().predicted.max_merge, 2U);
    answer(Step::Refused, true, "its network was down");
    heard(Kind::Drop);
    iterate_with_map();
    ASSERT_TRUE(ticks_until([&] {
        return director_->facts().reason.find("unused parameters") != std::string::npos;
    })) << director_->facts().reason;
    linger(std::chrono::milliseconds(1200));  // what may pass is tried again after a second
    EXPECT_EQ(asked(), 2U) << "it was staged again";
    iterate_with_map(false);
    EXPECT_EQ(staged().predicted.max_merge, 2U);
}

// Where one network is all there is, nothing gains that is neither late nor merged.
TEST_F(InModeDeft, WhatARankHasNoMemoryForIsNotStagedAgainAtOnce) {
    iterate_equal(false);
    refuse_for_memory(staged());
    expect_not_again();
}

TEST_F(InModeDeft, AnOnlyGradientIsDelayedOrMerged) {
    iterate_equal(false);
    const planner::Plan plan = staged();
    EXPECT_TRUE(plan.predicted.late_or_merged());
}

class WithLanes : public Doubt {
protected:
    // Twice as fast as the job: over both networks a transfer is still worth hiding.
    void SetUp() override {
        ASSERT_NO_FATAL_FAILURE(Doubt::SetUp());
        g_lanes.ns_per_kib = 2560;
    }
};

TEST_F(WithLanes, LargeGradientsAreDelayedOrMerged) {
    const planner::Plan plan = staged_over_lanes([this] { iterate_large(false); });
    EXPECT_TRUE(plan.predicted.late_or_merged());
}

// Another network takes a part of every call, whatever that sums: it is asked for and measured.
TEST_F(WithLanes, TransfersMayBeCut) {
    expect_exact(staged_over_lanes([this] { iterate_with_small(1); }));
}

TEST_F(WithLanes, HalfPrecisionIsCutButNeitherDelayedNorMerged) {
    expect_exact(staged_over_lanes([this] { iterate_large(true); }));
}

TEST_F(WithLanes, WhereARankHasNoMemoryTransfersAreCut) {
    refuse_for_memory(staged_over_lanes([this] { iterate_large(false); }));
    expect_exact(staged());
}

class WithLanesButNoMemory : public WithLanes {};

TEST_F(WithLanesButNoMemory, TransfersAreCutButNeitherDelayedNorMerged) {
    expect_exact(staged_over_lanes([this] { iterate_large(false); }));
}

class WithoutMemory : public Doubt {};

TEST_F(WithoutMemory, NothingIsStagedThatNoRankCouldCarryOut) {
    iterate_large(false);
    expect_nothing("DEFT_MAX_SHADOW_BYTES");
}

class Named : public Doubt {};

TEST_F(Named, APlanOfTheOperatorsIsCarriedOutAllTheSame) {
    iterate_with_small(1);
    EXPECT_EQ(staged().predicted.max_merge, 2U);
}

TEST_F(Named, APlanOfTheOperatorsIsCarriedOutBesideAMapOfUsedParameters) {
    iterate_with_map();
    EXPECT_EQ(staged().predicted.max_merge, 2U);
}

// To where it comes into force: every rank can carry it out.
TEST_F(Named, APlanOfTheOperatorsDelaysAndMergesHalfPrecision) {
    iterate_large(true);
    EXPECT_EQ(staged().predicted.max_merge, 2U);
    armed();
}

TEST_F(Named, APlanOfTheOperatorsThatARankHasNoMemoryForIsNotStagedAgainAtOnce) {
    iterate_large(false);
    refuse_for_memory(staged());
    expect_not_again();
}

class InModeCovap : public Doubt {};

TEST_F(InModeCovap, NothingIsPlannedForHalfPrecision) {
    iterate_large(true);
    expect_nothing("float16");
}

TEST_F(InModeCovap, NothingIsPlannedBesideAMapOfUsedParameters) {
    iterate_with_map();
    expect_nothing("unused parameters");
}

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
