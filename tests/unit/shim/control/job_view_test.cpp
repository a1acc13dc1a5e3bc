// SPDX-License-Identifier: Apache-2.0
// What is said of a job's cycle, and how two ranks' views of one are brought together.
#include "shim/control/job_view.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>

namespace deft::director {
namespace {

CallRecord call(Function function, std::uint64_t count, std::uint64_t ordinal) {
    CallRecord record;
    record.function = function;
    record.count = count;
    record.type = DEFT_NCCL_FLOAT32;
    record.op = DEFT_NCCL_SUM;
    record.nranks = 4;
    record.device = 0;
    record.comm_serial = 1;
    record.ordinal = ordinal;
    return record;
}

// What is said of a job with this iteration.
JobView view_of(const std::vector<CallRecord>& iteration, std::uint32_t comm_serial = 1) {
    Track track;
    std::map<std::uint32_t, std::array<std::uint64_t, kSeries>> ordinals;
    for (int i = 0; i < 8; ++i) {
        for (CallRecord record : iteration) {
            // As the hooks number them.
            std::uint64_t& next =
                ordinals[record.comm_serial][static_cast<std::size_t>(series_of(record.function))];
            record.ordinal = is_numbered(record) ? next++ : CallRecord::kNoOrdinal;
            track.feed(record);
        }
    }
    return view_job(track, comm_serial, false);
}

CallRecord on(std::uint32_t comm_serial, CallRecord record) {
    record.comm_serial = comm_serial;
    return record;
}

// FSDP: parameters are gathered twice, gradients scattered.
const std::vector<CallRecord> kFsdp{
    call(Function::AllGather, 50'000, 0), call(Function::AllGather, 60'000, 0),
    call(Function::AllGather, 50'000, 0), call(Function::ReduceScatter, 60'000, 0),
    call(Function::ReduceScatter, 50'000, 0)};

TEST(View, LooksAtShardsInTheirOrder) {
    const JobView view = view_of(kFsdp);
    ASSERT_EQ(view.reason, "");
    EXPECT_EQ(view.series, Series::Shards);
    ASSERT_EQ(view.gradients.size(), kFsdp.size());
    for (std::size_t i = 0; i < kFsdp.size(); ++i) {
        EXPECT_EQ(view.gradients[i].function, kFsdp[i].function);
        EXPECT_EQ(view.gradients[i].count, kFsdp[i].count);
    }
    EXPECT_EQ(view.start % kFsdp.size(), 0U);
    std::vector<CallRecord> other = kFsdp;
    other[3].function = Function::AllGather;
    EXPECT_NE(view_of(other).signature, view.signature);
    EXPECT_EQ(view_of(other).series, Series::Shards) << "gathered alone, as when it is evaluated";
    // In groups too; and a norm that is summed over the same ranks is no call of a plan's.
    std::vector<CallRecord> grouped = kFsdp;
    grouped.push_back(call(Function::AllReduce, 1, 0));
    for (CallRecord& record : grouped) {
        record.group = 7;
    }
    EXPECT_EQ(view_of(grouped).reason, "");
    EXPECT_EQ(view_of(grouped).signature, view.signature);
}

TEST(View, JudgesEachCommunicatorByItself) {
    // HSDP: shards are summed over replicas.
    std::vector<CallRecord> hsdp;
    for (const CallRecord& record : kFsdp) {
        hsdp.push_back(record);
        if (record.function == Function::ReduceScatter) {
            hsdp.push_back(on(2, call(Function::AllReduce, record.count, 0)));
        }
    }
    const JobView shards = view_of(hsdp);
    EXPECT_EQ(shards.reason, "");
    EXPECT_EQ(shards.signature, view_of(kFsdp).signature);
    const JobView sums = view_of(hsdp, 2);
    EXPECT_EQ(sums.reason, "");
    EXPECT_EQ(sums.series, Series::Sums);
    EXPECT_EQ(sums.gradients.size(), 2U);
    ASSERT_NE(sums.beside, nullptr);
    EXPECT_NE(std::string(doubt_about(sums)).find("reduce-scatter"), std::string::npos);
    EXPECT_NE(std::string(doubt_about_proven(sums)).find("reduce-scatter"), std::string::npos);

    // Megatron: activations are reduced over the tensor-parallel group, gradients over another.
    const CallRecord bucket = call(Function::AllReduce, 100'000, 0);
    const std::vector<CallRecord> megatron{on(2, call(Function::AllReduce, 200'000, 0)), bucket};
    const JobView gradients = view_of(megatron);
    EXPECT_EQ(gradients.gradients.size(), 1U);
    ASSERT_NE(gradients.beside, nullptr);
    EXPECT_NE(std::string(doubt_about(gradients)).find("several communicators"), std::string::npos);
    EXPECT_EQ(view_of(megatron, 2).gradients.front().count, 200'000U);
    EXPECT_NE(view_of(megatron, 3).reason.find("another communicator"), std::string::npos);

    // What is gathered beside gradients of its own is none of them.
    const JobView gathers = view_of({call(Function::AllGather, 9'000, 0), bucket});
    EXPECT_EQ(gathers.series, Series::Sums);
    EXPECT_EQ(gathers.gradients.size(), 1U);
    EXPECT_EQ(gathers.beside, nullptr);
}

TEST(View, NamesWhatItLeavesAlone) {
    const CallRecord bucket = call(Function::AllReduce, 100'000, 0);
    const CallRecord other = call(Function::AllReduce, 200'000, 0);
    EXPECT_EQ(view_of({bucket, other}).reason, "");
    EXPECT_EQ(view_of({bucket, other}).gradients.size(), 2U);

    CallRecord grouped = bucket;
    grouped.group = 1;
    EXPECT_NE(view_of({grouped, other}).reason.find("groups"), std::string::npos);
    CallRecord scaled = bucket;
    scaled.op = DEFT_NCCL_NUM_OPS + 3;
    EXPECT_NE(view_of({scaled, other}).reason.find("of the job's own"), std::string::npos);
    CallRecord alone = bucket;
    alone.nranks = 1;
    EXPECT_NE(view_of({alone}).reason.find("one rank"), std::string::npos);
    // Metrics only: nothing of it is a gradient.
    EXPECT_NE(view_of({call(Function::AllReduce, 1, 0), call(Function::Broadcast, 100'000, 0)})
                  .reason.find("no"),
              std::string::npos);
}

// Of float32, in bytes.
std::vector<Gradient> sums(std::initializer_list<std::uint64_t> sizes) {
    std::vector<Gradient> gradients;
    for (const std::uint64_t size : sizes) {
        gradients.push_back({size / 4, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM});
    }
    return gradients;
}

TEST(View, DoubtsSmallSumsAmongMuchLargerOnes) {
    constexpr std::uint64_t kKiB = 1024;
    constexpr std::uint64_t kMiB = 1024 * kKiB;
    // The sums of SyncBatchNorm, from 128 to 2048 channels, between the buckets of DDP.
    EXPECT_NE(doubt_about(sums({16 * kKiB, kMiB, 4 * kKiB, 25 * kMiB, kKiB, 9 * kMiB})), nullptr);
    EXPECT_NE(doubt_about(sums({kMiB, 16 * kKiB, 25 * kMiB})), nullptr);
    EXPECT_NE(doubt_about(sums({kMiB, 25 * kMiB, kKiB, 100 * kKiB})), nullptr);
    // The remainder of DDP's parameters may have any size. It comes first where DDP looks for
    // unused parameters.
    EXPECT_EQ(doubt_about(sums({kMiB, 25 * kMiB, kKiB})), nullptr);
    EXPECT_EQ(doubt_about(sums({kKiB, 25 * kMiB, 28 * kMiB, kMiB})), nullptr);
    EXPECT_EQ(doubt_about(sums({kKiB, 25 * kMiB, 28 * kMiB, 150 * kMiB})), nullptr);
    // But SyncBatchNorm in a model's head comes before DDP's first bucket.
    EXPECT_NE(doubt_about(sums({2 * kKiB, kMiB, 25 * kMiB, 25 * kMiB, 9 * kMiB})), nullptr);
    EXPECT_NE(doubt_about(sums({2 * kKiB, kMiB, 25 * kMiB, 9 * kMiB})), nullptr);
    EXPECT_NE(doubt_about(sums({2 * kKiB, 2 * kMiB, kMiB})), nullptr);
    EXPECT_NE(doubt_about(sums({2 * kKiB, 2 * kMiB})), nullptr);
    // There is one of each module, and they look like SyncBatchNorm's.
    EXPECT_NE(doubt_about(sums({kMiB, 25 * kMiB, kKiB, 25 * kMiB, kMiB})), nullptr);
    EXPECT_NE(doubt_about(sums({kKiB, 25 * kMiB, kMiB, kKiB})), nullptr);
    EXPECT_EQ(doubt_about(sums({kKiB})), nullptr);
    EXPECT_EQ(doubt_about(sums({})), nullptr);
    // A small model has small buckets, none of them much smaller than the others.
    EXPECT_EQ(doubt_about(sums({26 * kKiB, 24 * kKiB, 64 * kKiB, 24 * kKiB, 2 * kKiB})), nullptr);
    EXPECT_EQ(doubt_about(sums({4 * kKiB, 64 * kKiB, 40 * kKiB})), nullptr);
    EXPECT_EQ(doubt_about(sums({40 * kKiB, 4 * kKiB, 64 * kKiB})), nullptr);
    EXPECT_NE(doubt_about(sums({40 * kKiB, 4 * kKiB - 4, 64 * kKiB})), nullptr);
    // Nor are all that are much smaller than the others small.
    EXPECT_EQ(doubt_about(sums({kMiB, 64 * kKiB, 25 * kMiB})), nullptr);
    EXPECT_NE(doubt_about(sums({kMiB, 64 * kKiB - 4, 25 * kMiB})), nullptr);
    // What is done about it is a matter of the mode.
    EXPECT_EQ(view_of({call(Function::AllReduce, 4096, 0), call(Function::AllReduce, 9'000'000, 0),
                       call(Function::AllReduce, 2'000'000, 0)})
                  .reason,
              "");
}

TEST(View, LeavesHalfPrecisionAsItIs) {
    std::vector<Gradient> gradients = sums({25 << 20, 25 << 20});
    EXPECT_EQ(doubt_about(gradients), nullptr);
    gradients[1].type = DEFT_NCCL_BFLOAT16;
    EXPECT_EQ(doubt_about(gradients), nullptr) << "it needs no scale";
    gradients[1].type = DEFT_NCCL_FLOAT16;
    EXPECT_NE(doubt_about(gradients), nullptr) << "one is enough";
}

TEST(View, DoubtsEqualGradientsInManyBuffers) {
    const auto in_buffers = [](std::uint64_t buffers) {
        std::vector<CallRecord> iteration;
        for (std::uint64_t i = 0; i < 8; ++i) {
            iteration.push_back(call(Function::AllReduce, 100'000, 0));
            iteration.back().buffer = 1 + i % buffers;
        }
        return view_of(iteration);
    };
    const JobView eight = in_buffers(8);
    EXPECT_EQ(eight.reason, "");
    EXPECT_EQ(eight.gradients.size(), 1U) << "it looks like eight iterations";
    EXPECT_FALSE(eight.whole);
    EXPECT_NE(doubt_about(eight), nullptr);
    EXPECT_EQ(doubt_about(eight.gradients), nullptr);
    EXPECT_TRUE(in_buffers(1).whole);
    EXPECT_EQ(doubt_about(in_buffers(1)), nullptr);
}

// With find_unused_parameters, behind the buckets.
TEST(View, DoubtsGradientsBesideAMapOfUsedParameters) {
    CallRecord first = call(Function::AllReduce, 1'000'000, 0);
    CallRecord second = call(Function::AllReduce, 2'000'000, 0);
    first.buffer = 1;
    second.buffer = 2;
    CallRecord map = call(Function::AllReduce, 60, 0);
    map.buffer = 3;
    map.in_place = true;
    map.type = DEFT_NCCL_INT32;
    const auto doubted = [&](const CallRecord& small) {
        const JobView view = view_of({first, second, small});
        EXPECT_EQ(view.reason, "");
        EXPECT_TRUE(view.whole);
        return doubt_about(view) != nullptr;
    };
    EXPECT_TRUE(doubted(map));
    const auto changed = [&map](auto change) {
        CallRecord other = map;
        change(other);
        return other;
    };
    EXPECT_FALSE(doubted(changed([](CallRecord& c) { c.count = 1; }))) << "a metric or a flag";
    EXPECT_FALSE(doubted(changed([](CallRecord& c) { c.type = DEFT_NCCL_INT64; })));
    EXPECT_FALSE(doubted(changed([](CallRecord& c) { c.type = DEFT_NCCL_FLOAT32; })));
    EXPECT_FALSE(doubted(changed([](CallRecord& c) { c.op = DEFT_NCCL_MAX; })));
    EXPECT_FALSE(doubted(changed([](CallRecord& c) { c.in_place = false; })));
    EXPECT_FALSE(doubted(changed([](CallRecord& c) { c.comm_serial = 2; }))) << "no bucket's";
}

TEST(View, TurnsToWhereTheLeaderBegins) {
    JobView view;
    view.gradients = {{3, 7, 0}, {1, 7, 0}, {2, 7, 0}};
    JobView leader;
    leader.gradients = {{1, 7, 0}, {2, 7, 0}, {3, 7, 0}};
    leader.signature = signature_of(leader.gradients);
    view.signature = signature_of(view.gradients);
    ASSERT_NE(view.signature, leader.signature);
    ASSERT_TRUE(rotate_to(view, leader.signature));
    EXPECT_EQ(view.gradients, leader.gradients);
    EXPECT_EQ(view.signature, leader.signature);
    const auto before = view.gradients;
    EXPECT_FALSE(rotate_to(view, 1));
    EXPECT_EQ(view.gradients, before);
    leader.gradients[1].in_place = false;
    EXPECT_FALSE(rotate_to(view, signature_of(leader.gradients)));
    view.gradients = {{2, 7, 0}, {1, 7, 0}, {3, 7, 0}};  // another order, no rotation
    view.signature = signature_of(view.gradients);
    EXPECT_FALSE(rotate_to(view, leader.signature));
}

// Iterations of two gradients, the calls made an iteration ahead of the device: `transfer` ms each.
void iterate(Track& track, int times, std::int64_t transfer, std::int64_t& at) {
    constexpr std::int64_t kMs = 1'000'000;
    for (int i = 0; i < times; ++i) {
        const std::int64_t ready[] = {at + 10, at + 40};
        std::int64_t end = at;
        for (int bucket = 0; bucket < 2; ++bucket) {
            CallRecord record;
            record.function = Function::AllReduce;
            record.comm_serial = 1;
            record.count = bucket == 0 ? 50'000 : 70'000;
            record.type = DEFT_NCCL_FLOAT32;
            record.op = DEFT_NCCL_SUM;
            record.nranks = 2;
            record.stream = 7;
            record.issued_ns = (at - 100 + bucket) * kMs;
            static std::uint64_t ordinal = 0;
            record.ordinal = ordinal++;
            track.feed(record);
            if (!track.waiting().empty()) {
                TimedCall& call = track.waiting().back().call;
                call.timed = true;
                call.start = std::max(ready[bucket], end) * kMs;
                end = call.start / kMs + transfer;
                call.end = end * kMs;
            }
            track.settle();
        }
        at = end;
    }
}

TEST(View, ComputeThatWasGuessedIsCorrectedByTheEarliestStarts) {
    Track track;
    std::int64_t at = 1000;
    iterate(track, 20, 60, at);
    JobView view = view_job(track, 1, true);
    ASSERT_TRUE(view.measured);
    planner::Profile profile = view.profile;
    EXPECT_LT(profile.compute(), 0.02) << "the second was ready at 40 ms at the earliest";
    track.restart_profile();  // a plan has come into force, of period 2
    for (int i = 0; i < 3; ++i) {
        iterate(track, 1, 1, at);
        iterate(track, 1, 60, at);
    }
    EXPECT_FALSE(correct_by_starts(track, profile)) << "too few";
    for (int i = 0; i < 6; ++i) {
        iterate(track, 1, 1, at);
        iterate(track, 1, 60, at);
    }
    ASSERT_TRUE(correct_by_starts(track, profile));
    EXPECT_NEAR(profile.compute(), 0.04, 1e-9);
    ASSERT_EQ(profile.size(), 2U);
    EXPECT_NEAR(profile.forward + profile.buckets[0].ready, 0.01, 1e-9);
    EXPECT_NEAR(profile.buckets[0].transfer.median, 0.06, 1e-9) << "as it was measured before";
    // What lies behind the last gradient starts no call.
    profile.backward += 0.05;
    ASSERT_TRUE(correct_by_starts(track, profile));
    EXPECT_NEAR(profile.compute(), 0.09, 1e-9);
    // Of another job's buckets nothing is known.
    profile.buckets.pop_back();
    EXPECT_FALSE(correct_by_starts(track, profile));
    profile.buckets.clear();
    EXPECT_FALSE(correct_by_starts(track, profile));
}

// Under a plan for layers that wait for their own no call waits for the transfer before it.
TEST(View, BackwardThatWasGuessedIsCorrectedByCallsThatWaitForNoSum) {
    Track track;
    std::int64_t at = 1000;
    iterate(track, 20, 60, at);
    planner::Profile profile = view_job(track, 1, true).profile;
    const double iteration = profile.iteration.median;
    track.restart_profile();
    iterate(track, 5, 1, at);
    EXPECT_FALSE(correct_by_backward(track, profile)) << "too few";
    iterate(track, 10, 1, at);
    ASSERT_TRUE(correct_by_backward(track, profile));
    // The second took 30 ms for its 7 parts of the bytes, the first has 5.
    EXPECT_NEAR(profile.backward, 0.03 * 12 / 7, 1e-9);
    EXPECT_NEAR(profile.forward, profile.backward / 2, 1e-9);
    EXPECT_NEAR(profile.buckets[1].ready - profile.buckets[0].ready, 0.03, 1e-9);
    EXPECT_NEAR(profile.buckets[1].ready, profile.backward, 1e-9);
    EXPECT_NEAR(profile.buckets[0].transfer.median, 0.06, 1e-9) << "as it was measured before";
    EXPECT_DOUBLE_EQ(profile.iteration.median, iteration);
    EXPECT_EQ(profile.problem(), "");
    profile.buckets.pop_back();
    EXPECT_FALSE(correct_by_backward(track, profile)) << "another job's";
}

}  // namespace
}  // namespace deft::director
