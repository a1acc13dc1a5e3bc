// SPDX-License-Identifier: Apache-2.0
// What a call gets by an order of the leader's, and that ranks get the same of it.
#include "shim/tuning/table.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace deft::tuning {
namespace {

constexpr CollectiveChoice kRing{DEFT_TUNER_RING, DEFT_TUNER_SIMPLE, 0};
constexpr CollectiveChoice kTree{DEFT_TUNER_TREE, DEFT_TUNER_SIMPLE, 0};
constexpr CollectiveChoice kNarrow{DEFT_TUNER_UNDEF, DEFT_TUNER_UNDEF, 1};

const Key kSum = key_of(Function::AllReduce, 1000, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM);
const Key kGather = key_of(Function::AllGather, 1000, DEFT_NCCL_FLOAT32, -1);

Order trial() {
    Order order;
    order.phase = Phase::Trial;
    order.serial = 7;
    order.start = 100;
    order.window_calls = 4;
    order.rounds = kRounds;
    order.mark = 48;
    order.history = 0x1234'5678'9abc'def0;
    order.entries = {{kSum, {{}, kRing, kTree}}, {kGather, {{}, kNarrow}}};
    return order;
}

TEST(TuningTable, TravelsAsItIs) {
    const Order order = trial();
    Order read;
    ASSERT_TRUE(decode(encode(order), read));
    EXPECT_EQ(read.phase, order.phase);
    EXPECT_EQ(read.start, order.start);
    EXPECT_EQ(read.mark, order.mark);
    EXPECT_EQ(read.history, order.history);
    EXPECT_EQ(read.window_calls, order.window_calls);
    EXPECT_EQ(read.rounds, order.rounds);
    ASSERT_EQ(read.entries.size(), 2u);
    EXPECT_EQ(read.entries[0].key, kSum);
    EXPECT_EQ(read.entries[0].candidates, order.entries[0].candidates);
    EXPECT_EQ(read.entries[1].candidates, order.entries[1].candidates);
}

TEST(TuningTable, RefusesWhatIsNoOrder) {
    const std::vector<std::byte> good = encode(trial());
    Order read;
    for (std::size_t size = 0; size < good.size(); ++size) {
        EXPECT_FALSE(decode(std::span(good).first(size), read)) << size;
    }
    std::vector<std::byte> longer = good;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(decode(longer, read));
    for (std::size_t at = 0; at < good.size(); ++at) {  // nothing of it may break the reader
        std::vector<std::byte> damaged = good;
        damaged[at] = std::byte{0xff};
        if (decode(damaged, read)) {
            Table table(read);
            table.pick(kSum, 100);
        }
    }
    Order endless = trial();
    endless.rounds = kMostRounds + 1;
    EXPECT_FALSE(decode(encode(endless), read)) << "as long as no trial is";
    Order empty_window = trial();
    empty_window.window_calls = 0;
    EXPECT_FALSE(decode(encode(empty_window), read)) << "its end would be unknown";
    empty_window.phase = Phase::Compare;
    EXPECT_FALSE(decode(encode(empty_window), read)) << "a call would be divided by it";
    empty_window.phase = Phase::Fixed;
    EXPECT_TRUE(decode(encode(empty_window), read));
    Order none = trial();
    none.entries[0].candidates.clear();
    EXPECT_FALSE(decode(encode(none), read));
    Order half = trial();
    half.entries[0].candidates[1] = {DEFT_TUNER_RING, DEFT_TUNER_UNDEF, 0};
    EXPECT_FALSE(decode(encode(half), read)) << "an algorithm without a protocol";
}

TEST(TuningTable, TriesEachCandidateEquallyOftenAndThenLeavesTheCallAlone) {
    Table table(trial());
    std::map<int, int> times;
    for (std::uint32_t i = 0; i < 3 * kRounds; ++i) {
        const Pick pick = table.pick(kSum, 100 + i);
        EXPECT_EQ(pick.order, 7u);
        EXPECT_EQ(pick.sample, static_cast<int>(i));
        ++times[pick.choice.algorithm];
    }
    EXPECT_EQ(times[DEFT_TUNER_UNDEF], static_cast<int>(kRounds));
    EXPECT_EQ(times[DEFT_TUNER_RING], static_cast<int>(kRounds));
    EXPECT_EQ(times[DEFT_TUNER_TREE], static_cast<int>(kRounds));
    const Pick after = table.pick(kSum, 999);
    EXPECT_LT(after.sample, 0);
    EXPECT_TRUE(after.choice.own());
}

TEST(TuningTable, LooksAtEachCandidateAFewTimes) {
    Order order = trial();
    order.rounds = kLookRounds;
    Table table(order);
    int trees = 0;
    for (std::uint32_t i = 0; i < 3 * kRounds; ++i) {
        trees += table.pick(kSum, 100 + i).choice == kTree ? 1 : 0;
    }
    EXPECT_EQ(trees, static_cast<int>(kLookRounds));
}

// Two buckets of one size in each iteration: each of them meets all candidates.
TEST(TuningTable, CallsOfOneSizeMeetAllCandidates) {
    for (const std::size_t candidates : {2, 3, 4, 6}) {
        std::map<std::uint32_t, std::set<std::size_t>> met;
        for (std::uint32_t i = 0; i < kRounds * candidates; ++i) {
            met[i % 2].insert(Table::candidate_of(i, candidates));
        }
        EXPECT_EQ(met[0].size(), candidates);
        EXPECT_EQ(met[1].size(), candidates);
    }
}

// The next order may never come, and what is faster by itself has not been compared yet.
TEST(TuningTable, AfterATrialNothingThatIsNotComparedHolds) {
    Order order = trial();
    CollectiveChoice narrow = kTree;
    narrow.channels = 2;
    order.entries = {{kSum, {kTree, narrow}}, {kGather, {kRing}}};
    Table table(order);
    const std::uint32_t samples = Table::samples_of(order, order.entries[0]);
    for (std::uint32_t i = 0; i < samples; ++i) {
        EXPECT_FALSE(table.pick(kSum, 100 + i).choice.own());
    }
    EXPECT_TRUE(table.pick(kSum, 100 + samples).choice.own());
    EXPECT_EQ(table.pick(kGather, 101 + samples).choice, kRing) << "it was kept before";
}

// A kind of call that the job has not made for long comes again when nobody measures any more.
TEST(TuningTable, NothingIsTriedWhenATrialsTimeIsOver) {
    const std::uint64_t last = 100 + Table::calls_of(trial());
    Table table(trial());
    EXPECT_GE(table.pick(kSum, 101).sample, 0);
    EXPECT_GE(table.pick(kSum, last).sample, 0);
    const Pick late = table.pick(kSum, last + 1);
    EXPECT_LT(late.sample, 0);
    EXPECT_TRUE(late.choice.own());
}

TEST(TuningTable, ComparesByWindowsThatBeginAtTheSameCallOnAllRanks) {
    Order order = trial();
    order.phase = Phase::Compare;
    order.entries = {{kSum, {{}, kTree}}};
    Table table(order);
    for (std::uint64_t ordinal = 100; ordinal < 100 + 4 * kWindows; ++ordinal) {
        const bool second = (ordinal - 100) / 4 % 2 == 1;
        EXPECT_EQ(table.pick(kSum, ordinal).choice, second ? kTree : CollectiveChoice{}) << ordinal;
    }
    EXPECT_TRUE(table.pick(kSum, 100 + 4 * kWindows + 5).choice.own()) << "it is over";
}

TEST(TuningTable, MeasuresNothingWhereThereIsNoChoice) {
    Order order = trial();
    order.entries = {{kSum, {kTree}}};
    Table table(order);
    EXPECT_EQ(Table::samples_of(order, order.entries[0]), 0u);
    EXPECT_EQ(table.pick(kSum, 100).choice, kTree);
    EXPECT_LT(table.pick(kSum, 101).sample, 0);
}

TEST(TuningTable, LeavesOtherCallsAlone) {
    Order order = trial();
    order.phase = Phase::Fixed;
    order.entries = {{kSum, {kTree}}};
    Table table(order);
    EXPECT_EQ(table.pick(kSum, 100).choice, kTree);
    EXPECT_EQ(table.pick(kGather, 101).order, 0u);
    const Key other = key_of(Function::AllReduce, 1001, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM);
    EXPECT_TRUE(table.pick(other, 102).choice.own());
}

TEST(TuningTable, OperationsOfTheJobsOwnAreAlike) {
    EXPECT_EQ(key_of(Function::ReduceScatter, 8, DEFT_NCCL_FLOAT32, 77'123),
              key_of(Function::ReduceScatter, 8, DEFT_NCCL_FLOAT32, 99'456));
    EXPECT_NE(key_of(Function::ReduceScatter, 8, DEFT_NCCL_FLOAT32, 77'123),
              key_of(Function::ReduceScatter, 8, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM));
}

}  // namespace
}  // namespace deft::tuning
