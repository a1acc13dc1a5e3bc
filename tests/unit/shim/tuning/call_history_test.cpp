// SPDX-License-Identifier: Apache-2.0
// Ranks that have made the same calls know it, and no others.
#include "shim/tuning/call_history.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace deft::tuning {
namespace {

const Key kSum = key_of(Function::AllReduce, 1000, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM);
const Key kGather = key_of(Function::AllGather, 1000, DEFT_NCCL_FLOAT32, -1);

std::uint64_t history_of(const std::vector<Key>& calls) {
    std::uint64_t history = 0;
    for (const Key& call : calls) {
        history = history_with(history, call);
    }
    return history;
}

TEST(CallHistory, OrderNumberAndKindCount) {
    const std::uint64_t all = history_of({kSum, kGather, kSum});
    EXPECT_EQ(history_of({kSum, kGather, kSum}), all);
    EXPECT_NE(history_of({kGather, kSum, kSum}), all);
    EXPECT_NE(history_of({kSum, kGather}), all);
    EXPECT_NE(history_of({kSum, kSum, kGather, kSum}), all) << "a rank that has missed one";
    for (const Key& other :
         {key_of(Function::ReduceScatter, 1000, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM),
          key_of(Function::AllReduce, 1001, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM),
          key_of(Function::AllReduce, 1000, DEFT_NCCL_INT32, DEFT_NCCL_SUM),
          key_of(Function::AllReduce, 1000, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM + 2)}) {
        EXPECT_NE(history_of({kSum, kGather, other}), all) << to_text(other);
    }
}

// NCCL chooses for calls in groups and graphs: there a rank would go another way than the others.
TEST(CallHistory, HowACallIsMadeCounts) {
    const std::uint64_t alone = history_with(7, kSum);
    EXPECT_EQ(history_with(7, kSum, Made::Alone), alone);
    EXPECT_NE(history_with(7, kSum, Made::Grouped), alone);
    EXPECT_NE(history_with(7, kSum, Made::Captured), alone);
    EXPECT_NE(history_with(7, kSum, Made::Captured), history_with(7, kSum, Made::Grouped));
}

TEST(CallHistory, IsKeptOfSomeOfTheLatestCalls) {
    CallHistory kept;
    std::uint64_t history = 0;
    constexpr std::uint64_t kFirst = 5;  // of those that it has heard of
    constexpr std::uint64_t kLast = 3 * CallHistory::kCalls;
    for (std::uint64_t ordinal = kFirst; ordinal <= kLast; ++ordinal) {
        kept.note({ordinal, 7 * ordinal});
    }
    EXPECT_FALSE(kept.find(0, history)) << "it was not there then";
    EXPECT_FALSE(kept.find(CallHistory::kStride, history)) << "too long ago";
    EXPECT_FALSE(kept.find(kLast + CallHistory::kStride, history)) << "still to come";
    const std::uint64_t mark = CallHistory::mark_before(kLast - CallHistory::kCalls / 2);
    ASSERT_TRUE(kept.find(mark, history));
    EXPECT_EQ(history, 7 * mark);
}

// A mark is read while the hooks write it anew.
TEST(CallHistory, IsNeverHalfOfOneCallAndHalfOfAnother) {
    CallHistory kept;
    std::atomic<bool> done{false};
    std::thread hooks([&] {
        for (std::uint64_t ordinal = 0; ordinal < 4'000'000; ordinal += CallHistory::kStride) {
            kept.note({ordinal, ordinal + 1});
        }
        done = true;
    });
    std::uint64_t found = 0;
    for (std::uint64_t mark = 0; !done;) {
        std::uint64_t history = 0;
        if (kept.find(mark, history)) {
            EXPECT_EQ(history, mark + 1);
            ++found;
            mark += CallHistory::kCalls;
        } else if (kept.find(mark + CallHistory::kCalls, history)) {
            mark += CallHistory::kCalls;
        }
    }
    hooks.join();
    std::uint64_t history = 0;
    EXPECT_TRUE(found > 0 || kept.find(4'000'000 - CallHistory::kStride, history));
}

}  // namespace
}  // namespace deft::tuning
