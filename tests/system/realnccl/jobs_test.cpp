// SPDX-License-Identifier: Apache-2.0
// Jobs over NCCL's own library, with deft as its network plugin and in the modes of its shim. Every
// element is checked by the job itself.
#include <gtest/gtest.h>
#include <signal.h>

#include <cctype>
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

std::string upper(std::string text) {
    for (char& letter : text) {
        letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    }
    return text;
}

// NCCL_ALGO of this run, as NCCL's log says it.
std::string algorithm() {
    const char* const name = std::getenv("TEST_NCCL_ALGO");
    return name != nullptr ? upper(name) : "RING";
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
                {"NCCL_DEBUG", "INFO"},
                {"NCCL_DEBUG_SUBSYS", "INIT,NET,SHM,TUNING"},
                {"NCCL_DEBUG_FILE", folder_ / ("nccl" + std::to_string(rank))},
                {"DEFT_INTERFACES", "lo"},
                {"DEFT_WARMUP", "10"},
                {"DEFT_LOG", "info"},
                {"DEFT_GRADIENTS", "trust"},
                {"DEFT_OUT", folder_ / "rank%r.json"},
                {"LD_PRELOAD", PRELOAD},
                {"NCCL_NET_PLUGIN", PRELOAD},
                {"DEFT_MODE", "observe"}};
            for (const auto& [key, value] : extra) {
                environment[key] = value;
            }
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

    // All ranks ended well, and what they checked was right.
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
        }
    }
    void expect_right_and_quiet(unsigned long long least) {
        expect_right(least);
        for (std::size_t rank = 0; rank < started_.size(); ++rank) {
            // 2.30 says that InfiniBand's library is missing where no plugin has devices.
            EXPECT_EQ(count(nccl_says(rank), "NCCL WARN"),
                      count(nccl_says(rank), "NCCL WARN lib wrapper not initialized"))
                << nccl_says(rank);
        }
    }
    // The abort found every rank in the state it was meant for, and a new communicator works.
    void expect_aborted() {
        for (const Outcome& rank : finish_all()) {
            EXPECT_EQ(said(rank, "found"), "found so") << rank.out << rank.err;
            EXPECT_EQ(said(rank, "aborted"), "aborted") << rank.out << rank.err;
        }
        expect_right(300'000);
    }
    // What NCCL itself says of a rank.
    std::string nccl_says(std::size_t rank) const {
        return read_file(folder_ / ("nccl" + std::to_string(rank)));
    }
    // NCCL's rank 0 says how it does each collective. All of them, of which there are some, are
    // done so.
    void expect_done(const std::string& algorithm, const std::string& protocol) const {
        const std::string text = nccl_says(0);
        const std::size_t all = count(text, "-> Algo ");
        const std::string wanted =
            "-> Algo " + algorithm + (protocol.empty() ? "" : " proto " + upper(protocol) + " ");
        EXPECT_GT(all, 0u) << text;
        EXPECT_EQ(count(text, wanted), all) << wanted;
    }

private:
    Folder folder_;
    std::vector<Started> started_;
    std::vector<Outcome> ranks_;
};

TEST(RealNcclJobs, GoThroughThePlugin) {
    Job job("few-buckets");
    job.expect_right_and_quiet(7'000'000);
    for (const std::size_t rank : {0, 1}) {
        EXPECT_GE(count(job.nccl_says(rank), "Using network deft"), 1u) << job.nccl_says(rank);
        EXPECT_GE(count(job.nccl_says(rank), "via NET/deft"), 1u) << job.nccl_says(rank);
        EXPECT_EQ(count(job.nccl_says(rank), "via SHM"), 0u) << job.nccl_says(rank);
    }
    const auto& reports = job.finish_all().back().reports;
    ASSERT_EQ(reports.size(), 2u);
    EXPECT_GT(reports.at("rank0.json")["links"][0]["bytes_sent"], 1'000'000);
}

// Without devices of deft's, and without InfiniBand, NCCL finds its own sockets.
TEST(RealNcclJobs, GoThroughSocketsInModeOff) {
    Job job("few-buckets", {}, {{"DEFT_MODE", "off"}});
    job.expect_right_and_quiet(7'000'000);
    for (const std::size_t rank : {0, 1}) {
        EXPECT_GE(count(job.nccl_says(rank), "via NET/Socket"), 1u) << job.nccl_says(rank);
        EXPECT_EQ(count(job.nccl_says(rank), "via NET/deft"), 0u) << job.nccl_says(rank);
    }
}

class Protocols : public ::testing::TestWithParam<const char*> {};

TEST_P(Protocols, EveryCollectiveTypeAndOperation) {
    for (const int ranks : {2, 3}) {
        // NCCL reduces 8-bit floats from 9.0 on.
        Job job("collectives", {ranks, 1}, {{"NCCL_PROTO", GetParam()}, {"SOFTDEV_COMPUTE", "90"}});
        job.expect_right_and_quiet(10'000'000);
        job.expect_done(algorithm(), GetParam());
    }
}

TEST_P(Protocols, TwoHostsWithTwoGpus) {
    for (const char* const mode : {"observe", "exact"}) {
        Job job("few-buckets", {4, 2}, {{"NCCL_PROTO", GetParam()}, {"DEFT_MODE", mode}});
        job.expect_right_and_quiet(7'000'000);
        job.expect_done(algorithm(), GetParam());
        for (std::size_t rank = 0; rank < 4; ++rank) {
            EXPECT_GE(count(job.nccl_says(rank), "via SHM/"), 1u) << job.nccl_says(rank);
        }
        EXPECT_GE(count(job.nccl_says(0), "via NET/deft"), 1u) << job.nccl_says(0);
    }
}

INSTANTIATE_TEST_SUITE_P(All, Protocols, ::testing::Values("Simple", "LL", "LL128"),
                         [](const auto& info) { return std::string(info.param); });

class Modes : public ::testing::TestWithParam<const char*> {};

// More than 1e8 elements on each rank.
TEST_P(Modes, ThreeHundredIterationsOfFourBuckets) {
    Job job("buckets", {}, {{"DEFT_MODE", GetParam()}});
    job.expect_right_and_quiet(100'000'000);
}

INSTANTIATE_TEST_SUITE_P(All, Modes, ::testing::Values("off", "observe", "exact"),
                         [](const auto& info) { return std::string(info.param); });

// Updates come one iteration late, each of them once. Rank 0 says when the plan is in force.
void expect_late(Job& job, int wanted) {
    job.expect_right_and_quiet(375'001ULL * static_cast<unsigned>(wanted));
    EXPECT_EQ(count(job.finish_all()[0].err, "plan in force"), 1u) << job.finish_all()[0].err;
    for (const Outcome& rank : job.finish_all()) {
        int iterations = 0;
        int latest = 0;
        EXPECT_EQ(std::sscanf(said(rank, "late").c_str(), "late in %d iterations, by at most %d",
                              &iterations, &latest),
                  2)
            << rank.out;
        EXPECT_EQ(iterations, wanted);
        EXPECT_EQ(latest, 1);
    }
}

const Environment kDelayed{{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}};

TEST(RealNcclJobs, ThreeHundredIterationsUnderAPlanThatDelays) {
    Job job("late-buckets", {}, kDelayed);
    expect_late(job, 300);
}

class RankCounts : public ::testing::TestWithParam<int> {};

TEST_P(RankCounts, LargeSums) {
    Job job("large", {GetParam(), 1});
    job.expect_right_and_quiet(4'000'000);
    job.expect_done(algorithm(), "");
}

TEST_P(RankCounts, FewIterationsInModeExact) {
    Job job("few-buckets", {GetParam(), 1}, {{"DEFT_MODE", "exact"}});
    job.expect_right_and_quiet(7'000'000);
}

TEST_P(RankCounts, FewIterationsUnderAPlanThatDelays) {
    Job job("few-late-buckets", {GetParam(), 1}, kDelayed);
    expect_late(job, 30);
}

INSTANTIATE_TEST_SUITE_P(All, RankCounts, ::testing::Values(2, 3, 5, 8));

TEST_P(Modes, GraphsAreReplayed) {
    Job job("capture", {}, {{"DEFT_MODE", GetParam()}});
    job.expect_right_and_quiet(4'000'000);
}

TEST_P(Modes, CommunicatorsThatDoNotBlock) {
    Job job("nonblocking", {}, {{"DEFT_MODE", GetParam()}});
    job.expect_right_and_quiet(500'000);
}

class Aborts : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(Aborts, EndTheJobAndLeaveRoomForAnother) {
    const auto [state, mode] = GetParam();
    Job job(std::string("abort-") + state, {}, {{"DEFT_MODE", mode}});
    job.expect_aborted();
}

INSTANTIATE_TEST_SUITE_P(
    States, Aborts,
    ::testing::Combine(::testing::Values("unused", "idle", "alone", "traffic", "starting",
                                         "starting-alone", "finalizing", "capturing", "replaying"),
                       ::testing::Values("observe", "exact")),
    [](const auto& info) {
        std::string name = std::get<0>(info.param);
        std::erase(name, '-');
        return name + "_" + std::get<1>(info.param);
    });

TEST_P(Modes, AKilledRankIsHeardOf) {
    for (const int ranks : {2, 3}) {
        Job job("survive", {ranks, 1}, {{"DEFT_MODE", GetParam()}});
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
