// SPDX-License-Identifier: Apache-2.0
// Ranks on the software device whose plan comes into force while they run: what every update
// received is compared with what it should have.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "tests/system/shim/control/plan_job.h"

namespace deft::test {
namespace {

// Whether the NCCL that jobs run with has this function: real ones are older than the stand-in, and
// one that is installed is not what they run with.
bool nccl_has(const char* function) {
    const bool real = std::getenv("SOFTDEV_NCCL") != nullptr;
    void* const library = ::dlopen(real ? "libnccl.so.2" : SOFT_NCCL, RTLD_LAZY | RTLD_LOCAL);
    EXPECT_NE(library, nullptr) << ::dlerror();
    return library != nullptr && ::dlsym(library, function) != nullptr;
}

TEST(Plan, ADelayedUpdateGetsEveryGradientOnce) {
    for (const int ranks : {2, 3}) {
        const Job job = run(ranks, 100, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}});
        expect_sound(job);
        EXPECT_EQ(count(job.ranks[0].err, "plan in force"), 1u) << job.ranks[0].err;
        for (const int bucket : {0, 1}) {
            const auto seen = lags(job.rows[0], bucket);
            EXPECT_GE(seen.count(0) ? seen.at(0) : 0, 10) << "the warm-up is synchronous";
            EXPECT_GE(seen.count(1) ? seen.at(1) : 0, 90) << "the plan was in force";
            EXPECT_EQ(seen.rbegin()->first, 1);
        }
    }
}

// How much that is depends on the machine: the last bucket is of it in any case.
TEST(Plan, OnlyWhatBackwardEndsWithIsLate) {
    const Job job = run(2, 100, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1-tail"}});
    expect_sound(job);
    EXPECT_EQ(count(job.ranks[0].err, "plan in force"), 1u) << job.ranks[0].err;
    EXPECT_LE(lags(job.rows[0], 0).rbegin()->first, 1);
    EXPECT_GE(lags(job.rows[0], 1)[1], 90);
}

TEST(Plan, MergedGradientsComeAsOneSumAndZeros) {
    const Job job = run(2, 100, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "merge2"}});
    expect_sound(job);
    EXPECT_EQ(lags(job.rows[0], 0).rbegin()->first, 1)
        << "a generation is complete every second iteration";
    EXPECT_GE(std::count_if(job.rows[0].begin(), job.rows[0].end(),
                            [](const Row& row) { return row.bucket[0] == 0; }),
              45);
}

TEST(Plan, MergedAndLate) {
    const Job job = run(2, 100, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "merge2-delay1"}});
    expect_sound(job);
    EXPECT_EQ(lags(job.rows[0], 1).rbegin()->first, 2);
}

// Its guard has nobody to agree with any more, and the ranks have no word but NCCL's.
TEST(Plan, APlanEndsOnAllRanksAlikeWhereOneIsCutOff) {
    for (const char* plan : {"delay1", "merge2-delay1"}) {
        const Job job = run(3, 100, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", plan}}, "cut off");
        expect_sound(job, "the plan has ended, because");
        const Row before = around(job, "cut off").first;
        EXPECT_NE(before.bucket[0], before.iteration + 1) << "the plan was in force";
        int late = 0;  // iterations that it went on for
        for (const Row& row : job.rows[0]) {
            late += row.iteration > before.iteration && row.bucket[0] != row.iteration + 1 ? 1 : 0;
        }
        EXPECT_LE(late, 26) << plan;
        EXPECT_EQ(job.rows[0].back().bucket[0], job.rows[0].back().iteration + 1);
        // Whoever has noticed by the time that the ranks ask each other says why.
        std::size_t said = 0;
        for (const Outcome& rank : job.ranks) {
            said += count(rank.err, "the plan has ended, because");
        }
        EXPECT_GE(said, 1u);
    }
}

TEST(Plan, ASplitCommunicatorInheritsTheAgreement) {
    const Job job = run(3, 100, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}}, "split");
    expect_sound(job);
    EXPECT_EQ(lags(job.rows[0], 0).rbegin()->first, 1);
}

TEST(Plan, AJobThatChangesItsBucketsIsLearnedAgain) {
    const Job job = run(2, 100, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}}, "change");
    expect_sound(job);
    EXPECT_EQ(count(job.ranks[0].err, "plan in force"), 2u) << job.ranks[0].err;
    const auto [before, after] = around(job, "changed");
    EXPECT_EQ(before.bucket[0], before.iteration) << "the plan was in force";
    EXPECT_EQ(after.bucket[0], after.iteration + 1) << "the call that differs is forwarded";
    EXPECT_EQ(job.rows[0].back().bucket[0], job.rows[0].back().iteration) << "and it is again";
}

// CUDA takes no event of deft's on a stream of another context. What becomes of the job's calls
// there is NCCL's to say, and the same as without a plan.
TEST(Plan, AStreamOfAnotherContextEndsPlanningAndNothingElse) {
    const Job plain = run(2, 20, {{"DEFT_MODE", "off"}}, "plain foreign");
    const auto results = [](const Job& job, int rank) {
        const std::string& out = job.ranks[static_cast<std::size_t>(rank)].out;
        const std::size_t at = out.find("foreign");
        return at == out.npos ? "" : out.substr(at, out.find('\n', at) - at);
    };
    EXPECT_EQ(count(results(plain, 0), "foreign "), 1u) << plain.ranks[0].out;
    for (const char* plan : {"delay1", "merge2"}) {
        const Job job = run(2, 60, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", plan}}, "foreign");
        for (const int rank : {0, 1}) {
            const Outcome& outcome = job.ranks[static_cast<std::size_t>(rank)];
            EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
            EXPECT_EQ(outcome.out, job.ranks[0].out) << "replicas differ";
            EXPECT_EQ(results(job, rank), results(plain, rank)) << plan;
            EXPECT_EQ(count(outcome.err, "plan in force"), 1u) << outcome.err;
            EXPECT_EQ(count(outcome.err, "[deft] WARN"), 1u) << outcome.err;
            EXPECT_EQ(count(outcome.err, "CUDA refuses what a plan needs"), 1u) << outcome.err;
        }
        ASSERT_FALSE(job.rows[0].empty());
        EXPECT_EQ(around(job, "foreign").second.bucket[0],
                  around(job, "foreign").second.iteration + 1)
            << "forwarded";
        EXPECT_EQ(job.rows[0].back().bucket[0], job.rows[0].back().iteration + 1) << "ever since";
    }
}

// Two buckets of one size look like one of two iterations. Every plan of covap's would give each
// the other's sums.
TEST(Plan, EqualBucketsNeverGetEachOthersSums) {
    const Job job = run(2, 150, {{"DEFT_MODE", "covap"}}, "plain equal");
    expect_sound(job);
    EXPECT_EQ(count(job.ranks[0].err, "change their buffers"), 2u)
        << "when it is known, and in the job's last line: " << job.ranks[0].err;
    EXPECT_EQ(count(job.ranks[0].err, "plan in force"), 0u) << job.ranks[0].err;
    for (const Row& row : job.rows[0]) {
        EXPECT_EQ(row.bucket[0], row.iteration + 1);
        EXPECT_EQ(row.bucket[1], row.iteration + 1);
    }
}

TEST(Plan, ExactNeverChangesANumber) {
    const Job job = run(2, 1000, {{"DEFT_MODE", "exact"}}, "plain");
    expect_sound(job);
    for (const Row& row : job.rows[0]) {
        EXPECT_EQ(row.bucket[0], row.iteration + 1);
        EXPECT_EQ(row.bucket[1], row.iteration + 1);
    }
}

TEST(Plan, AJobThatAsksSkipsUpdatesThatAreNone) {
    const Job job = run(2, 100, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "merge2"}}, "step");
    expect_sound(job);
    // Fewer updates, each with a whole generation: nothing is lost, nothing is zero.
    const int iterations = job.rows[0].back().iteration + 1;
    EXPECT_LE(static_cast<int>(job.rows[0].size()), iterations - 45);
    EXPECT_LE(lags(job.rows[0], 0).rbegin()->first, 1);
    for (const Row& row : job.rows[0]) {
        EXPECT_NE(row.bucket[0], 0);
    }
}

// What is too small for plans comes at once, beside zeros too.
TEST(Plan, AJobThatAsksSkipsNoSmallGradient) {
    const Job job = run(2, 60, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "merge2"}}, "step biased");
    expect_sound(job);
    EXPECT_EQ(count(job.ranks[0].err, "plan in force"), 1u) << job.ranks[0].err;
    EXPECT_EQ(static_cast<int>(job.rows[0].size()), job.rows[0].back().iteration + 1);
    EXPECT_EQ(lags(job.rows[0], 0).rbegin()->first, 1) << "the buckets are merged";
}

// Of two buckets one is sent in each iteration, so that there is something in every update.
class SumsInTurns : public ::testing::TestWithParam<Environment> {};

TEST_P(SumsInTurns, AreAllUpdates) {
    const Job job = run(2, 100, GetParam(), "step");
    for (const Outcome& rank : job.ranks) {
        ASSERT_EQ(rank.status, 0) << rank.out << rank.err;
        EXPECT_EQ(count(rank.err, "plan in force"), 1u) << rank.err;
    }
    const int iterations = job.rows[0].back().iteration + 1;
    EXPECT_GE(static_cast<int>(job.rows[0].size()), iterations - 1) << "but for the plan's first";
}

INSTANTIATE_TEST_SUITE_P(
    Plan, SumsInTurns,
    ::testing::Values(Environment{{"DEFT_MODE", "covap"}, {"DEFT_PLAN", "covap2"}},
                      Environment{
                          {"DEFT_MODE", "deft"}, {"DEFT_PLAN", "merge2"}, {"DEFT_MERGE", "turns"}}),
    [](const auto& info) { return info.index == 0 ? "Covap" : "Merged"; });

TEST(Plan, AFlushMakesTheJobSynchronousForAWhile) {
    const Job job = run(2, 100, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}}, "flush");
    expect_sound(job);
    // Two buckets of one generation were on their way.
    const auto [before, after] = around(job, "flushed 2");
    EXPECT_EQ(before.bucket[0], before.iteration);
    EXPECT_EQ(after.bucket[0], after.iteration + 1) << "synchronous right after the flush";
    EXPECT_EQ(count(job.ranks[0].err, "plan in force"), 2u) << "it comes back";
}

// NCCL gives up the communicator's memory, and so does deft: the plan, its copies, its lanes.
TEST(Plan, ASuspendedCommunicatorIsPlannedForAgainWhenItIsResumed) {
    if (!nccl_has("ncclCommSuspend")) {
        GTEST_SKIP() << "this NCCL has no ncclCommSuspend";
    }
    for (const int ranks : {2, 3}) {
        const Job job =
            run(ranks, 100, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}}, "suspend");
        expect_sound(job);
        const auto [before, after] = around(job, "resumed");
        EXPECT_EQ(before.bucket[0], before.iteration) << "the plan was in force";
        EXPECT_EQ(after.bucket[0], after.iteration + 1) << "it ended with the suspension";
        EXPECT_EQ(job.rows[0].back().bucket[0], job.rows[0].back().iteration) << "it comes back";
        EXPECT_EQ(count(job.ranks[0].err, "plan in force"), 2u) << job.ranks[0].err;
        EXPECT_EQ(count(job.ranks[0].err, "of the communicator agree"), 2u) << job.ranks[0].err;
    }
}

// With lanes over two networks: all of them go, and all come back.
TEST(Plan, ASuspendedCommunicatorGivesUpLanesOfAllNetworks) {
    if (!nccl_has("ncclCommSuspend")) {
        GTEST_SKIP() << "this NCCL has no ncclCommSuspend";
    }
    const Job job =
        run(2, 60, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay0"}, {"DEFT_LANES", "Socket"}},
            "suspend medium");
    expect_sound(job);
    EXPECT_EQ(lags(job.rows[0], 0).rbegin()->first, 0);
    for (const Outcome& rank : job.ranks) {
        EXPECT_EQ(count(rank.err, "plan in force"), 2u) << rank.err;
        EXPECT_EQ(count(rank.out, "resumed\n"), 1u) << rank.out;
        EXPECT_GE(count(rank.err, "2 lanes took"), 2u) << "made anew: " << rank.err;
    }
}

TEST(Plan, APlanStaysInForceWhileALargerCommunicatorIsMade) {
    if (!nccl_has("ncclCommGrow")) {
        GTEST_SKIP() << "this NCCL has no ncclCommGrow";
    }
    const char* const why = "nothing is planned for communicators that ncclCommGrow makes";
    const Job job = run(2, 100, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}}, "grow");
    expect_sound(job, why);
    EXPECT_EQ(count(job.ranks[0].err, why), 1u) << job.ranks[0].err;
    const auto [before, after] = around(job, "grown");
    EXPECT_EQ(before.bucket[0], before.iteration) << "the plan was in force";
    EXPECT_EQ(after.bucket[0], after.iteration) << "it still is";
    EXPECT_EQ(job.rows[0].back().bucket[0], job.rows[0].back().iteration);
    EXPECT_EQ(count(job.ranks[0].err, "plan in force"), 1u) << job.ranks[0].err;
    EXPECT_EQ(count(job.ranks[0].err, "the plan ends"), 0u) << job.ranks[0].err;
}

// As PyTorch before 2.1 makes it.
TEST(Plan, ACallAloneInItsGroupIsAnyOther) {
    const Job job = run(2, 100, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}}, "grouped");
    expect_sound(job);
    EXPECT_EQ(count(job.ranks[0].err, "plan in force"), 1u) << job.ranks[0].err;
    EXPECT_EQ(count(job.ranks[0].err, "the plan ends"), 0u) << job.ranks[0].err;
    for (const int bucket : {0, 1}) {
        const auto seen = lags(job.rows[0], bucket);
        EXPECT_GE(seen.count(0) ? seen.at(0) : 0, 10) << "the warm-up is synchronous";
        EXPECT_GE(seen.count(1) ? seen.at(1) : 0, 90) << "the plan was in force";
        EXPECT_EQ(seen.rbegin()->first, 1);
    }
}

TEST(Plan, AGroupThatOneRankSimulatesIsNoCall) {
    const Job job = run(2, 100, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}}, "simulate");
    expect_sound(job);
    EXPECT_EQ(count(job.ranks[0].err, "plan in force"), 1u) << job.ranks[0].err;
    for (const Outcome& rank : job.ranks) {
        EXPECT_EQ(count(rank.err, "the plan ends"), 0u) << rank.err;
    }
    EXPECT_EQ(lags(job.rows[0], 0).rbegin()->first, 1);
}

TEST(Plan, CallsJoinedInAGroupEndIt) {
    const Job job = run(2, 100, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}}, "pair");
    expect_sound(job);
    for (const Outcome& rank : job.ranks) {
        EXPECT_EQ(count(rank.err, "the plan ends"), 1u) << rank.err;
    }
    const auto [before, after] = around(job, "paired");
    EXPECT_EQ(before.bucket[0], before.iteration) << "the plan was in force";
    EXPECT_EQ(after.bucket[0], after.iteration + 1) << "both calls are forwarded";
    EXPECT_EQ(after.bucket[1], after.iteration + 1);
}

// An operation of the job's own may stand for anything, and it is gone when the call returns.
class OwnOperation : public ::testing::TestWithParam<const char*> {};

TEST_P(OwnOperation, IsNeverPlannedFor) {
    const Folder folder;
    Environment environment{{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}};
    environment["DEFT_OUT"] = folder / "rank%r.json";
    const Job job = finish_ranks(start_ranks(folder, 2, 400, environment, GetParam()), folder);
    expect_sound(job);
    for (const Row& row : job.rows[0]) {
        ASSERT_EQ(row.bucket[0], 2 * (row.iteration + 1));
        ASSERT_EQ(row.bucket[1], 2 * (row.iteration + 1));
    }
    for (const Outcome& rank : job.ranks) {
        EXPECT_EQ(count(rank.err, "plan in force"), 0u) << rank.err;
    }
    const nlohmann::json plan = plan_of(job, 0);
    EXPECT_EQ(plan["switched"], 0);
    EXPECT_EQ(plan["reason"], "gradients are reduced by an operation of the job's own");
}

INSTANTIATE_TEST_SUITE_P(Plan, OwnOperation,
                         ::testing::Values("plain premul", "plain grouped premul"),
                         [](const auto& info) { return info.index == 0 ? "Alone" : "Grouped"; });

TEST(Plan, AnOperationOfTheJobsOwnEndsIt) {
    const Job job = run(2, 100, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}}, "premul");
    expect_sound(job);
    for (const Outcome& rank : job.ranks) {
        EXPECT_EQ(count(rank.err, "the plan ends"), 1u) << rank.err;
    }
    const auto [before, after] = around(job, "premultiplied");
    EXPECT_EQ(before.bucket[0], before.iteration) << "the plan was in force";
    EXPECT_EQ(after.bucket[0], 2 * (after.iteration + 1)) << "both calls are forwarded as they are";
    EXPECT_EQ(after.bucket[1], 2 * (after.iteration + 1));
}

// NCCL enqueues its calls later, so nobody can tell how long they take.
TEST(Plan, NothingIsPlannedForANonblockingCommunicator) {
    const Folder folder;
    Environment environment{{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}};
    environment["DEFT_OUT"] = folder / "rank%r.json";
    const Job job =
        finish_ranks(start_ranks(folder, 2, 400, environment, "plain nonblocking"), folder);
    expect_sound(job);
    for (const Row& row : job.rows[0]) {
        ASSERT_EQ(row.bucket[0], row.iteration + 1);
        ASSERT_EQ(row.bucket[1], row.iteration + 1);
    }
    for (const Outcome& rank : job.ranks) {
        EXPECT_EQ(count(rank.err, "all 2 ranks of the communicator agree"), 1u) << rank.err;
        EXPECT_EQ(count(rank.err, "plan in force"), 0u) << rank.err;
    }
    const nlohmann::json plan = plan_of(job, 0);
    EXPECT_EQ(plan["switched"], 0);
    EXPECT_EQ(plan["reason"],
              "no call of the job's has been timed yet (a nonblocking communicator's never is)");
}

TEST(Plan, ACommunicatorOfSeveralIdsHasOneAgreement) {
    const Job job = run(3, 100, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}}, "scalable");
    expect_sound(job);
    for (const Outcome& rank : job.ranks) {
        EXPECT_EQ(count(rank.err, "all 3 ranks of the communicator agree"), 1u) << rank.err;
        EXPECT_EQ(count(rank.err, "plan in force"), 1u) << rank.err;
    }
    for (const int bucket : {0, 1}) {
        EXPECT_EQ(lags(job.rows[0], bucket).rbegin()->first, 1);
    }
}

TEST(Plan, AnAbortedCommunicatorTakesItsLanesAlong) {
    const Job job = run(2, 50, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}}, "abort");
    for (const Outcome& rank : job.ranks) {
        EXPECT_EQ(rank.status, 0) << rank.out << rank.err;
    }
}

// The job's stream waits for a lane, which waits for the rank that is left out. The others' smaller
// communicator has an agreement of its own, or DEFT_REQUIRE=1 would refuse it.
void expect_shrunk(const std::string& how) {
    const Job job =
        run(3, 50, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}, {"DEFT_REQUIRE", "1"}}, how);
    for (std::size_t rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(job.ranks[rank].status, 0) << job.ranks[rank].out << job.ranks[rank].err;
        EXPECT_EQ(count(job.ranks[rank].out, "shrunk\n"), rank < 2 ? 1u : 0u)
            << job.ranks[rank].err;
    }
}

TEST(Plan, AShrunkCommunicatorEndsItsLanesTransfers) {
    expect_shrunk("shrink");
}

TEST(Plan, ARevokedCommunicatorEndsItsLanesTransfersAndHasChildren) {
    if (!nccl_has("ncclCommRevoke")) {
        GTEST_SKIP() << "this NCCL has no ncclCommRevoke";
    }
    expect_shrunk("revoke");
}

}  // namespace
}  // namespace deft::test
