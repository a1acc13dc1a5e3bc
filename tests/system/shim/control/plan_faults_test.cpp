// SPDX-License-Identifier: Apache-2.0
// What happens to a job under a plan when a rank is stopped or dies, memory is short, its iteration
// keeps changing, or its communicator goes while transfers are in flight. Every job ends by itself:
// plan_main has a deadline of its own.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <sstream>
#include <thread>
#include <utility>

#include "tests/system/shim/control/plan_job.h"

namespace deft::test {
namespace {

using namespace std::chrono_literals;

const Environment kDelay{{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}};

bool says(const Started& rank, const std::string& text) {
    const auto deadline = std::chrono::steady_clock::now() + 300s;
    while (read_file(rank.err).find(text) == std::string::npos) {
        if (std::chrono::steady_clock::now() > deadline) {
            return false;
        }
        std::this_thread::sleep_for(2ms);
    }
    return true;
}

class Stopped : public ::testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(Stopped, ForHalfAMinute) {
    const auto [rank, when] = GetParam();
    const Folder folder;
    const auto started = start_ranks(folder, 2, 300, kDelay, "");
    const bool there = says(started[0], when);
    ::kill(started[static_cast<std::size_t>(rank)].pid, SIGSTOP);
    if (there) {
        std::this_thread::sleep_for(30s);  // the fault itself
    }
    ::kill(started[static_cast<std::size_t>(rank)].pid, SIGCONT);
    const Job job = finish_ranks(started, folder);
    ASSERT_TRUE(there) << job.ranks[0].err;
    // Half a minute without a message is said.
    expect_sound(job, "no message got to");
    EXPECT_GE(count(job.ranks[0].err, "plan in force"), 1u) << job.ranks[0].err;
    for (const int bucket : {0, 1}) {
        EXPECT_EQ(lags(job.rows[0], bucket).rbegin()->first, 1);
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Stopped,
                         ::testing::Combine(::testing::Values(0, 1),
                                            ::testing::Values("INFO plan: ", "plan in force")));

// The others go by what NCCL tells them, and the rank goes on when it has waited for half a minute.
TEST(PlanFaults, ADecisionThatNeverComesCostsThePlanAndNothingElse) {
    const Job job = run(3, 600, kDelay, "unheard");
    expect_sound(job, "decision about a plan has not come");
    EXPECT_EQ(count(job.ranks[2].err, "cut\n"), 1u) << "no plan was named";
    EXPECT_EQ(count(job.ranks[2].err, "has not come"), 1u) << job.ranks[2].err;
    for (std::size_t rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(count(job.ranks[rank].err, "plan in force"), 0u) << job.ranks[rank].err;
        EXPECT_EQ(job.rows[rank].size(), 601u);
        for (const Row& row : job.rows[rank]) {
            ASSERT_EQ(row.bucket[0], row.iteration + 1);
            ASSERT_EQ(row.bucket[1], row.iteration + 1);
        }
    }
}

class Killed : public ::testing::TestWithParam<int> {};

TEST_P(Killed, TheOthersNoticeAndEnd) {
    const Folder folder;
    Environment environment = kDelay;
    environment["DEFT_LINK_TIMEOUT"] = "5s";  // a loaded machine may pause for two
    const auto started = start_ranks(folder, 3, 1'000'000, environment, "");
    bool there = true;
    for (const Started& rank : started) {
        there = there && says(rank, "plan in force");
    }
    ::kill(started[static_cast<std::size_t>(GetParam())].pid, SIGKILL);
    const Job job = finish_ranks(started, folder);
    ASSERT_TRUE(there);
    for (int rank = 0; rank < 3; ++rank) {
        const Outcome& outcome = job.ranks[static_cast<std::size_t>(rank)];
        if (rank != GetParam()) {
            EXPECT_EQ(outcome.status, 0) << outcome.err;
            EXPECT_TRUE(outcome.out.ends_with("lost\n"))
                << outcome.out.substr(outcome.out.size() -
                                      std::min<std::size_t>(200, outcome.out.size()))
                << outcome.err;
            // Every number before it is right. It may die in the plan's very first iteration.
            EXPECT_LE(lags(job.rows[static_cast<std::size_t>(rank)], 0).rbegin()->first, 1);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Killed, ::testing::Values(0, 2));

TEST(PlanFaults, AMemoryCapThatIsHitLeavesTheJobAsItIs) {
    Environment environment = kDelay;
    environment["DEFT_MAX_SHADOW_BYTES"] = "1000";
    const Job job = run(2, 1000, environment, "plain");
    expect_sound(job);
    for (const Row& row : job.rows[0]) {
        ASSERT_EQ(row.bucket[0], row.iteration + 1);
        ASSERT_EQ(row.bucket[1], row.iteration + 1);
    }
    EXPECT_EQ(count(job.ranks[0].err, "plan in force"), 0u) << job.ranks[0].err;
}

// Of 2 ms each, so that no plan comes into force: a switch is named half a second ahead.
TEST(PlanFaults, AThousandIterationsWithAChangeEveryTen) {
    const Job job = run(2, 1000, kDelay, "unsteady");
    expect_sound(job);
    ASSERT_GE(job.rows[0].size(), 1000u);
    for (const Row& row : job.rows[0]) {
        for (const std::int64_t value : row.bucket) {
            // This iteration's, the one before's under a plan, or nothing where a plan begins.
            const std::int64_t lag = row.iteration + 1 - value;
            ASSERT_TRUE(lag == 0 || lag == 1 || value == 0)
                << "iteration " << row.iteration << ": " << value;
        }
    }
}

struct Delivered {
    std::uint64_t plans = 0;  // that delivered something
    int last = 0;             // iteration under one
};

// What every update received: this iteration's sums, nothing where a plan begins, and those of the
// iteration before as long as it is in force. A change ends it at once.
Delivered follow(const std::string& out) {
    enum class State { Forwarded, Begun, Late };
    State state = State::Forwarded;
    Delivered delivered;
    std::istringstream lines(out);
    bool changed = false;
    for (std::string line; std::getline(lines, line);) {
        Row row;
        if (line == "changed") {
            changed = true;
        } else if (std::sscanf(line.c_str(), "%d %ld %ld", &row.iteration, &row.bucket[0],
                               &row.bucket[1]) == 3) {
            const bool ended = std::exchange(changed, false);
            const State before = ended ? State::Forwarded : state;
            const std::int64_t value = row.bucket[0];
            EXPECT_EQ(value, row.bucket[1]) << "iteration " << row.iteration;
            state = value == 0               ? State::Begun
                    : value == row.iteration ? State::Late
                                             : State::Forwarded;
            const bool under_plan = before != State::Forwarded;
            EXPECT_EQ(state == State::Late, under_plan) << "iteration " << row.iteration;
            EXPECT_TRUE(state != State::Begun || !ended) << "iteration " << row.iteration;
            EXPECT_TRUE(state != State::Forwarded || value == row.iteration + 1)
                << "iteration " << row.iteration << ": " << value;
            delivered.plans += state == State::Begun ? 1 : 0;
            delivered.last = state == State::Forwarded ? delivered.last : row.iteration;
        }
    }
    return delivered;
}

Job run_recurring(int iterations, std::vector<nlohmann::json>& plans) {
    const Folder folder;
    Environment environment = kDelay;
    environment["DEFT_OUT"] = folder / "rank%r.json";
    Job job = finish_ranks(start_ranks(folder, 2, iterations, environment, "recurring"), folder);
    for (int rank = 0; rank < 2; ++rank) {
        plans.push_back(plan_of(job, rank));
    }
    return job;
}

// Remembered plans come back within ten iterations, and are ended with sums on their way.
TEST(PlanFaults, PlansComeAndGoWithAChangeEveryTen) {
    std::vector<nlohmann::json> plans;
    const Job job = run_recurring(60, plans);
    expect_sound(job);
    const Delivered delivered = follow(job.ranks[0].out);
    EXPECT_GE(delivered.plans, 6U) << job.ranks[0].err;
    for (const nlohmann::json& plan : plans) {
        SCOPED_TRACE(plan.dump(1));
        EXPECT_GE(plan["switched"], delivered.plans);
        EXPECT_GE(plan["ended"], delivered.plans - 1) << "the last may be in force to the end";
        EXPECT_GE(plan["dropped"], 2 * (delivered.plans - 1)) << "two buckets each";
        EXPECT_LE(plan["dropped"], 2 * delivered.plans);
    }
}

TEST(PlanFaults, AThousandIterationsInWhichPlansComeAndGoUntilTheyAreRare) {
    std::vector<nlohmann::json> plans;
    const Job job = run_recurring(1000, plans);
    expect_sound(job);
    const Delivered delivered = follow(job.ranks[0].out);
    EXPECT_GE(delivered.plans, 15U) << job.ranks[0].err;
    const int iterations = job.rows[0].back().iteration + 1;
    EXPECT_GE(iterations, 1000);
    EXPECT_LE(delivered.plans, 30U) << "short plans have longer and longer pauses behind them";
    for (const nlohmann::json& plan : plans) {
        SCOPED_TRACE(plan.dump(1));
        EXPECT_GE(plan["ended"], 20U);
        EXPECT_EQ(plan["ended"], plan["switched"]);
        EXPECT_EQ(plan["dropped"], 2 * delivered.plans) << "two buckets each";
        EXPECT_NE(plan["state"], "resting") << "planning never ends for good";
    }
}

TEST(PlanFaults, DestroyedWithTransfersInFlight) {
    const Job job = run(2, 50, kDelay, "busy");
    expect_sound(job);
}

class Aborted : public ::testing::TestWithParam<int> {};

TEST_P(Aborted, FromAnotherThreadInTheMiddleOfAnIteration) {
    const Job job = run(2, 50, kDelay, "stall-" + std::to_string(GetParam()));
    for (const Outcome& rank : job.ranks) {
        EXPECT_EQ(rank.status, 0) << rank.out << rank.err;
    }
    // Rank 1 may see its peer go in the middle of a lane's transfer.
    EXPECT_EQ(count(job.ranks[0].err, "softdev: error"), 0u) << job.ranks[0].err;
    EXPECT_EQ(count(job.ranks[0].out, "aborted\n"), 1u) << job.ranks[0].out;
    if (GetParam() < 0) {
        EXPECT_GE(count(job.ranks[0].err, "plan in force"), 1u) << job.ranks[0].err;
    }
}

// Before the ranks have agreed, while they learn, plan, stage (iterations of 2 ms), under the plan.
INSTANTIATE_TEST_SUITE_P(Iterations, Aborted, ::testing::Values(1, 8, 15, 25, 40, -1));

}  // namespace
}  // namespace deft::test
