// SPDX-License-Identifier: Apache-2.0
// Two ranks on the software device, with the library as preload and as network plugin.
#include <gtest/gtest.h>

#include "tests/system/shim/process.h"

namespace deft::test {
namespace {

using nlohmann::json;

struct Job {
    std::vector<Outcome> ranks;
    std::map<std::string, json> reports;
};

Job run_ranks(const std::string& how, int iterations, const Environment& extra) {
    const Folder folder;
    std::vector<Started> started;
    for (int rank = 0; rank < 2; ++rank) {
        Environment environment{{"NCCL_SOCKET_IFNAME", "lo"},
                                {"NCCL_HOSTID", "host" + std::to_string(rank)},
                                {"DEFT_INTERFACES", "lo"},
                                {"DEFT_OUT", folder / "rank%r.json"}};
        for (const auto& [key, value] : extra) {
            environment[key] = value;
        }
        started.push_back(start({TRAINING_MAIN, how, std::to_string(rank), "2", folder / "id",
                                 std::to_string(iterations)},
                                environment, folder, "rank" + std::to_string(rank)));
    }
    Job job;
    for (const Started& rank : started) {
        job.ranks.push_back(finish(rank, folder));
    }
    job.reports = job.ranks.back().reports;
    return job;
}

void expect_done(const Job& job) {
    for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
        EXPECT_EQ(job.ranks[rank].status, 0) << job.ranks[rank].err;
        EXPECT_EQ(job.ranks[rank].out, "rank " + std::to_string(rank) + " done\n")
            << job.ranks[rank].err;
    }
}

Environment both_halves() {
    return {{"LD_PRELOAD", PRELOAD}, {"NCCL_NET_PLUGIN", PRELOAD}, {"DEFT_MODE", "observe"}};
}

void expect_profile(const json& report, int iterations) {
    EXPECT_EQ(report["ranks"], 2);
    EXPECT_EQ(report["final"], true);
    EXPECT_EQ(report["calls"]["ncclAllReduce"], 3 * iterations + 1);
    EXPECT_EQ(report["iterations"]["cycle_length"], 3);
    EXPECT_EQ(report["iterations"]["seen"], iterations);
    EXPECT_EQ(report["iterations"]["changes"], 0);
    EXPECT_EQ(report["iterations"]["stable"], true);
    EXPECT_GE(report["iterations"]["time_ms"]["n"], iterations - 10);
    EXPECT_GT(report["iterations"]["time_ms"]["median"], 2.0) << "two sleeps of 1 ms";
    EXPECT_GE(report["iterations"]["coverage_rate"]["n"], 1);
    EXPECT_GT(report["iterations"]["coverage_rate"]["median"], 0);
    EXPECT_EQ(report["hooks"]["in_path"], true);
    EXPECT_GT(report["hooks"]["timed"], 0);
    EXPECT_EQ(report["hooks"]["lost"], 0);
    EXPECT_EQ(report["hooks"]["events_note"], "");
    ASSERT_EQ(report["buckets"].size(), 2u);
    ASSERT_EQ(report["other_calls"].size(), 1u);
    EXPECT_EQ(report["other_calls"][0]["type"], "int32");
    EXPECT_EQ(report["other_calls"][0]["op"], "max");
    const json& first = report["buckets"][0];
    const json& second = report["buckets"][1];
    EXPECT_EQ(first["position"], 0);
    EXPECT_EQ(first["bytes"], 400'000);
    EXPECT_EQ(second["position"], 1);
    EXPECT_EQ(second["bytes"], 800'000);
    for (const json& bucket : {first, second}) {
        EXPECT_EQ(bucket["in_place"], true);
        EXPECT_GE(bucket["transfer_ms"]["n"], 1);
        EXPECT_GT(bucket["transfer_ms"]["median"], 0);
        // Two clocks, tied at an instant in which a busy machine may have let the process wait.
        EXPECT_LE(bucket["issued_ms"]["median"], bucket["ready_ms"]["median"].get<double>() + 200);
    }
    EXPECT_GE(first["ready_ms"]["median"], 1.0) << "it sleeps 1 ms before it";
    EXPECT_GE(second["ready_ms"]["median"], first["ready_ms"]["median"].get<double>());
}

TEST(Observe, RecordsTheJobOnBothRanks) {
    constexpr int kIterations = 300;
    Environment environment = both_halves();
    environment["SLURM_JOB_ID"] = "42";
    environment["DEFT_LOG"] = "info";
    const Job job = run_ranks("linked", kIterations, environment);
    expect_done(job);
    ASSERT_EQ(job.reports.size(), 2u);
    // The end of the job is told once, by rank 0.
    EXPECT_EQ(count(job.ranks[0].err, "job of 2 ranks has ended: mode observe; 300 iterations"), 1u)
        << job.ranks[0].err;
    EXPECT_EQ(count(job.ranks[1].err, "has ended"), 0u) << job.ranks[1].err;
    for (int rank = 0; rank < 2; ++rank) {
        const json& report = job.reports.at("rank" + std::to_string(rank) + ".json");
        SCOPED_TRACE(report.dump(1));
        EXPECT_EQ(report["rank"], rank);
        EXPECT_EQ(report["job"]["id"], "42");
        EXPECT_NE(report["job"]["command"].get<std::string>().find(" linked "), std::string::npos);
        EXPECT_LE(report["job"]["started"], report["job"]["written"]);
        expect_profile(report, kIterations);
        EXPECT_EQ(report["plugin"]["loaded"], true);
        EXPECT_GT(report["plugin"]["calls"], 0);
        ASSERT_FALSE(report["links"].empty());
        EXPECT_GT(report["links"][0]["bytes_sent"], 0);
        EXPECT_GT(report["links"][0]["bytes_received"], 0);
        EXPECT_EQ(count(job.ranks[static_cast<std::size_t>(rank)].err, "WARN"), 0u)
            << job.ranks[static_cast<std::size_t>(rank)].err;
        EXPECT_EQ(count(job.ranks[static_cast<std::size_t>(rank)].err, "softdev: error"), 0u)
            << job.ranks[static_cast<std::size_t>(rank)].err;
    }
    const json& zero = job.reports.at("rank0.json");
    const json& one = job.reports.at("rank1.json");
    EXPECT_EQ(zero["buckets"][0]["communicator"], one["buckets"][0]["communicator"]);
    EXPECT_NE(zero["buckets"][0]["communicator"], "0000000000000000");
}

// Under the default name, which has the job's id; the lower rank comes first.
TEST(Observe, RanksOfAHostShareAFile) {
    const Folder folder;
    std::vector<Started> started;
    for (const std::string rank : {"1", "0"}) {
        started.push_back(start({"/usr/bin/env", "--chdir=" + folder.path().string(), TRAINING_MAIN,
                                 "linked", rank, "2", folder / "id", "20"},
                                {{"LD_PRELOAD", PRELOAD},
                                 {"DEFT_MODE", "observe"},
                                 {"NCCL_SOCKET_IFNAME", "lo"},
                                 {"NCCL_HOSTID", "host" + rank},
                                 {"SLURM_JOB_ID", "42"}},
                                folder, "rank" + rank));
    }
    for (const Started& rank : started) {
        const Outcome outcome = finish(rank, folder);
        EXPECT_EQ(outcome.status, 0) << outcome.err;
        EXPECT_EQ(count(outcome.err, "WARN"), 0U) << outcome.err;
    }
    char host[256] = "";
    ::gethostname(host, sizeof(host) - 1);
    std::istringstream lines(read_file(folder / ("deft-42-" + std::string(host) + ".json")));
    int rank = 0;
    for (std::string line; std::getline(lines, line); ++rank) {
        const json record = json::parse(line, nullptr, false);
        EXPECT_EQ(record["rank"], rank);
        EXPECT_EQ(record["ranks"], 2);
        EXPECT_EQ(record["final"], true);
    }
    EXPECT_EQ(rank, 2);
}

// What is named from the working folder stays where the job has begun.
TEST(Observe, AJobMayChangeItsWorkingFolder) {
    const Folder folder;
    fs::create_directory(folder / "metrics");
    const Outcome job = finish(start({"/usr/bin/env", "--chdir=" + folder.path().string(),
                                      TRAINING_MAIN, "moves", "0", "1", folder / "id", "20"},
                                     {{"LD_PRELOAD", PRELOAD},
                                      {"DEFT_MODE", "observe"},
                                      {"DEFT_OUT", "moved.json"},
                                      {"DEFT_METRICS", "metrics"},
                                      {"NCCL_SOCKET_IFNAME", "lo"}},
                                     folder),
                               folder);
    EXPECT_EQ(job.status, 0) << job.out << job.err;
    EXPECT_EQ(job.err, "");
    ASSERT_EQ(job.reports.count("moved.json"), 1U);
    EXPECT_EQ(job.reports.at("moved.json")["final"], true);
}

TEST(Observe, AJobThatNeverDestroysItsCommunicatorLeavesAReport) {
    const Job job = run_ranks("leaky", 60, {{"LD_PRELOAD", PRELOAD}, {"DEFT_MODE", "observe"}});
    expect_done(job);
    ASSERT_EQ(job.reports.size(), 2u);
    EXPECT_EQ(job.reports.at("rank1.json")["iterations"]["seen"], 60);
    EXPECT_EQ(job.reports.at("rank1.json")["final"], true);
    EXPECT_EQ(job.reports.at("rank1.json")["plugin"]["loaded"], false);
}

TEST(Observe, OffLeavesNothing) {
    Environment environment = both_halves();
    environment["DEFT_MODE"] = "off";
    const Job job = run_ranks("linked", 20, environment);
    expect_done(job);
    EXPECT_TRUE(job.reports.empty());
}

TEST(Observe, EveryUnknownVariableIsNamedOnce) {
    Environment environment = both_halves();
    environment["DEFT_MOED"] = "off";
    environment["DEFT_LINKTIMEOUT"] = "1s";
    const Job job = run_ranks("linked", 20, environment);
    expect_done(job);
    for (const Outcome& rank : job.ranks) {
        EXPECT_EQ(count(rank.err, "did you mean DEFT_MODE?"), 1U) << rank.err;
        EXPECT_EQ(count(rank.err, "did you mean DEFT_LINK_TIMEOUT?"), 1U) << rank.err;
    }
}

TEST(Observe, AMalformedTextTurnsTheShimOff) {
    for (const char* name : {"DEFT_PREDICT", "DEFT_OPTIMIZER", "DEFT_LANES"}) {
        Environment environment{{"LD_PRELOAD", PRELOAD}, {"DEFT_MODE", "deft"}, {name, "no sense"}};
        const Job job = run_ranks("linked", 5, environment);
        expect_done(job);
        EXPECT_TRUE(job.reports.empty());
        for (const Outcome& rank : job.ranks) {
            EXPECT_EQ(count(rank.err, "forwarded as in mode off: " + std::string(name)), 1U)
                << rank.err;
        }
    }
}

// Of a shell whose arguments are a folder for /etc, the preload, and the program.
constexpr char kWithEtc[] =
    R"(exec unshare --mount sh -c 'mount --bind "$0" /etc && exec env "LD_PRELOAD=$1" "$2" rank' "$@")";

// The job with a copy of /etc that has this deft.conf. False: no mount namespace can be made here.
bool run_with_central(const std::string& conf, const Environment& extra, Outcome& outcome) {
    const Folder folder;
    const Folder etc;
    if (std::system("unshare --mount true 2>/dev/null") != 0) {
        return false;
    }
    for (const char* name : {"ld.so.cache", "passwd", "nsswitch.conf", "hosts"}) {
        std::error_code ignored;
        fs::copy_file(fs::path("/etc") / name, etc / name, ignored);
    }
    fs::create_directory(etc / "deft");
    std::ofstream(etc / "deft" / "deft.conf") << conf;
    // The preload is the job's alone: a sanitizer's run time is not in these programs.
    outcome = finish(start({"/bin/sh", "-c", kWithEtc, "sh", etc.path(),
                            preloadable(instead(PRELOAD)), NETWORKS_MAIN},
                           extra, folder),
                     folder);
    return true;
}

// Settings with which NCCL says in the folder which networks it connects its ranks by.
Environment logged(const Folder& folder) {
    return {{"SOFTDEV_DEVICES", "3"},          {"NCCL_NET_PLUGIN", PRELOAD},
            {"NCCL_SHM_DISABLE", "1"},         {"NCCL_DEBUG", "INFO"},
            {"NCCL_DEBUG_SUBSYS", "INIT,NET"}, {"NCCL_DEBUG_FILE", folder / "log"}};
}

// Connections by this network.
std::size_t connected_by(const std::string& network, const Folder& folder) {
    return count(read_file(folder / "log"), "via NET/" + network + "/");
}

// Both halves are without deft then, and DEFT_REQUIRE of the same file fails nothing.
TEST(Central, AWrongModeMeansWithoutDeftAndOneWarning) {
    const Folder folder;
    Outcome job;
    Environment environment = logged(folder);
    environment["NCCL_SOCKET_IFNAME"] = "lo";
    if (!run_with_central("DEFT_REQUIRE=1\nforce.DEFT_MODE=of\n", environment, job)) {
        GTEST_SKIP() << "no mount namespace can be made here";
    }
    EXPECT_EQ(job.status, 0) << job.err;
    EXPECT_EQ(job.out, "done\n") << job.err;
    EXPECT_EQ(count(job.err, "[deft] WARN"), 1U) << job.err;
    EXPECT_EQ(count(job.err, "without deft"), 1U) << job.err;
    EXPECT_EQ(count(job.err, "/etc/deft/deft.conf:2"), 1U) << job.err;
    EXPECT_GT(connected_by("Socket", folder), 0U);
    EXPECT_EQ(connected_by("deft", folder), 0U);
}

// Of whichever half the setting is; the other lines hold.
TEST(Central, AWrongLineIsIgnoredWithOneWarning) {
    for (const std::string wrong : {"DEFT_OPTIMIZER=sgdd", "DEFT_INTERFACES=nosuch0",
                                    "DEFT_LINK_TIMEOUT=soon", "DEFT_MOED=off"}) {
        SCOPED_TRACE(wrong);
        const Folder folder;
        Outcome job;
        Environment environment = logged(folder);
        environment["NCCL_SOCKET_IFNAME"] = "lo";
        if (!run_with_central("DEFT_REQUIRE=1\n" + wrong + "\nforce.DEFT_CHECKSUM=crc32c # all\n",
                              environment, job)) {
            GTEST_SKIP() << "no mount namespace can be made here";
        }
        EXPECT_EQ(job.status, 0) << job.err;
        EXPECT_EQ(job.out, "done\n") << job.err;
        EXPECT_EQ(count(job.err, "[deft] WARN"), 1U) << job.err;
        EXPECT_EQ(count(job.err, "1 wrong line of /etc/deft/deft.conf ignored: "), 1U) << job.err;
        EXPECT_EQ(count(job.err, "/etc/deft/deft.conf:2"), 1U) << job.err;
        EXPECT_GT(connected_by("deft", folder), 0U);
    }
}

// In the network plugin as in the hooks.
TEST(Central, WhatIsForcedBeatsTheJob) {
    const Folder folder;
    Outcome job;
    Environment environment = logged(folder);
    environment["DEFT_INTERFACES"] = "lo";
    environment["DEFT_MODE"] = "exact";
    if (!run_with_central("force.DEFT_MODE=off\n", environment, job)) {
        GTEST_SKIP() << "no mount namespace can be made here";
    }
    EXPECT_EQ(job.out, "done\n") << job.err;
    EXPECT_EQ(count(job.err, "[deft] WARN"), 1U) << job.err;
    EXPECT_EQ(count(job.err, "DEFT_MODE=exact (environment) gives way to 'off'"), 1U) << job.err;
    EXPECT_EQ(connected_by("deft", folder), 0U);
}

TEST(Central, WithoutAMistakeItHolds) {
    const Folder folder;
    Outcome job;
    if (!run_with_central("DEFT_INTERFACES=lo\nDEFT_OPTIMIZER=sgd\nDEFT_LOG=info\n", logged(folder),
                          job)) {
        GTEST_SKIP() << "no mount namespace can be made here";
    }
    EXPECT_EQ(job.out, "done\n") << job.err;
    EXPECT_EQ(count(job.err, "WARN"), 0U) << job.err;
    EXPECT_GT(connected_by("deft", folder), 0U);
}

// A user who wants deft or nothing gets that, whatever is wrong centrally.
TEST(Central, TheUsersOwnRequireHolds) {
    Outcome job;
    if (!run_with_central("DEFT_MODE=of\n",
                          {{"NCCL_SOCKET_IFNAME", "lo"},
                           {"DEFT_REQUIRE", "1"},
                           {"SOFTDEV_DEVICES", "3"},
                           {"NCCL_NET_PLUGIN", PRELOAD}},
                          job)) {
        GTEST_SKIP() << "no mount namespace can be made here";
    }
    // Each of the job's ranks is a thread; the first that fails ends the process, others may have
    // failed by then.
    EXPECT_GE(count(job.out, "failed: 4"), 1U) << job.out << job.err;
    EXPECT_EQ(count(job.out, "done"), 0U) << job.out << job.err;
}

TEST(Observe, APluginThatCannotStartFailsTheCommunicatorWhereDeftIsRequired) {
    Environment environment = both_halves();
    environment["DEFT_INTERFACES"] = "nosuch0";
    const Job forwarded = run_ranks("linked", 5, environment);
    expect_done(forwarded);
    environment["DEFT_REQUIRE"] = "1";
    const Job job = run_ranks("linked", 5, environment);
    for (const Outcome& rank : job.ranks) {
        EXPECT_EQ(rank.out, "ncclCommInitRank failed: 2\n") << rank.err;
        EXPECT_EQ(count(rank.err, "deft's network plugin could not start"), 1u) << rank.err;
    }
    // A job that was never told of the plugin has its own network.
    environment.erase("NCCL_NET_PLUGIN");
    expect_done(run_ranks("linked", 5, environment));
}

// Every release of NCCL knows the short name. The library is found by its soname, on no search
// path.
TEST(Observe, TheShortNameOfThePluginIsThatOfTheOpenedLibrary) {
    Environment environment = both_halves();
    environment["NCCL_NET_PLUGIN"] = "deft";
    const Job job = run_ranks("linked", 5, environment);
    expect_done(job);
    ASSERT_EQ(job.reports.size(), 2u);
    for (const auto& [name, report] : job.reports) {
        EXPECT_EQ(report["plugin"]["loaded"], true) << name;
    }
}

TEST(Bypass, ThatThePluginNoticesIsSaidOnce) {
    const Job job = run_ranks("handle", 20, both_halves());
    expect_done(job);
    EXPECT_TRUE(job.reports.empty()) << "no hook saw anything";
    for (const Outcome& rank : job.ranks) {
        EXPECT_EQ(count(rank.err, "the job reaches NCCL past it"), 1u) << rank.err;
    }
}

TEST(Bypass, ThePluginAloneIsNoBypass) {
    const Job job = run_ranks("linked", 20, {{"NCCL_NET_PLUGIN", PRELOAD}});
    expect_done(job);
    for (const Outcome& rank : job.ranks) {
        EXPECT_EQ(count(rank.err, "WARN"), 0u) << rank.err;
    }
    const Job asked =
        run_ranks("linked", 20, {{"NCCL_NET_PLUGIN", PRELOAD}, {"DEFT_MODE", "observe"}});
    for (const Outcome& rank : asked.ranks) {
        EXPECT_EQ(count(rank.err, "DEFT_MODE=observe has no effect"), 1u) << rank.err;
    }
}

}  // namespace
}  // namespace deft::test
