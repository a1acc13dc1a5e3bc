// SPDX-License-Identifier: Apache-2.0
// Ranks as processes on the software device: what they agree on, and what becomes of the job when
// they cannot.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <thread>

#include "base/unique_fd.h"
#include "tests/system/shim/process.h"

namespace deft::test {
namespace {

using namespace std::chrono_literals;
constexpr auto kPatience = 120s;

constexpr char kAgreed[] = "ranks of the communicator agree: DEFT_MODE=deft";
constexpr char kForwarded[] = "WARN not every rank of a communicator can use deft";
constexpr char kBegun[] = "the job has begun";
constexpr char kClosed[] = "agree on nothing new any more";

class Job {
public:
    explicit Job(int ranks, int iterations = 20) : ranks_(ranks), iterations_(iterations) {}
    Job(const Job&) = delete;
    ~Job() {
        for (const auto& [rank, started] : started_) {
            if (outcomes_.count(rank) == 0) {
                ::kill(started.pid, SIGKILL);
                ::waitpid(started.pid, nullptr, 0);
            }
        }
    }

    void start(int rank, const Environment& extra = {}, bool preloaded = true,
               const std::string& how = "linked") {
        Environment environment{{"NCCL_SOCKET_IFNAME", "lo"},
                                {"NCCL_HOSTID", "host" + std::to_string(rank)},
                                {"DEFT_INTERFACES", "lo"},
                                {"DEFT_MODE", "deft"},
                                {"DEFT_GRADIENTS", "trust"},
                                {"DEFT_WARMUP", "1000000"},  // no plan: the numbers are checked
                                {"DEFT_LOG", "info"},
                                {"DEFT_AGREE_TIMEOUT", "30s"},
                                {"DEFT_OUT", folder_ / "rank%r.json"}};
        if (preloaded) {
            environment["LD_PRELOAD"] = PRELOAD;
        }
        for (const auto& [key, value] : extra) {
            environment[key] = value;
        }
        started_[rank] =
            test::start({TRAINING_MAIN, how, std::to_string(rank), std::to_string(ranks_),
                         folder_ / "id", std::to_string(iterations_)},
                        environment, folder_, "rank" + std::to_string(rank));
    }
    void start_all(const Environment& extra = {}, const std::string& how = "linked") {
        for (int rank = 0; rank < ranks_; ++rank) {
            start(rank, extra, true, how);
        }
    }
    const Outcome& finish(int rank) {
        if (outcomes_.count(rank) == 0) {
            outcomes_[rank] = test::finish(started_.at(rank), folder_);
        }
        return outcomes_[rank];
    }
    void kill(int rank, int signal) { ::kill(started_.at(rank).pid, signal); }
    std::string err(int rank) const { return read_file(started_.at(rank).err); }
    bool says(int rank, const std::string& text) const {
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (err(rank).find(text) == std::string::npos) {
            if (std::chrono::steady_clock::now() > deadline) {
                return false;
            }
            std::this_thread::sleep_for(5ms);
        }
        return true;
    }
    void expect_done() {
        for (int rank = 0; rank < ranks_; ++rank) {
            const Outcome& outcome = finish(rank);
            EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
            EXPECT_EQ(outcome.out, "rank " + std::to_string(rank) + " done\n") << outcome.err;
            EXPECT_EQ(count(outcome.err, "softdev: error"), 0u) << outcome.err;
        }
    }
    int ranks() const { return ranks_; }

private:
    const int ranks_;
    const int iterations_;
    const Folder folder_;
    std::map<int, Started> started_;
    std::map<int, Outcome> outcomes_;
};

TEST(Agreement, AllRanksAgree) {
    Job job(3);
    job.start_all();
    job.expect_done();
    for (int rank = 0; rank < 3; ++rank) {
        const std::string& err = job.finish(rank).err;
        EXPECT_EQ(count(err, kAgreed), 1u) << err;
        EXPECT_EQ(count(err, "WARN"), 0u) << err;
    }
}

TEST(Agreement, EightRanks) {
    Job job(8, 5);
    job.start_all();
    job.expect_done();
    for (int rank = 0; rank < 8; ++rank) {
        EXPECT_EQ(count(job.finish(rank).err, kAgreed), 1u) << job.finish(rank).err;
    }
}

TEST(Agreement, ARankWithoutThePreloadTurnsAllOff) {
    Job job(3, 150);
    for (int rank = 0; rank < 3; ++rank) {
        job.start(rank, {{"DEFT_AGREE_TIMEOUT", "200ms"}}, rank != 2);
    }
    job.expect_done();
    for (int rank = 0; rank < 2; ++rank) {
        const std::string& err = job.finish(rank).err;
        EXPECT_EQ(count(err, "WARN"), 1u) << err;
        EXPECT_EQ(count(err, kForwarded), 1u) << err;
        EXPECT_NE(err.find("rank 2 did not answer within 200 ms"), err.npos) << err;
    }
    EXPECT_EQ(job.finish(2).err, "");
}

TEST(Agreement, ALeaderWithoutThePreloadIsNoticedAtOnce) {
    Job job(2);
    job.start(0, {}, false);
    job.start(1);
    job.expect_done();
    const std::string& err = job.finish(1).err;
    EXPECT_EQ(count(err, "WARN"), 1u) << err;
    EXPECT_NE(err.find("runs without deft"), err.npos) << err;
}

TEST(Agreement, OtherSettingsAreNamedOnEveryRank) {
    Job job(3);
    for (int rank = 0; rank < 3; ++rank) {
        job.start(rank, {{"DEFT_MODE", rank == 1 ? "exact" : "deft"}});
    }
    job.expect_done();
    for (int rank = 0; rank < 3; ++rank) {
        const std::string& err = job.finish(rank).err;
        EXPECT_EQ(count(err, "WARN"), 1u) << err;
        EXPECT_NE(err.find("rank 1 ("), err.npos) << err;
        EXPECT_NE(err.find("has DEFT_MODE=exact, rank 0 ("), err.npos) << err;
    }
}

TEST(Agreement, ARankInModeObserveTurnsAllOff) {
    Job job(2, 150);
    job.start(0, {{"DEFT_AGREE_TIMEOUT", "200ms"}});
    job.start(1, {{"DEFT_MODE", "observe"}});
    job.expect_done();
    EXPECT_EQ(count(job.finish(0).err, kForwarded), 1u) << job.finish(0).err;
    EXPECT_EQ(count(job.finish(1).err, "WARN"), 0u) << job.finish(1).err;
}

TEST(Agreement, ALeaderInModeObserveWritesNothingIntoTheId) {
    Job job(2);
    job.start(0, {{"DEFT_MODE", "observe"}});
    job.start(1);
    job.expect_done();
    EXPECT_NE(job.finish(1).err.find("runs without deft"), std::string::npos) << job.finish(1).err;
}

TEST(Agreement, ALateRankIsWaitedForAsNcclWaits) {
    Job job(3);
    job.start(0, {{"DEFT_AGREE_TIMEOUT", "1s"}});
    job.start(1, {{"DEFT_AGREE_TIMEOUT", "1s"}});
    std::this_thread::sleep_for(3s);
    job.start(2, {{"DEFT_AGREE_TIMEOUT", "1s"}});
    job.expect_done();
    for (int rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(count(job.finish(rank).err, kAgreed), 1u) << job.finish(rank).err;
    }
}

TEST(Agreement, NotWithNcclCommId) {
    Job job(2);
    job.start_all({{"NCCL_COMM_ID", "127.0.0.1:28511"}});
    job.expect_done();
    EXPECT_EQ(count(job.finish(0).err, "NCCL_COMM_ID is set"), 1u) << job.finish(0).err;
    EXPECT_EQ(count(job.finish(0).err, kAgreed), 0u);
    EXPECT_EQ(count(job.finish(1).err, kAgreed), 0u);
    EXPECT_EQ(count(job.finish(1).err, "WARN"), 1u) << job.finish(1).err;
}

// Killed while they train: one that goes while NCCL makes the communicator fails that, and there is
// nothing to agree on. Those that survive must not end themselves before they have noticed: "held".
TEST(Agreement, AKilledLeaderIsNoticed) {
    Job job(3, 100'000);
    job.start_all({}, "held");
    for (int rank = 0; rank < 3; ++rank) {
        ASSERT_TRUE(job.says(rank, kAgreed));
        ASSERT_TRUE(job.says(rank, kBegun));
    }
    job.kill(0, SIGKILL);
    for (int rank = 1; rank < 3; ++rank) {
        ASSERT_TRUE(job.says(rank, kClosed)) << job.err(rank);
        EXPECT_NE(job.err(rank).find("the leader at 127.0.0.1"), std::string::npos)
            << job.err(rank);
    }
}

TEST(Agreement, AKilledMemberIsNoticedByAll) {
    Job job(3, 100'000);
    job.start_all({}, "held");
    for (int rank = 0; rank < 3; ++rank) {
        ASSERT_TRUE(job.says(rank, kAgreed));
        ASSERT_TRUE(job.says(rank, kBegun));
    }
    job.kill(2, SIGKILL);
    ASSERT_TRUE(job.says(0, kClosed)) << job.err(0);
    ASSERT_TRUE(job.says(1, kClosed)) << job.err(1);
    EXPECT_NE(job.err(0).find("rank 2 ("), std::string::npos) << job.err(0);
}

TEST(Agreement, AStoppedRankStaysAMember) {
    Job job(3, 200);
    job.start_all();
    for (int rank = 0; rank < 3; ++rank) {
        ASSERT_TRUE(job.says(rank, kAgreed));
    }
    for (const int stopped : {1, 0}) {  // a member, then the leader
        job.kill(stopped, SIGSTOP);
        std::this_thread::sleep_for(2s);
        for (int rank = 0; rank < 3; ++rank) {
            EXPECT_EQ(count(job.err(rank), kClosed), 0u) << job.err(rank);
        }
        job.kill(stopped, SIGCONT);
    }
    job.expect_done();
}

// One clear warning on each rank, and the job goes on without plans.
TEST(Agreement, AWrongSecretOnOneRankTurnsAllOff) {
    const Folder folder;
    for (const auto& [name, text] : Environment{{"right", "correct horse battery staple"},
                                                {"wrong", "correct horse battery stable"}}) {
        std::ofstream(folder / name) << text;
        fs::permissions(folder / name, fs::perms::owner_read);
    }
    Job job(3, 150);
    for (int rank = 0; rank < 3; ++rank) {
        job.start(rank, {{"DEFT_AGREE_TIMEOUT", "200ms"},
                         {"DEFT_SECRET_FILE", folder / (rank == 2 ? "wrong" : "right")}});
    }
    job.expect_done();
    for (int rank = 0; rank < 2; ++rank) {
        const std::string& err = job.finish(rank).err;
        EXPECT_EQ(count(err, "WARN"), 1u) << err;
        EXPECT_EQ(count(err, kForwarded), 1u) << err;
        EXPECT_NE(err.find("rank 2 did not answer"), err.npos) << err;
        EXPECT_NE(err.find("had another shared secret than DEFT_SECRET_FILE"), err.npos) << err;
    }
    EXPECT_LE(count(job.finish(2).err, "WARN"), 1u) << job.finish(2).err;  // it may end before
    EXPECT_EQ(count(job.finish(2).err, kAgreed), 0u) << job.finish(2).err;
}

TEST(Agreement, ALeaderThatFindsNoPortTurnsAllOff) {
    const UniqueFd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t length = sizeof(address);
    auto* const place = reinterpret_cast<sockaddr*>(&address);
    ASSERT_EQ(::bind(taken.get(), place, length), 0);
    ASSERT_EQ(::listen(taken.get(), 1), 0);
    ASSERT_EQ(::getsockname(taken.get(), place, &length), 0);
    const std::string port = std::to_string(ntohs(address.sin_port));
    const std::string range = port + "-" + port;
    Job job(2);
    job.start_all({{"DEFT_PORTS", range}, {"DEFT_INTERFACES", "127.0.0.1"}});
    job.expect_done();
    const std::string& leader = job.finish(0).err;
    EXPECT_EQ(count(leader, "WARN"), 1u) << leader;
    EXPECT_NE(leader.find("all ports of DEFT_PORTS=" + range + " are in use"), leader.npos)
        << leader;
    const std::string& member = job.finish(1).err;
    EXPECT_EQ(count(member, "WARN"), 1u) << member;
    EXPECT_NE(member.find("runs without deft"), member.npos) << member;
}

TEST(Agreement, RequiredAndImpossibleFailsTheCommunicator) {
    Job job(2);
    job.start(0, {{"DEFT_REQUIRE", "1"}, {"DEFT_AGREE_TIMEOUT", "300ms"}});
    job.start(1, {}, false);
    const Outcome& outcome = job.finish(0);
    EXPECT_NE(outcome.status, 0);
    EXPECT_EQ(outcome.out, "ncclCommInitRank failed: 2\n") << outcome.err;
    EXPECT_EQ(count(outcome.err, "DEFT_REQUIRE=1: the communicator fails"), 1u) << outcome.err;
}

TEST(Agreement, RequiredAndPossibleIsAsEver) {
    Job job(2);
    job.start_all({{"DEFT_REQUIRE", "1"}});
    job.expect_done();
    EXPECT_EQ(count(job.finish(1).err, kAgreed), 1u) << job.finish(1).err;
}

}  // namespace
}  // namespace deft::test
