// SPDX-License-Identifier: Apache-2.0
// What happens to a job while its lanes over another network are made and measured: a rank dies,
// the communicator ends, that network stands still or breaks. The network is the software device's
// Socket, which stops where the test says so; every job ends by itself (plan_main has a deadline).
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "tests/system/shim/plan_job.h"

namespace deft::test {
namespace {

using namespace std::chrono_literals;

// Sent by a rank when its lane has been warmed up and is being measured: the warm-up takes 4.3 MB
// of two ranks (5.7 MB of three), measuring four times as much.
constexpr const char* kMeasuring = "8000000";

const Environment kOverTwo{{"DEFT_MODE", "deft"},
                           {"DEFT_PLAN", "delay1"},
                           {"DEFT_LANES", "Socket"},
                           {"DEFT_LINK_TIMEOUT", "5s"}};

Environment fault(const Folder& folder, const std::string& what, const std::string& at) {
    return {{"SOFTNET_SOCKET_FAULT", what + ":" + at + ":" + (folder / "fault").string()}};
}

// The fault has happened; false too if a rank has ended.
bool happens(const Folder& folder, const std::vector<Started>& ranks) {
    const auto deadline = std::chrono::steady_clock::now() + 300s;
    while (!fs::exists(folder / "fault")) {
        for (const Started& rank : ranks) {
            siginfo_t ended{};
            ::waitid(P_PID, static_cast<id_t>(rank.pid), &ended, WEXITED | WNOHANG | WNOWAIT);
            if (ended.si_pid != 0 || std::chrono::steady_clock::now() > deadline) {
                return false;
            }
        }
        std::this_thread::sleep_for(2ms);
    }
    return true;
}

class Killed : public ::testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(Killed, TheOthersNoticeAndEnd) {
    const auto [victim, at] = GetParam();
    const Folder folder;
    Environment environment = kOverTwo;
    environment["SOFTDEV_NCCL_GRACE"] = "1";  // the job waits for its copy, not for the error
    const auto started =
        start_ranks(folder, 3, 5, environment, "until", {{victim, fault(folder, "hold", at)}});
    const bool there = happens(folder, started);
    ::kill(started[static_cast<std::size_t>(victim)].pid, SIGKILL);
    const Job job = finish_ranks(started, folder);
    ASSERT_TRUE(there) << job.ranks[0].err;
    for (int rank = 0; rank < 3; ++rank) {
        const Outcome& outcome = job.ranks[static_cast<std::size_t>(rank)];
        if (rank != victim) {
            EXPECT_EQ(outcome.status, 0) << outcome.err;
            EXPECT_TRUE(outcome.out.ends_with("lost\n")) << outcome.err;
            EXPECT_EQ(lags(job.rows[static_cast<std::size_t>(rank)], 0).rbegin()->first, 0);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(LeaderAndFollower, Killed,
                         ::testing::Combine(::testing::Values(0, 2),
                                            ::testing::Values("init", kMeasuring)));

class Ended : public ::testing::TestWithParam<const char*> {};

TEST_P(Ended, WhileALaneStandsStill) {
    const Folder folder;
    const auto started =
        start_ranks(folder, 2, 5, kOverTwo, GetParam(), {{1, fault(folder, "hold", kMeasuring)}});
    const bool there = happens(folder, started);
    std::ofstream(folder / "id.stop").close();
    const Job job = finish_ranks(started, folder);
    ASSERT_TRUE(there) << job.ranks[0].err;
    for (const Outcome& rank : job.ranks) {
        // The lane of the rank that ends second may see its peer go.
        EXPECT_EQ(rank.status, 0) << rank.out << rank.err;
        EXPECT_EQ(count(rank.out, "lost"), 0U) << rank.err;
        EXPECT_EQ(count(rank.err, "[deft] WARN"), 0U) << rank.err;
        EXPECT_EQ(rank.out, job.ranks[0].out) << "replicas differ";
        // Nobody has waited until the lane gave up by itself.
        EXPECT_EQ(count(rank.err, "measuring it took too long"), 0U) << rank.err;
    }
    EXPECT_EQ(lags(job.rows[0], 0).rbegin()->first, 0) << "no plan yet";
}

INSTANTIATE_TEST_SUITE_P(By, Ended, ::testing::Values("until", "until abort"));

TEST(LaneFaults, ANetworkThatBreaksIsDoneWithout) {
    const Folder folder;
    const Job job = finish_ranks(
        start_ranks(folder, 2, 20, kOverTwo, "", {{1, fault(folder, "fail", kMeasuring)}}), folder);
    EXPECT_TRUE(fs::exists(folder / "fault"));
    for (const Outcome& rank : job.ranks) {
        ASSERT_EQ(rank.status, 0) << rank.out << rank.err;
        EXPECT_EQ(count(rank.out, "lost"), 0U) << rank.err;
        EXPECT_EQ(count(rank.err, "plan in force"), 1U) << rank.err;
    }
    EXPECT_EQ(count(job.ranks[0].err, "the job's own network is used alone"), 1U)
        << job.ranks[0].err;
    EXPECT_EQ(count(job.ranks[0].err, "too long"), 0U) << job.ranks[0].err;
    EXPECT_EQ(job.ranks[0].out, job.ranks[1].out);
    EXPECT_EQ(lags(job.rows[0], 0).rbegin()->first, 1);
}

}  // namespace
}  // namespace deft::test
