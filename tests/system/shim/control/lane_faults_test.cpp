// SPDX-License-Identifier: Apache-2.0
// What happens to a job while its lanes over another network are made and measured: a rank dies,
// the communicator ends, that network stands still or breaks. The network is the software device's
// Socket, which stops where the test says so; every job ends by itself (plan_main has a deadline).
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/system/shim/control/plan_job.h"

namespace deft::test {
namespace {

using namespace std::chrono_literals;

// Sent by a rank when its lane has been warmed up and is being measured: the warm-up takes 4.3 MB
// of two ranks (5.7 MB of three), measuring four times as much.
constexpr const char* kMeasuring = "8000000";

const Environment kOverTwo{
    {"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}, {"DEFT_LANES", "Socket"}};

Environment fault(const Folder& folder, const std::string& what, const std::string& at) {
    return {{"SOFTNET_SOCKET_FAULT", what + ":" + at + ":" + (folder / "fault").string()}};
}

bool ended(const std::vector<Started>& ranks) {
    return std::any_of(ranks.begin(), ranks.end(), [](const Started& rank) {
        siginfo_t what{};
        ::waitid(P_PID, static_cast<id_t>(rank.pid), &what, WEXITED | WNOHANG | WNOWAIT);
        return what.si_pid != 0;
    });
}

// The fault has happened; false too if a rank has ended.
bool happens(const Folder& folder, const std::vector<Started>& ranks) {
    const auto deadline = std::chrono::steady_clock::now() + 300s;
    while (!fs::exists(folder / "fault")) {
        if (ended(ranks) || std::chrono::steady_clock::now() > deadline) {
            return false;
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
    environment["DEFT_LINK_TIMEOUT"] = "5s";  // a loaded machine may pause for two
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

// A second network dies under a plan: when the last rank, or every rank, has sent so many bytes of
// an iteration over it.
struct Dying {
    int ranks = 2;
    const char* plan = "delay0";
    const char* bytes = "0";
    bool everywhere = false;
    const char* how = "dies";
};

void PrintTo(const Dying& dying, std::ostream* out) {
    *out << dying.ranks << " ranks, " << dying.plan << ", " << dying.how << " after " << dying.bytes
         << (dying.everywhere ? " everywhere" : " on one");
}

// As where the job's own network dies: NCCL's error is the communicator's on every rank, no rank is
// left waiting for another, and none has got a wrong sum (docs/director.md).
void expect_lost(const Job& job, const Dying& dying) {
    const int late = dying.plan == std::string("delay0") ? 0 : 1;
    std::size_t told = 0;
    std::size_t asked = 0;
    for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
        const Outcome& outcome = job.ranks[rank];
        EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
        // Under load a rank may be an iteration behind, and hear of its peer's end before its own.
        EXPECT_LE(count(outcome.out, "dies\n"), 1U) << outcome.out << outcome.err;
        asked += count(outcome.out, "dies\n");
        EXPECT_TRUE(outcome.out.ends_with("lost\n")) << outcome.out << outcome.err;
        EXPECT_EQ(count(outcome.out, "lost"), 1U) << outcome.out;
        EXPECT_EQ(count(outcome.err, "is stuck"), 0U) << outcome.err;
        told += count(outcome.err, "a second network has failed under a plan") +
                count(outcome.err, "a gradient's transfer over a second network failed");
        const auto seen = lags(job.rows[rank], 0);
        EXPECT_EQ(seen.rbegin()->first, late) << "no sum is wrong, nor made twice";
    }
    EXPECT_GE(told, 1U) << job.ranks.back().err;
    EXPECT_GE(asked, 1U) << job.ranks.back().out;
}

class Dies : public ::testing::TestWithParam<Dying> {};

TEST_P(Dies, UnderAPlanAndTheCommunicatorFails) {
    const Dying& dying = GetParam();
    const Folder folder;
    Environment environment = kOverTwo;
    environment["DEFT_PLAN"] = dying.plan;
    environment["SOFTDEV_NCCL_GRACE"] = "1000";  // as NCCL's: only an abort ends what has failed
    std::map<int, Environment> own;
    for (int rank = dying.everywhere ? 0 : dying.ranks - 1; rank < dying.ranks; ++rank) {
        const std::string file = folder / ("id.dies-" + std::to_string(rank));
        own[rank] = {
            {"SOFTNET_SOCKET_FAULT", std::string("fail:asked+") + dying.bytes + ":" + file}};
    }
    const Job job =
        finish_ranks(start_ranks(folder, dying.ranks, 20, environment, dying.how, own), folder);
    expect_lost(job, dying);
    std::size_t died = 0;
    for (int rank = 0; rank < dying.ranks; ++rank) {
        died += fs::exists(folder / ("id.dies-" + std::to_string(rank))) ? 1 : 0;
        EXPECT_EQ(count(job.ranks[static_cast<std::size_t>(rank)].err, "aborted before"), 0U);
    }
    EXPECT_GE(died, 1U) << "the fault";
}

INSTANTIATE_TEST_SUITE_P(
    Network, Dies,
    ::testing::Values(Dying{}, Dying{.bytes = "300000"}, Dying{.bytes = "2500000"},
                      Dying{.everywhere = true}, Dying{.plan = "delay1", .bytes = "300000"},
                      Dying{.plan = "delay1", .everywhere = true}, Dying{.ranks = 3},
                      Dying{.ranks = 3, .plan = "delay1", .bytes = "300000"},
                      Dying{.ranks = 4, .bytes = "300000"}, Dying{.ranks = 4, .bytes = "2500000"},
                      Dying{.ranks = 4, .everywhere = true}, Dying{.how = "dies grouped"},
                      Dying{.ranks = 3, .bytes = "300000", .how = "dies grouped"}));

class IsCut : public ::testing::TestWithParam<Dying> {};

// The same with NCCL's own library: the connections of its Socket end on the last rank.
TEST_P(IsCut, UnderAPlanAndTheCommunicatorFails) {
    if (std::getenv("SOFTDEV_NCCL") == nullptr) {
        GTEST_SKIP() << "the stand-in's communicators fail with the connections they were made by";
    }
    Environment environment = kOverTwo;
    environment["DEFT_PLAN"] = GetParam().plan;
    environment["DEFT_PORTS"] = "28000-28999";
    const Job job = run(GetParam().ranks, 20, environment, GetParam().how);
    expect_lost(job, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Network, IsCut,
                         ::testing::Values(Dying{.how = "cut lanes"},
                                           Dying{.plan = "delay1", .how = "cut lanes"},
                                           Dying{.ranks = 3, .how = "cut lanes"}));

// A lane that was tried by a thread of its own, at any time, would wait for another rank while that
// rank waits for its device, and the other way round.
TEST(LaneFaults, LanesAreTriedBesideAnAllocatorThatWaitsForTheDevice) {
    Environment environment = kOverTwo;
    environment["DEFT_PLAN"] = "delay0";
    const Job job = run(2, 30, environment, "frees medium");
    expect_sound(job);
    for (const Outcome& rank : job.ranks) {
        EXPECT_EQ(count(rank.err, "plan in force"), 1U) << rank.err;
        EXPECT_EQ(count(rank.err, "no lane"), 0U) << rank.err;
    }
}

// The device of one rank has 7 % of its memory left, of which 5 % are the job's.
TEST(LaneFaults, NoLaneIsMadeWhereMemoryIsShort) {
    Environment environment = kOverTwo;
    environment["SOFTDEV_MEMORY"] = "100000000";
    environment["DEFT_PLAN"] = "delay0";
    const Job crowded = run(2, 300, environment, "crowded");
    for (const Outcome& rank : crowded.ranks) {
        ASSERT_EQ(rank.status, 0) << rank.out << rank.err;
        EXPECT_EQ(count(rank.out, "lost"), 0U) << rank.err;
        EXPECT_EQ(count(rank.err, "plan in force"), 0U) << rank.err;
        EXPECT_EQ(count(rank.err, "no lane"), 0U)
            << "nobody makes what another cannot: " << rank.err;
    }
    EXPECT_GE(count(crowded.ranks[0].err, "MiB (5 % of the card) are left to the job"), 1U)
        << crowded.ranks[0].err;
    EXPECT_EQ(lags(crowded.rows[0], 0).rbegin()->first, 0);
}

TEST(LaneFaults, LanesGoWhereTheJobNeedsTheirMemory) {
    Environment environment = kOverTwo;
    environment["SOFTDEV_MEMORY"] = "400000000";
    const Job job = run(2, 500, environment, "fill");
    expect_sound(job);
    EXPECT_EQ(count(job.ranks[0].err, "rank 1 has little device memory left"), 1U)
        << job.ranks[0].err;
    const auto [before, after] = around(job, "filled");
    EXPECT_EQ(before.bucket[0], before.iteration) << "the plan was in force";
    const Row& last = job.rows[0].back();
    EXPECT_EQ(last.bucket[0], last.iteration + 1) << "nothing is late any more";
    for (const Outcome& rank : job.ranks) {
        EXPECT_EQ(count(rank.err, "plan in force"), 1U) << rank.err;
        EXPECT_GE(count(rank.err, "lanes took"), 1U) << rank.err;
    }
}

// Communicators of a rank that are open, by NCCL's own log.
long open_communicators(const Folder& folder, int rank) {
    const std::string log = read_file(folder / ("nccl-" + std::to_string(rank)));
    const std::size_t ended = count(log, "Destroy COMPLETE") + count(log, "Abort COMPLETE");
    return static_cast<long>(count(log, "Init COMPLETE")) - static_cast<long>(ended);
}

std::map<int, Environment> logged(const Folder& folder, Environment environment = {}) {
    std::map<int, Environment> own;
    environment["NCCL_DEBUG"] = "INFO";
    environment["NCCL_DEBUG_SUBSYS"] = "INIT";
    for (int rank = 0; rank < 2; ++rank) {
        own[rank] = environment;
        own[rank]["NCCL_DEBUG_FILE"] = folder / ("nccl-" + std::to_string(rank));
    }
    return own;
}

// Ranks say it, or end before.
bool say(const std::vector<Started>& ranks, const std::string& text) {
    return std::all_of(ranks.begin(), ranks.end(), [&](const Started& rank) {
        const auto deadline = std::chrono::steady_clock::now() + 300s;
        while (read_file(rank.err).find(text) == std::string::npos) {
            if (ended(ranks) || std::chrono::steady_clock::now() > deadline) {
                return false;
            }
            std::this_thread::sleep_for(2ms);
        }
        return true;
    });
}

// Until each rank has no more than that many open; false if a rank ends before.
bool closed(const std::vector<Started>& ranks, const Folder& folder, long most) {
    const auto deadline = std::chrono::steady_clock::now() + 300s;
    while (open_communicators(folder, 0) > most || open_communicators(folder, 1) > most) {
        if (ended(ranks) || std::chrono::steady_clock::now() > deadline) {
            return false;
        }
        std::this_thread::sleep_for(5ms);
    }
    return true;
}

// A network that no megabyte of the medium job is worth: twenty times slower than that is sent
// where nothing is planned, however slow this machine is.
Environment far_slower() {
    constexpr double kUsual = 4e6;  // bytes per second
    const Folder folder;
    const Job job = finish_ranks(
        start_ranks(folder, 2, 40,
                    {{"DEFT_MODE", "observe"}, {"DEFT_OUT", folder / "report-%r.json"}},
                    "plain medium"),
        folder);
    double rate = kUsual;
    for (const auto& bucket : job.ranks[0].reports.at("report-0.json")["buckets"]) {
        if (bucket["bytes"] > 1'000'000) {
            const double seconds = bucket["transfer_ms"]["median"].get<double>() * 1e-3;
            rate = std::min(rate, bucket["bytes"].get<double>() / seconds / 20);
        }
    }
    return {{"SOFTNET_SOCKET_RATE", std::to_string(static_cast<long>(rate))}};
}

// 4 MB that could be cut.
TEST(LaneFaults, ANetworkThatIsFarSlowerIsLeftAndItsLaneClosed) {
    const Folder folder;
    Environment environment = kOverTwo;
    environment["DEFT_OUT"] = folder / "report-%r.json";
    const auto started =
        start_ranks(folder, 2, 5, environment, "until medium", logged(folder, far_slower()));
    const bool there = say(started, "plan in force") && closed(started, folder, 2);
    const long left = open_communicators(folder, 0) + open_communicators(folder, 1);
    std::ofstream(folder / "id.stop").close();
    const Job job = finish_ranks(started, folder);
    ASSERT_TRUE(there) << job.ranks[0].err;
    EXPECT_EQ(left, 4) << "the job's and one lane on each rank";
    expect_sound(job);
    EXPECT_EQ(lags(job.rows[0], 0).rbegin()->first, 1);
    EXPECT_EQ(count(job.ranks[0].err, "lane Socket: 0.00"), 1U) << job.ranks[0].err;
    const auto& plan = job.ranks[0].reports.at("report-0.json")["plans"][0];
    EXPECT_EQ(plan["lane_bytes"].size(), 1U);
    ASSERT_FALSE(plan["transfers"].empty());
    for (const auto& transfer : plan["transfers"]) {
        EXPECT_EQ(transfer["link"], 0);
    }
}

// The job has NCCL order the launches of its communicators.
TEST(LaneFaults, NoLanesBesideImplicitLaunchOrderUnlessRacesAreAllowed) {
    for (const bool allowed : {false, true}) {
        SCOPED_TRACE(allowed);
        const Folder folder;
        Environment environment{{"DEFT_MODE", "deft"},
                                {"DEFT_PLAN", "delay1"},
                                {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"},
                                {"NCCL_LAUNCH_RACE_FATAL", allowed ? "0" : "1"}};
        const auto started = start_ranks(folder, 2, 5, environment, "until");
        // The leader's own no may end the proposal before another rank has heard of it.
        const bool there =
            allowed ? say(started, "plan in force") : say({started[0]}, "no plan is carried out");
        std::ofstream(folder / "id.stop").close();
        const Job job = finish_ranks(started, folder);
        ASSERT_TRUE(there) << job.ranks[0].err;
        EXPECT_EQ(count(job.ranks[0].err, "[deft] WARN"), allowed ? 0U : 1U) << job.ranks[0].err;
        for (const Outcome& rank : job.ranks) {
            EXPECT_EQ(rank.status, 0) << rank.out << rank.err;
            EXPECT_LE(count(rank.err, "[deft] WARN"), allowed ? 0U : 1U) << rank.err;
            EXPECT_EQ(rank.out, job.ranks[0].out) << "replicas differ";
        }
        EXPECT_EQ(lags(job.rows[0], 0).rbegin()->first, allowed ? 1 : 0);
    }
}

// Mode exact with no plan worth it: nothing of what was tried is left.
TEST(LaneFaults, WhereNothingIsGainedNoLaneStaysOpen) {
    const Folder folder;
    Environment environment{{"DEFT_MODE", "exact"}, {"DEFT_LANES", "Socket"}};
    const auto started =
        start_ranks(folder, 2, 5, environment, "until medium", logged(folder, far_slower()));
    const bool there = say(started, "a lane is closed") && closed(started, folder, 1);
    const long left = open_communicators(folder, 0) + open_communicators(folder, 1);
    std::ofstream(folder / "id.stop").close();
    const Job job = finish_ranks(started, folder);
    ASSERT_TRUE(there) << job.ranks[0].err;
    EXPECT_EQ(left, 2) << "the job's";
    expect_sound(job);
    EXPECT_EQ(lags(job.rows[0], 0).rbegin()->first, 0);
}

}  // namespace
}  // namespace deft::test
