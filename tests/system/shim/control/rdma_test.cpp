// SPDX-License-Identifier: Apache-2.0
// Hosts with an active RDMA port (a made-up one): which network carries what. The stand-in NCCL has
// a transport "IB" where that port is, and counts the bytes of each network.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/system/shim/control/plan_job.h"
#include "tests/unit/topology/sysfs_tree.h"

namespace deft::test {
namespace {

using Bytes = std::map<std::string, std::uint64_t>;

// Of all files "bytes-*" in the folder.
Bytes bytes_in(const Folder& folder) {
    Bytes sum;
    for (const auto& entry : fs::directory_iterator(folder.path())) {
        if (entry.path().filename().string().starts_with("bytes-")) {
            std::istringstream lines(read_file(entry.path()));
            std::string name;
            for (std::uint64_t bytes = 0; lines >> name >> bytes;) {
                sum[name] += bytes;
            }
        }
    }
    return sum;
}

// A job on a host whose port is active, deft as in `deft run`.
Environment on_rdma(const SysfsTree& tree, const Folder& folder, const std::string& mode) {
    return {{"NCCL_SOCKET_IFNAME", "lo"},
            {"DEFT_INTERFACES", "lo"},
            {"DEFT_SYSFS", tree.root()},
            {"SOFTDEV_SYSFS", tree.root()},
            {"SOFTDEV_NET_BYTES", folder / "bytes-%p"},
            {"SOFTDEV_DEVICES", "3"},
            {"LD_PRELOAD", PRELOAD},
            {"NCCL_NET_PLUGIN", PRELOAD},
            {"DEFT_MODE", mode}};
}

struct Ran {
    Outcome outcome;
    mutable Bytes bytes;  // a network that was never opened has none
};

Ran run_way(const std::string& way, const Environment& environment, const Folder& folder) {
    Ran ran;
    ran.outcome = finish(start({NETWORKS_MAIN, way}, environment, folder), folder);
    ran.bytes = bytes_in(folder);
    EXPECT_EQ(ran.outcome.status, 0) << ran.outcome.out << ran.outcome.err;
    EXPECT_EQ(ran.outcome.out, "done\n") << ran.outcome.err;
    return ran;
}

// What the sums of the made communicator alone come to at least.
constexpr std::uint64_t kSum = 400'000;

class Makers : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(Makers, KeepTheJobOnNcclsIb) {
    const auto& [way, mode] = GetParam();
    SysfsTree tree;
    tree.port("mlx5_0", 1);
    const Folder folder;
    const Ran ran = run_way(way, on_rdma(tree, folder, mode), folder);
    const bool named = std::string(way) == "named" || std::string(way) == "split-named";
    EXPECT_GE(ran.bytes.at(named ? "Socket" : "IB"), kSum) << "the job's own";
    Bytes others = ran.bytes;
    others.erase(named ? "Socket" : "IB");
    for (const auto& [name, bytes] : others) {
        EXPECT_EQ(bytes, 0u) << name;
    }
    const bool observes = std::string(mode) == "observe";
    // Mode observe changes nothing, and its plugin says that it stays out where NCCL asks it.
    EXPECT_LE(count(ran.outcome.err, "[deft] WARN"), observes ? 1u : 0u) << ran.outcome.err;
    EXPECT_EQ(count(ran.outcome.err, "[deft] WARN"),
              count(ran.outcome.err, "the job is left to NCCL's IB"))
        << ran.outcome.err;
}

INSTANTIATE_TEST_SUITE_P(
    All, Makers,
    ::testing::Combine(::testing::Values("rank", "config", "named", "old", "scalable",
                                         "nonblocking", "all", "grouped", "split", "split-config",
                                         "split-shared", "split-named", "shrink", "shrink-config",
                                         "grow", "grow-config"),
                       ::testing::Values("observe", "exact", "deft")),
    [](const auto& info) {
        std::string name = std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
        std::replace(name.begin(), name.end(), '-', '_');
        return name;
    });

// The job as it is without deft, to compare with.
TEST(Rdma, WithoutDeftNcclTakesItsIb) {
    SysfsTree tree;
    tree.port("mlx5_0", 1);
    const Folder folder;
    Environment environment = on_rdma(tree, folder, "off");
    environment.erase("LD_PRELOAD");
    environment.erase("NCCL_NET_PLUGIN");
    const Ran ran = run_way("rank", environment, folder);
    EXPECT_GE(ran.bytes.at("IB"), kSum);
    EXPECT_EQ(ran.bytes.at("Socket"), 0u);
}

TEST(Rdma, ThePluginAloneShowsNoDeviceAndSaysWhy) {
    SysfsTree tree;
    tree.port("mlx5_0", 1);
    const Folder folder;
    Environment environment = on_rdma(tree, folder, "exact");
    environment.erase("LD_PRELOAD");
    environment.erase("DEFT_MODE");
    const Ran ran = run_way("rank", environment, folder);
    EXPECT_GE(ran.bytes.at("IB"), kSum);
    EXPECT_EQ(ran.bytes.at("deft"), 0u);
    EXPECT_EQ(count(ran.outcome.err, "[deft] WARN"), 1u) << ran.outcome.err;
    EXPECT_EQ(count(ran.outcome.err, "RDMA is active (mlx5_0:1): the job is left to NCCL's IB"), 1u)
        << ran.outcome.err;
    EXPECT_EQ(count(ran.outcome.err, "DEFT_RDMA=replace"), 1u) << ran.outcome.err;
}

// A job that goes past the hooks has nothing that keeps its communicators on IB.
TEST(Rdma, AJobPastTheHooksIsLeftToNcclsIb) {
    SysfsTree tree;
    tree.port("mlx5_0", 1);
    const Folder folder;
    const Ran ran = run_way("no-hook", on_rdma(tree, folder, "exact"), folder);
    EXPECT_GE(ran.bytes.at("IB"), kSum);
    EXPECT_EQ(ran.bytes.at("deft"), 0u);
    EXPECT_EQ(count(ran.outcome.err, "the job is left to NCCL's IB"), 1u) << ran.outcome.err;
}

// PyTorch's communicators and those of a library that opens NCCL by handle: NCCL asks deft's plugin
// for the second, of which nothing says that it is meant for deft.
TEST(Rdma, CommunicatorsPastTheHooksStayOnIbBesideHookedOnes) {
    SysfsTree tree;
    tree.port("mlx5_0", 1);
    const Folder folder;
    const Ran ran = run_way("mixed", on_rdma(tree, folder, "exact"), folder);
    EXPECT_GE(ran.bytes.at("IB"), 2 * kSum);
    EXPECT_EQ(ran.bytes["deft"], 0u);
    EXPECT_EQ(count(ran.outcome.err, "[deft] WARN"), 1u) << ran.outcome.err;
    EXPECT_EQ(count(ran.outcome.err, "a communicator is made past the hooks"), 1u)
        << ran.outcome.err;
}

// These releases ask the plugin at the first communicator and never again: they cannot be kept from
// it, but it is said.
TEST(Rdma, WhereDeftTakesACommunicatorFromIbThatIsSaid) {
    for (const char* const version : {"22705", "22304"}) {
        SysfsTree tree;
        tree.port("mlx5_0", 1);
        const Folder folder;
        Environment environment = on_rdma(tree, folder, "exact");
        environment["SOFTDEV_NCCL_VERSION"] = version;
        environment["NCCL_NET_PLUGIN"] = "deft";
        const Ran ran = run_way("mixed", environment, folder);
        EXPECT_GE(ran.bytes["IB"], kSum);
        EXPECT_GE(ran.bytes["deft"], kSum);
        EXPECT_EQ(count(ran.outcome.err, "[deft] WARN"), 1u) << ran.outcome.err;
        EXPECT_EQ(count(ran.outcome.err, "NCCL_NET=IB, which gives up lanes"), 1u)
            << ran.outcome.err;
    }
}

TEST(Rdma, ReplaceHasDeftCarryTheJob) {
    for (const bool preload : {true, false}) {
        SysfsTree tree;
        tree.port("mlx5_0", 1);
        const Folder folder;
        Environment environment = on_rdma(tree, folder, "exact");
        environment["DEFT_RDMA"] = "replace";
        if (!preload) {
            environment.erase("LD_PRELOAD");
            environment.erase("DEFT_MODE");
        }
        const Ran ran = run_way("rank", environment, folder);
        EXPECT_GE(ran.bytes.at("deft"), kSum);
        EXPECT_EQ(ran.bytes["IB"], 0u);
        // The port is in sysfs alone, so TCP carries the job, and the operator hears of it once.
        EXPECT_EQ(count(ran.outcome.err, "[deft] WARN"), 1u) << ran.outcome.err;
        EXPECT_EQ(count(ran.outcome.err, "DEFT_RDMA=replace: an RDMA port is not driven"), 1u)
            << ran.outcome.err;
    }
}

// Where NCCL's IB would not carry the job, deft does, as on hosts without RDMA.
TEST(Rdma, WhatNcclCannotUseIsNotLeftToIt) {
    const std::vector<Environment> cases{
        {{"NCCL_IB_DISABLE", "1"}}, {{"NCCL_IB_HCA", "^mlx5"}}, {}};
    for (const Environment& extra : cases) {
        SysfsTree tree;
        SysfsTree::Port port;
        if (extra.empty()) {
            port.state = "1: DOWN";
        }
        tree.port("mlx5_0", 1, port);
        const Folder folder;
        Environment environment = on_rdma(tree, folder, "exact");
        environment.insert(extra.begin(), extra.end());
        const Ran ran = run_way("rank", environment, folder);
        EXPECT_GE(ran.bytes.at("deft"), kSum);
        EXPECT_EQ(count(ran.outcome.err, "[deft] WARN"), 0u) << ran.outcome.err;
    }
}

// A container that sees the host's ports but lacks the vendor's part of libibverbs: NCCL's IB comes
// up without a device. deft carries the job as on a host without RDMA.
TEST(Rdma, PortsThatLibibverbsCannotDriveAreNotCountedOn) {
    for (const char* const devices : {"", "mlx5_0!"}) {
        SysfsTree tree;
        tree.port("mlx5_0", 1);
        const SysfsTree none;
        const Folder folder;
        Environment environment = on_rdma(tree, folder, "exact");
        environment["SOFTDEV_SYSFS"] = none.root();
        environment["NCCL_IBVERBS_LIB"] = FAKE_VERBS_LIB;
        environment["FAKE_VERBS"] = devices;
        const Ran ran = run_way("rank", environment, folder);
        EXPECT_GE(ran.bytes["deft"], kSum);
        EXPECT_EQ(count(ran.outcome.err, "[deft] WARN"), 0u) << ran.outcome.err;
    }
}

// Releases by what they know: none can be told a network before 2.17; up to 2.27 NCCL starts deft's
// plugin for the job's communicators too.
class Releases : public ::testing::TestWithParam<const char*> {};

TEST_P(Releases, KeepTheJobOnNcclsIb) {
    for (const char* const way : {"rank", "all"}) {
        SysfsTree tree;
        tree.port("mlx5_0", 1);
        const Folder folder;
        Environment environment = on_rdma(tree, folder, "exact");
        environment["SOFTDEV_NCCL_VERSION"] = GetParam();
        environment["NCCL_NET_PLUGIN"] = "deft";  // the preloaded one; old releases take no path
        const Ran ran = run_way(way, environment, folder);
        EXPECT_GE(ran.bytes.at("IB"), kSum);
        EXPECT_EQ(ran.bytes["deft"], 0u);
        const bool without = std::string(GetParam()) < "21700";
        EXPECT_EQ(count(ran.outcome.err, "[deft] WARN"), without ? 1u : 0u) << ran.outcome.err;
        EXPECT_EQ(count(ran.outcome.err, "cannot be told a communicator's network"),
                  without ? 1u : 0u)
            << ran.outcome.err;
    }
}

INSTANTIATE_TEST_SUITE_P(All, Releases,
                         ::testing::Values("21602", "21701", "21805", "22304", "22602", "22705",
                                           "22809", "23007"),
                         [](const auto& info) { return "v" + std::string(info.param); });

// ---- jobs of several processes

Job run_ranks(const Folder& folder, const Environment& extra, const std::string& how,
              const std::map<int, Environment>& own = {}) {
    Environment environment{{"SOFTDEV_NET_BYTES", folder / "bytes-%p"},
                            {"DEFT_OUT", folder / "rank%r.json"}};
    for (const auto& [key, value] : extra) {
        environment[key] = value;
    }
    return finish_ranks(start_ranks(folder, 2, 40, environment, how, own), folder);
}

// On hosts with an active RDMA port.
Job run_next_to_a_port(const Folder& folder, Environment extra, const std::string& how) {
    SysfsTree tree;
    tree.port("mlx5_0", 1);
    extra["DEFT_SYSFS"] = extra["SOFTDEV_SYSFS"] = tree.root();
    return run_ranks(folder, extra, how);
}

// A plan that is carried out whatever it gains: gradients travel over IB and deft's links.
TEST(RdmaJob, LanesGoOverDeftsLinksBesideNcclsIb) {
    const Folder folder;
    const Job job =
        run_next_to_a_port(folder, {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay0"}}, "large");
    expect_sound(job);
    const Bytes bytes = bytes_in(folder);
    EXPECT_GE(bytes.at("IB"), 1u << 20);
    EXPECT_GE(bytes.at("deft"), 1u << 20);
    EXPECT_EQ(Bytes(bytes)["Socket"], 0u);
    const nlohmann::json plan = plan_of(job, 0);
    ASSERT_EQ(plan["lane_bytes"].size(), 2u) << plan;
    EXPECT_GE(plan["lane_bytes"][0], 1 << 20);
    EXPECT_GE(plan["lane_bytes"][1], 1 << 20);
    EXPECT_EQ(count(job.ranks[0].err, "lane deft: "), 1u) << job.ranks[0].err;
    EXPECT_EQ(count(job.ranks[0].err, "made past the hooks"), 0u) << job.ranks[0].err;
    EXPECT_EQ(
        count(job.ranks[0].err,
              "RDMA is active (mlx5_0:1): NCCL's IB carries the job, deft's links serve lanes"),
        1u)
        << job.ranks[0].err;
}

// Nobody asks for lanes: everything is IB's.
TEST(RdmaJob, WithoutLanesEverythingIsIbs) {
    const Folder folder;
    const Job job =
        run_next_to_a_port(folder, {{"DEFT_MODE", "exact"}, {"DEFT_LANES", "none"}}, "plain large");
    expect_sound(job);
    Bytes bytes = bytes_in(folder);
    EXPECT_GE(bytes["IB"], 1u << 20);
    EXPECT_EQ(bytes["deft"], 0u);
    EXPECT_EQ(bytes["Socket"], 0u);
}

// One host has a port and the other none. NCCL alone would begin with two networks and hang. The
// maker of the unique id decides for all: rank 0.
TEST(RdmaJob, AllRanksFollowTheMakerOfTheId) {
    SysfsTree tree;
    tree.port("mlx5_0", 1);
    const SysfsTree none;
    const Environment with{{"DEFT_SYSFS", tree.root()}, {"SOFTDEV_SYSFS", tree.root()}};
    const Environment without{{"DEFT_SYSFS", none.root()}, {"SOFTDEV_SYSFS", none.root()}};
    {
        const Folder folder;  // the other host's IB is not used
        const Job job = run_ranks(folder, {{"DEFT_MODE", "exact"}, {"DEFT_LANES", "none"}},
                                  "plain large", {{0, without}, {1, with}});
        for (const Outcome& rank : job.ranks) {
            EXPECT_EQ(rank.status, 0) << rank.out << rank.err;
        }
        Bytes bytes = bytes_in(folder);
        EXPECT_GE(bytes["deft"], 1u << 20);
        EXPECT_EQ(bytes["IB"], 0u);
        EXPECT_EQ(count(job.ranks[1].err, "[deft] WARN"), 1u) << job.ranks[1].err;
        EXPECT_EQ(count(job.ranks[1].err, "not on the host that began"), 1u) << job.ranks[1].err;
    }
    {
        const Folder folder;  // this host cannot follow: an error at once, and the reason
        Environment environment{{"DEFT_MODE", "exact"}, {"SOFTDEV_DEADLINE", "5"}};
        const Job job = run_ranks(folder, environment, "plain large", {{0, with}, {1, without}});
        EXPECT_NE(job.ranks[1].status, 0) << job.ranks[1].out;
        EXPECT_EQ(count(job.ranks[1].err, "this host has no usable RDMA port"), 1u)
            << job.ranks[1].err;
        Bytes bytes = bytes_in(folder);
        for (const auto& [name, sent] : bytes) {
            EXPECT_EQ(sent, 0u) << name << ": no mixed networks";
        }
    }
}

}  // namespace
}  // namespace deft::test
