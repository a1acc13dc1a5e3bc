// SPDX-License-Identifier: Apache-2.0
// Jobs over NCCL's own library, with deft as its network plugin and in the modes of its shim. Every
// element is checked by the job itself.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "tests/system/shim/process.h"

namespace deft::test {
namespace {

// The line of a rank's output that begins so.
std::string said(const Outcome& rank, const std::string& begin) {
    std::istringstream lines(rank.out);
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with(begin)) {
            return line;
        }
    }
    return "";
}

struct Shape {
    int ranks = 2;
    int gpus_per_host = 1;
};

class Job {
public:
    explicit Job(const std::string& scenario, Shape shape = {}, Environment extra = {}) {
        for (int rank = 0; rank < shape.ranks; ++rank) {
            Environment environment{
                {"NCCL_SOCKET_IFNAME", "lo"},
                {"NCCL_HOSTID", "host" + std::to_string(rank / shape.gpus_per_host)},
                {"NCCL_SHM_DISABLE", shape.gpus_per_host > 1 ? "0" : "1"},
                {"NCCL_DEBUG", "WARN"},
                {"DEFT_INTERFACES", "lo"},
                {"DEFT_WARMUP", "10"},
                {"DEFT_OUT", folder_ / "rank%r.json"},
                {"LD_PRELOAD", PRELOAD},
                {"NCCL_NET_PLUGIN", PRELOAD},
                {"DEFT_MODE", "observe"}};
            for (const auto& [key, value] : extra) {
                environment[key] = value;
            }
            // Named, because 2.28.9 frees twice where it tries InfiniBand in vain. In mode off the
            // plugin has no devices.
            environment["NCCL_NET"] = environment["DEFT_MODE"] == "off" ? "Socket" : "deft";
            started_.push_back(
                start({JOB_MAIN, scenario, std::to_string(rank), std::to_string(shape.ranks),
                       folder_ / "id", std::to_string(rank % shape.gpus_per_host)},
                      environment, folder_, "rank" + std::to_string(rank)));
        }
    }

    // Until every rank has said so.
    void wait_until_begun() const {
        for (const Started& rank : started_) {
            for (int i = 0; i < 6000 && count(read_file(rank.err), "begun\n") == 0; ++i) {
                std::this_thread::sleep_for(std::chrono::milliseconds(10));
            }
            ASSERT_EQ(count(read_file(rank.err), "begun\n"), 1u) << read_file(rank.err);
        }
    }
    void kill_rank(std::size_t rank) const { ::kill(started_[rank].pid, SIGKILL); }

    const std::vector<Outcome>& finish_all() {
        for (std::size_t i = ranks_.size(); i < started_.size(); ++i) {
            ranks_.push_back(finish(started_[i], folder_));
        }
        return ranks_;
    }

    // All ranks ended well, and what they checked was right. NCCL writes to the same output.
    void expect_right(unsigned long long least) {
        for (const Outcome& rank : finish_all()) {
            EXPECT_EQ(rank.status, 0) << rank.out << rank.err;
            unsigned long long checked = 0;
            unsigned long long wrong = 1;
            EXPECT_EQ(std::sscanf(said(rank, "checked").c_str(), "checked %llu wrong %llu",
                                  &checked, &wrong),
                      2)
                << rank.out << rank.err;
            EXPECT_EQ(wrong, 0u);
            EXPECT_GE(checked, least);
            EXPECT_EQ(count(rank.err, "softdev: error"), 0u) << rank.err;
            EXPECT_EQ(count(rank.out, "NCCL WARN"), 0u) << rank.out;
        }
    }
    void expect_aborted() {
        for (const Outcome& rank : finish_all()) {
            EXPECT_EQ(rank.status, 0) << rank.out << rank.err;
            EXPECT_EQ(said(rank, "aborted"), "aborted") << rank.out << rank.err;
            EXPECT_EQ(count(rank.err, "softdev: error"), 0u) << rank.err;
        }
    }
    const Folder& folder() const { return folder_; }

private:
    Folder folder_;
    std::vector<Started> started_;
    std::vector<Outcome> ranks_;
};

TEST(RealNcclJobs, GoThroughThePlugin) {
    Job job("few-buckets", {}, {{"NCCL_DEBUG", "INFO"}, {"DEFT_MODE", "observe"}});
    job.expect_right(7'000'000);
    for (const Outcome& rank : job.finish_all()) {
        EXPECT_GE(count(rank.out, "Using network deft"), 1u) << rank.out;
        EXPECT_GE(count(rank.out, "via NET/deft"), 1u) << rank.out;
    }
    const auto& reports = job.finish_all().back().reports;
    ASSERT_EQ(reports.size(), 2u);
    EXPECT_GT(reports.at("rank0.json")["links"][0]["bytes_sent"], 1'000'000);
}

class Protocols : public ::testing::TestWithParam<const char*> {};

TEST_P(Protocols, EveryCollectiveTypeAndOperation) {
    for (const int ranks : {2, 3}) {
        Job job("collectives", {ranks, 1}, {{"NCCL_PROTO", GetParam()}});
        job.expect_right(10'000'000);
    }
}

TEST_P(Protocols, TwoHostsWithTwoGpus) {
    Job job("few-buckets", {4, 2}, {{"NCCL_PROTO", GetParam()}});
    job.expect_right(7'000'000);
}

INSTANTIATE_TEST_SUITE_P(All, Protocols, ::testing::Values("Simple", "LL", "LL128"),
                         [](const auto& info) { return std::string(info.param); });

class Modes : public ::testing::TestWithParam<const char*> {};

// More than 1e8 elements on each rank.
TEST_P(Modes, ThreeHundredIterationsOfFourBuckets) {
    Job job("buckets", {}, {{"DEFT_MODE", GetParam()}});
    job.expect_right(100'000'000);
}

// In mode deft updates come late on purpose; the project's own jobs know by how much.
INSTANTIATE_TEST_SUITE_P(All, Modes, ::testing::Values("off", "observe", "exact"),
                         [](const auto& info) { return std::string(info.param); });

class RankCounts : public ::testing::TestWithParam<int> {};

TEST_P(RankCounts, LargeSums) {
    Job job("large", {GetParam(), 1});
    job.expect_right(16'000'000);
}

INSTANTIATE_TEST_SUITE_P(All, RankCounts, ::testing::Values(2, 3, 5, 8));

TEST(RealNcclJobs, GraphsAreReplayed) {
    Job job("capture");
    job.expect_right(2'000'000);
}

TEST(RealNcclJobs, CommunicatorsThatDoNotBlock) {
    Job job("nonblocking");
    job.expect_right(500'000);
}

class Aborts : public ::testing::TestWithParam<const char*> {};

TEST_P(Aborts, EndTheJob) {
    Job job(std::string("abort-") + GetParam(), {}, {{"DEFT_MODE", "observe"}});
    job.expect_aborted();
}

INSTANTIATE_TEST_SUITE_P(States, Aborts,
                         ::testing::Values("unused", "idle", "alone", "traffic", "starting",
                                           "starting-alone", "finalizing"),
                         [](const auto& info) {
                             std::string name = info.param;
                             std::erase(name, '-');
                             return name;
                         });

TEST(RealNcclJobs, AKilledRankIsHeardOf) {
    for (const int ranks : {2, 3}) {
        Job job("survive", {ranks, 1}, {{"DEFT_MODE", "observe"}});
        job.wait_until_begun();
        job.kill_rank(static_cast<std::size_t>(ranks) - 1);
        const auto& outcomes = job.finish_all();
        EXPECT_TRUE(WIFSIGNALED(outcomes.back().status));
        for (std::size_t rank = 0; rank + 1 < outcomes.size(); ++rank) {
            EXPECT_EQ(outcomes[rank].status, 0) << outcomes[rank].out << outcomes[rank].err;
            EXPECT_EQ(count(outcomes[rank].out, "heard of error"), 1u) << outcomes[rank].err;
            EXPECT_EQ(count(outcomes[rank].out, "aborted\n"), 1u) << outcomes[rank].err;
        }
    }
}

}  // namespace
}  // namespace deft::test
