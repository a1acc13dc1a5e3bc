// SPDX-License-Identifier: Apache-2.0
// The operator's kill switch, in a job that runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/system/shim/control/plan_job.h"

namespace deft::test {
namespace {

using namespace std::chrono_literals;

// Waits until every rank has said so that often.
bool say(const std::vector<Started>& ranks, const std::string& text, std::size_t times) {
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    return std::all_of(ranks.begin(), ranks.end(), [&](const Started& rank) {
        while (count(read_file(rank.err), text) < times) {
            if (std::chrono::steady_clock::now() > deadline) {
                return false;
            }
            std::this_thread::sleep_for(5ms);
        }
        return true;
    });
}

// The file is there for one rank; both give up the plan at one call, and take it up when it goes.
TEST(KillSwitch, EndsThePlanOnAllRanksAndLetsItComeBack) {
    const Folder folder;
    const std::string file = folder / "off";
    const auto started = start_ranks(folder, 2, 5, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}},
                                     "until", {{1, {{"DEFT_KILL_FILE", file}}}});
    const bool began = say(started, "plan in force", 1);
    std::ofstream(file).close();
    const bool ended = say(started, "calls are forwarded again", 1);
    const std::string leader = read_file(started[0].err);
    std::filesystem::remove(file);
    const bool again = say(started, "plan in force", 2);
    std::ofstream(folder / "id.stop").close();
    const Job job = finish_ranks(started, folder);
    ASSERT_TRUE(began && ended && again) << job.ranks[0].err << job.ranks[1].err;
    expect_sound(job, "the kill switch is there on rank 1");
    EXPECT_EQ(count(job.ranks[0].err, "WARN"), 1U) << job.ranks[0].err;
    EXPECT_EQ(count(job.ranks[1].err, "the kill switch " + file + " is there"), 1U);
    EXPECT_EQ(count(leader, "plan in force"), 1U) << "none came while the file was there";
    // In time, late, in time while the file was there, late again.
    for (const Row& row : job.rows[0]) {
        EXPECT_TRUE(row.bucket[0] == row.iteration + 1 || row.bucket[0] == row.iteration ||
                    row.bucket[0] == 0)
            << row.iteration;
    }
    int changes = 0;
    for (std::size_t i = 1; i < job.rows[0].size(); ++i) {
        const auto late = [&](const Row& row) { return row.bucket[0] == row.iteration; };
        changes += late(job.rows[0][i]) != late(job.rows[0][i - 1]) ? 1 : 0;
    }
    EXPECT_GE(changes, 3);
}

// It is there from the start: nothing begins, and the job is the job.
TEST(KillSwitch, KeepsPlansFromBeginning) {
    const Folder folder;
    const std::string file = folder / "off";
    std::ofstream(file).close();
    const auto started = start_ranks(folder, 2, 5, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}},
                                     "until", {{1, {{"DEFT_KILL_FILE", file}}}});
    const bool said = say({started[0]}, "nothing is planned: the kill switch is there", 1);
    std::ofstream(folder / "id.stop").close();
    const Job job = finish_ranks(started, folder);
    ASSERT_TRUE(said) << job.ranks[0].err;
    expect_sound(job);
    EXPECT_EQ(count(job.ranks[0].err, "WARN"), 0U) << "no plan had to end: " << job.ranks[0].err;
    EXPECT_EQ(count(job.ranks[0].err, "plan in force"), 0U) << job.ranks[0].err;
}

}  // namespace
}  // namespace deft::test
