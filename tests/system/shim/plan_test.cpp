// SPDX-License-Identifier: Apache-2.0
// Ranks on the software device whose plan comes into force while they run: what every update
// received is compared with what it should have.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "tests/system/shim/process.h"

namespace deft::test {
namespace {

struct Row {
    int iteration = 0;
    std::int64_t bucket[2] = {0, 0};
};

struct Job {
    std::vector<Outcome> ranks;
    std::vector<std::vector<Row>> rows;  // by rank
};

Job run(int ranks, int iterations, const Environment& extra, const std::string& how = "") {
    const Folder folder;
    std::vector<Started> started;
    for (int rank = 0; rank < ranks; ++rank) {
        Environment environment{
            {"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_HOSTID", "host" + std::to_string(rank)},
            {"DEFT_INTERFACES", "lo"},    {"DEFT_LOG", "info"},
            {"DEFT_WARMUP", "10"},        {"LD_PRELOAD", PRELOAD},
            {"NCCL_NET_PLUGIN", PRELOAD}};
        for (const auto& [key, value] : extra) {
            environment[key] = value;
        }
        std::vector<std::string> command{PLAN_MAIN, std::to_string(rank), std::to_string(ranks),
                                         folder / "id", std::to_string(iterations)};
        if (!how.empty()) {
            command.push_back(how);
        }
        started.push_back(start(command, environment, folder, "rank" + std::to_string(rank)));
    }
    Job job;
    for (const Started& rank : started) {
        job.ranks.push_back(finish(rank, folder));
        std::istringstream lines(job.ranks.back().out);
        std::vector<Row> rows;
        for (std::string line; std::getline(lines, line);) {
            Row row;
            double first = -1;
            double second = -1;
            if (std::sscanf(line.c_str(), "%d %lf %lf", &row.iteration, &first, &second) == 3) {
                row.bucket[0] = static_cast<std::int64_t>(first);
                row.bucket[1] = static_cast<std::int64_t>(second);
                rows.push_back(row);
            }
        }
        job.rows.push_back(std::move(rows));
    }
    return job;
}

// All ranks ended well and their updates received the same numbers.
void expect_sound(const Job& job) {
    for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
        SCOPED_TRACE("rank " + std::to_string(rank));
        ASSERT_EQ(job.ranks[rank].status, 0) << job.ranks[rank].out << job.ranks[rank].err;
        EXPECT_EQ(count(job.ranks[rank].err, "WARN"), 0u) << job.ranks[rank].err;
        EXPECT_EQ(count(job.ranks[rank].err, "softdev: error"), 0u) << job.ranks[rank].err;
        EXPECT_EQ(job.ranks[rank].out, job.ranks[0].out) << "replicas differ";
        ASSERT_FALSE(job.rows[rank].empty());
    }
}

// What both buckets of the row before and after a line of its own held.
std::pair<Row, Row> around(const Job& job, const std::string& line) {
    std::istringstream lines(job.ranks[0].out);
    std::pair<Row, Row> rows;
    bool seen = false;
    for (std::string text; std::getline(lines, text);) {
        Row row;
        if (text.starts_with(line)) {
            seen = true;
        } else if (std::sscanf(text.c_str(), "%d %ld %ld", &row.iteration, &row.bucket[0],
                               &row.bucket[1]) == 3) {
            (seen ? rows.second : rows.first) = row;
            if (seen) {
                return rows;
            }
        }
    }
    ADD_FAILURE() << "no line " << line;
    return rows;
}

// Gradients are whole numbers t + 1, so sums of what has been delivered tell which they were:
// every gradient once, in order, in whole generations. Returns how many of each lag were seen.
std::map<int, int> lags(const std::vector<Row>& rows, int bucket) {
    std::map<int, int> seen;
    std::int64_t delivered = 0;
    std::int64_t sent = 0;
    int upto = 0;  // gradients 0..upto-1 have been delivered
    for (const Row& row : rows) {
        delivered += row.bucket[bucket];
        while (sent < delivered && upto <= row.iteration) {
            sent += ++upto;
        }
        EXPECT_EQ(sent, delivered)
            << "iteration " << row.iteration << ": no whole gradients in order";
        if (sent != delivered) {
            break;
        }
        ++seen[row.iteration + 1 - upto];
    }
    if (seen.empty()) {
        ADD_FAILURE() << "no iterations";
        seen[0] = 0;
    }
    return seen;
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

TEST(Plan, AJobThatChangesItsBucketsIsLearnedAgain) {
    const Job job = run(2, 100, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}}, "change");
    expect_sound(job);
    EXPECT_EQ(count(job.ranks[0].err, "plan in force"), 2u) << job.ranks[0].err;
    const auto [before, after] = around(job, "changed");
    EXPECT_EQ(before.bucket[0], before.iteration) << "the plan was in force";
    EXPECT_EQ(after.bucket[0], after.iteration + 1) << "the call that differs is forwarded";
    EXPECT_EQ(job.rows[0].back().bucket[0], job.rows[0].back().iteration) << "and it is again";
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
    EXPECT_EQ(lags(job.rows[0], 0).rbegin()->first, 0);
    for (const Row& row : job.rows[0]) {
        EXPECT_NE(row.bucket[0], 0);
    }
}

TEST(Plan, AFlushMakesTheJobSynchronousForAWhile) {
    const Job job = run(2, 100, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}}, "flush");
    expect_sound(job);
    // Two buckets of one generation were on their way.
    const auto [before, after] = around(job, "flushed 2");
    EXPECT_EQ(before.bucket[0], before.iteration);
    EXPECT_EQ(after.bucket[0], after.iteration + 1) << "synchronous right after the flush";
    EXPECT_EQ(count(job.ranks[0].err, "plan in force"), 2u) << "it comes back";
}

TEST(Plan, AnAbortedCommunicatorTakesItsLanesAlong) {
    const Job job = run(2, 50, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}}, "abort");
    for (const Outcome& rank : job.ranks) {
        EXPECT_EQ(rank.status, 0) << rank.out << rank.err;
    }
}

}  // namespace
}  // namespace deft::test
