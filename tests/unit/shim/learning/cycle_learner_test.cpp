// SPDX-License-Identifier: Apache-2.0
// The sequences are what PyTorch DDP makes of small models (docs/observe.md), one letter a call.
#include "shim/learning/cycle_learner.h"

#include <gtest/gtest.h>
#include <algorithm>
#include <cctype>
#include <string>

namespace deft {
namespace {

// Feeds the letters, small ones as small calls; notes for each call its position ('0'..), '.' while
// learning, and '!' after a position where a cycle broke.
std::string feed(CycleLearner& learner, const std::string& calls) {
    std::string seen;
    for (const char call : calls) {
        const CycleLearner::Step step =
            learner.feed(static_cast<std::uint64_t>(call), std::islower(call) != 0);
        if (step.broken) {
            seen += '!';
        }
        seen += step.cycle == CycleLearner::kNone ? '.' : static_cast<char>('0' + step.position);
    }
    return seen;
}

std::string cycle_of(const CycleLearner& learner) {
    std::string keys;
    if (learner.stable()) {
        for (const std::uint64_t key : learner.cycles()[learner.current()]) {
            keys += static_cast<char>(key);
        }
    }
    return keys;
}

TEST(CycleLearner, NeedsThreeRepeats) {
    CycleLearner learner;
    EXPECT_EQ(feed(learner, "abab"), "....");
    EXPECT_FALSE(learner.stable());
    EXPECT_EQ(feed(learner, "a"), ".");
    const CycleLearner::Step step = learner.feed('b');
    EXPECT_TRUE(step.locked);
    EXPECT_EQ(step.repeats, 3u);
    EXPECT_EQ(step.position, 1u);
    EXPECT_EQ(feed(learner, "abab"), "0101");
    EXPECT_EQ(cycle_of(learner), "ab");
}

TEST(CycleLearner, OneBucket) {
    CycleLearner learner;
    EXPECT_EQ(feed(learner, "aaaa"), "..00");
}

TEST(CycleLearner, BucketRebuildAfterTheFirstIteration) {
    // Start-up broadcasts and the shape check, one big bucket, then the rebuilt two.
    CycleLearner learner;
    EXPECT_EQ(feed(learner,
                   "gpqrA"
                   "BC"
                   "BC"
                   "B"),
              "..........");
    EXPECT_EQ(feed(learner, "CBCBC"), "10101");
    EXPECT_EQ(cycle_of(learner), "BC");
}

TEST(CycleLearner, StaticGraphRebuildsAfterTheSecondIteration) {
    CycleLearner learner;
    feed(learner,
         "iA"
         "A"
         "BC"
         "BC"
         "BC");
    EXPECT_EQ(cycle_of(learner), "BC");
}

TEST(CycleLearner, FindUnusedParametersEndsEachIterationWithAMap) {
    CycleLearner learner;
    EXPECT_EQ(feed(learner, "gpBCmBCmBCm"), "..........2");
    EXPECT_EQ(cycle_of(learner), "BCm");
}

TEST(CycleLearner, EqualBucketsDoNotHideTheIteration) {
    // Large models have many buckets of exactly the same size.
    CycleLearner learner;
    feed(learner,
         "BBBBBBBC"
         "BBBBBBBC"
         "BBBBBBBC");
    EXPECT_EQ(cycle_of(learner), "BBBBBBBC");
    EXPECT_EQ(feed(learner, "BBBBBBBCBB"), "0123456701");
}

TEST(CycleLearner, ABucketSequenceInsideASequence) {
    CycleLearner learner;
    feed(learner,
         "AABBAABC"
         "AABBAABC"
         "AABBAABC");
    EXPECT_EQ(cycle_of(learner), "AABBAABC");
}

TEST(CycleLearner, SkippedSynchronisationIsNoBreak) {
    // no_sync micro-steps call nothing: the sequence is the same, only slower.
    CycleLearner learner;
    EXPECT_EQ(feed(learner,
                   "BCBCBC"
                   "BCBC"),
              ".....10101");
}

TEST(CycleLearner, ABarrierInterruptsAndTheCycleIsFoundAgain) {
    CycleLearner learner;
    feed(learner, "BCBCBCBC");
    EXPECT_EQ(feed(learner,
                   "B"
                   "x"),
              "0!.");
    EXPECT_FALSE(learner.stable());
    EXPECT_EQ(feed(learner, "BCBCBC"), ".....1");
    EXPECT_EQ(learner.current(), 0u) << "the same cycle keeps its identity";
    EXPECT_EQ(learner.cycles().size(), 1u);
}

TEST(CycleLearner, AnEpochIsNotAnIteration) {
    // The epoch repeats as a whole, evaluation included, and is not mistaken for an iteration.
    for (const char* epoch : {"BCBCBCBCBCBCef", "BCmBCmBCmBCmBCmBCme"}) {
        CycleLearner learner;
        for (int i = 0; i < 6; ++i) {
            feed(learner, epoch);
            EXPECT_FALSE(learner.stable()) << "the evaluation ended it";
        }
        ASSERT_EQ(learner.cycles().size(), 1u) << epoch;
        EXPECT_EQ(learner.cycles()[0].size(), epoch[2] == 'm' ? 3u : 2u);
    }
}

TEST(CycleLearner, EqualBucketsBeforeASmallCallAreAnIteration) {
    // As many buckets of one size as there could be iterations in an epoch, and the map of
    // find_unused_parameters. Each bucket has its buffer; iterations would all have one.
    for (const bool own : {true, false}) {
        CycleLearner learner;
        for (int i = 0; i < 4; ++i) {
            for (std::uint64_t bucket = 0; bucket < 6; ++bucket) {
                learner.feed('A', false, own ? 100 + bucket : 100);
            }
            learner.feed('m', true, 7);
        }
        EXPECT_EQ(cycle_of(learner), own ? "AAAAAAm" : "");
    }
}

// Iterations of `buckets` gradients, and behind every `iterations` of them one more large sum.
// `own`: the buffers of an iteration, 0: each call has another. The cycle in force at the end.
std::string with_evaluations(int iterations, int buckets, std::uint64_t own,
                             std::uint64_t evaluation_over = 1) {
    CycleLearner learner;
    std::uint64_t buffer = 1000;
    for (int epoch = 0; epoch < 30; ++epoch) {
        for (int i = 0; i < iterations * buckets; ++i) {
            const auto bucket = static_cast<std::uint64_t>(i % buckets);
            learner.feed('A' + bucket, false, own != 0 ? own + bucket : ++buffer, 1);
        }
        learner.feed('e', false, 7, evaluation_over);
    }
    for (int i = 0; i < std::min(4, iterations) * buckets; ++i) {
        const auto bucket = static_cast<std::uint64_t>(i % buckets);
        learner.feed('A' + bucket, false, own != 0 ? own + bucket : ++buffer, 1);
    }
    return cycle_of(learner);
}

// Else nothing would be planned any more once three epochs have gone by.
TEST(CycleLearner, EvaluationsAtAFixedIntervalDoNotMakeAnEpochAnIteration) {
    EXPECT_EQ(with_evaluations(20, 3, 50), "ABC");
    EXPECT_EQ(with_evaluations(5, 1, 50), "A");
    EXPECT_EQ(with_evaluations(200, 4, 50), "ABCD");
    EXPECT_EQ(with_evaluations(4, 3, 50), "ABC");
}

// A layer's sums of tensor parallelism beside gradients over another communicator, equal buckets
// of one iteration, and a turn of a few.
TEST(CycleLearner, WhatOnlyLooksLikeEvaluationsIsAnIteration) {
    EXPECT_EQ(with_evaluations(20, 1, 50, 2), std::string(20, 'A') + "e");
    EXPECT_EQ(with_evaluations(5, 1, 0), "AAAAAe");
    EXPECT_EQ(with_evaluations(3, 2, 50), "ABABABe");
}

TEST(CycleLearner, SmallCallsOfEachIterationBelongToIt) {
    CycleLearner learner;
    feed(learner, "BCDmBCDmBCDm");
    EXPECT_EQ(cycle_of(learner), "BCDm");
}

TEST(CycleLearner, AnEvaluationLoopIsACycleOfItsOwn) {
    CycleLearner learner;
    feed(learner,
         "BCBCBCBC"
         "EEEE");
    EXPECT_EQ(cycle_of(learner), "E");
    feed(learner, "BCBCBC");
    EXPECT_EQ(cycle_of(learner), "BC");
    EXPECT_EQ(learner.cycles().size(), 2u);
}

TEST(CycleLearner, KeepsItsBeginningThroughAnInterruption) {
    // The last call before the training goes on happens to equal the iteration's last.
    CycleLearner learner;
    feed(learner, "BCDBCDBCD");
    ASSERT_EQ(cycle_of(learner), "BCD");
    EXPECT_EQ(feed(learner,
                   "xD"
                   "BCDBCDBC"),
              "!.........1");
    EXPECT_EQ(cycle_of(learner), "BCD");
    EXPECT_EQ(feed(learner, "DB"), "20");
}

TEST(CycleLearner, BeginsWhereItIsTurnedTo) {
    CycleLearner learner;
    feed(learner, "XDBCDBCDBCDBC");  // another first iteration, with the same last call
    ASSERT_EQ(cycle_of(learner), "DBC");
    learner.rotate(1);
    EXPECT_EQ(cycle_of(learner), "BCD");
    EXPECT_EQ(feed(learner, "DBCD"), "2012");
    feed(learner, "xBCDBCDBCD");
    EXPECT_EQ(cycle_of(learner), "BCD") << "after an interruption too";
    learner.rotate(3);
    EXPECT_EQ(cycle_of(learner), "BCD");
}

TEST(CycleLearner, CycleChanges) {
    CycleLearner learner;
    feed(learner, "BCBCBC");
    EXPECT_EQ(feed(learner, "DEDED"), "!.....");
    EXPECT_EQ(feed(learner, "E"), "1");
    EXPECT_EQ(cycle_of(learner), "DE");
}

TEST(CycleLearner, SequencesWithoutRepetitionAreNeverStable) {
    CycleLearner learner(64);
    for (std::uint64_t call = 0; call < 1000; ++call) {
        EXPECT_EQ(learner.feed(call).cycle, CycleLearner::kNone);
    }
}

TEST(CycleLearner, LongestCycleAndOneBeyond) {
    for (const std::size_t length : {32u, 33u}) {
        CycleLearner learner(32);
        for (std::size_t i = 0; i < 6 * length; ++i) {
            learner.feed(i % length);
        }
        EXPECT_EQ(learner.stable(), length == 32) << length;
    }
}

TEST(CycleLearner, DependsOnTheSequenceAlone) {
    // Two ranks that make the same calls agree at every call.
    CycleLearner one;
    CycleLearner other;
    std::uint64_t random = 12345;
    for (int i = 0; i < 5000; ++i) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const std::uint64_t key =
            (i / 700) % 2 == 0 ? static_cast<std::uint64_t>(i % 7) : (random >> 33) % 3;
        const CycleLearner::Step a = one.feed(key);
        const CycleLearner::Step b = other.feed(key);
        ASSERT_EQ(a.cycle, b.cycle);
        ASSERT_EQ(a.position, b.position);
    }
}

TEST(CycleLearner, RestartForgetsTheSequenceButNotTheCycles) {
    CycleLearner learner;
    feed(learner, "BCBCBC");
    learner.restart();
    EXPECT_FALSE(learner.stable());
    EXPECT_EQ(feed(learner, "BCBCBC"), ".....1");
    EXPECT_EQ(learner.cycles().size(), 1u);
}

}  // namespace
}  // namespace deft
