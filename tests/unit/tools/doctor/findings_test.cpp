// SPDX-License-Identifier: Apache-2.0
// Each finding of `deft doctor` from facts that are made up: it is found, it comes first, and
// without what provokes it nothing is found.
#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "tests/unit/tools/doctor/provoked.h"
#include "tools/doctor/script_text.h"

namespace deft::tools::doctor {
namespace {

using testing::HasSubstr;

std::vector<Case> all_cases() {
    std::vector<Case> all;
    for (const auto& part : {program_cases(), process_cases(), nccl_cases(), settings_cases(),
                             link_cases(), host_cases(), peer_cases(), record_cases()}) {
        all.insert(all.end(), part.begin(), part.end());
    }
    return all;
}

TEST(Findings, NothingIsFoundInAHealthyJob) {
    const Diagnoses found = judge(healthy());
    EXPECT_TRUE(found.empty()) << found.front().what;
    Facts running;
    running.processes = {process()};
    EXPECT_TRUE(judge(running).empty());
    Facts recorded;
    recorded.records.emplace().ranks = {record(0), record(1)};
    EXPECT_TRUE(judge(recorded).empty());
    Facts reached = healthy();
    reached.peer = peer();
    EXPECT_TRUE(judge(reached).empty());
    EXPECT_TRUE(judge(Facts()).empty());
}

TEST(Findings, EachComesFirstWhereItIsProvoked) {
    for (const Case& each : all_cases()) {
        Facts facts = healthy();
        each.provoke(facts);
        const Diagnoses found = judge(facts);
        ASSERT_FALSE(found.empty()) << kind_of(each.finding).name;
        EXPECT_EQ(found.front().finding, each.finding)
            << kind_of(each.finding).name << " comes behind " << found.front().what;
        EXPECT_THAT(found.front().what, HasSubstr(each.says));
    }
}

TEST(Findings, EachIsProvoked) {
    std::set<Finding> provoked;
    for (const Case& each : all_cases()) {
        provoked.insert(each.finding);
    }
    for (const FindingKind& kind : finding_kinds()) {
        EXPECT_TRUE(provoked.contains(kind.finding)) << kind.name;
    }
}

TEST(Findings, TableIsInOrderAndComplete) {
    std::set<std::string> names;
    Severity worst = Severity::Error;
    for (const FindingKind& kind : finding_kinds()) {
        EXPECT_TRUE(names.insert(kind.name).second) << kind.name;
        EXPECT_EQ(&kind, &kind_of(kind.finding));
        EXPECT_GE(kind.severity, worst) << kind.name << " stands below one that is less severe";
        worst = kind.severity;
        EXPECT_TRUE(std::string(kind.meaning).ends_with('.')) << kind.name;
        EXPECT_FALSE(std::string(kind.remedy).ends_with('.')) << kind.name;
    }
    EXPECT_GE(names.size(), 80U);
}

TEST(Findings, TheWorstDecidesTheExitCode) {
    EXPECT_EQ(exit_code({}), 0);
    EXPECT_EQ(exit_code({{Finding::GpuNone, "", "", ""}}), 0);
    EXPECT_EQ(exit_code({{Finding::GpuNone, "", "", ""}, {Finding::LinkDown, "", "", ""}}), 1);
    EXPECT_EQ(exit_code({{Finding::LinkDown, "", "", ""}, {Finding::NetOther, "", "", ""}}), 3);
}

TEST(Findings, TheGuestLoadsIntoEveryProgram) {
    Facts facts = healthy();
    facts.preload->entries[0].library = false;
    facts.preload->entries[0].guest = true;
    facts.command->programs[0].c_library = "musl";
    EXPECT_TRUE(judge(facts).empty());
    facts.command->programs[0].c_library = "glibc";
    facts.command->programs[0].glibc = "2.17";
    EXPECT_TRUE(judge(facts).empty());
}

TEST(Findings, AFleetsDefaultsForOtherModesAreNoFault) {
    Facts facts = healthy();
    facts.settings->config =
        Config::load({}, DEFT_SOURCE_ROOT "/tests/unit/tools/doctor/fleet.conf");
    EXPECT_TRUE(judge(facts).empty());
}

TEST(Findings, OfLauncherAndWorkersThoseCountThatHaveNccl) {
    Facts facts;
    ProcessFacts launcher = process();
    launcher.nccl.clear();
    launcher.library = "";
    facts.processes = {launcher, process()};
    EXPECT_TRUE(judge(facts).empty());
    facts.processes = {launcher};
    EXPECT_FALSE(judge(facts).empty());
}

TEST(Findings, VariablesForAnotherContainerHideNoGpus) {
    Facts facts = healthy();
    facts.host->gpu.container_gpus = "void";
    EXPECT_TRUE(judge(facts).empty()) << "the host's GPUs can be opened";
    facts.host->gpu.device_file = false;
    EXPECT_FALSE(judge(facts).empty());
    facts.command->container_client = true;
    EXPECT_TRUE(judge(facts).empty()) << "docker does not hand its own on";
}

TEST(Findings, AHostsOwnNameAtLoopbackIsNoFault) {
    Facts facts = healthy();
    facts.host->name = "node1";
    facts.host->own_name_at = "127.0.1.1";  // Debian's
    auto& other = facts.settings->other;
    EXPECT_TRUE(judge(facts).empty());
    other = {{"MASTER_ADDR", "node1"}, {"WORLD_SIZE", "16"}, {"LOCAL_WORLD_SIZE", "8"}};
    EXPECT_TRUE(judge(facts).empty()) << "PyTorch listens on every address";
    other = {{"MASTER_ADDR", "127.0.1.1"}, {"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "8"}};
    EXPECT_TRUE(judge(facts).empty()) << "one host";
    other = {{"MASTER_ADDR", "127.0.0.1"}, {"SLURM_JOB_NUM_NODES", "2"}};
    EXPECT_TRUE(judge(facts).empty()) << "nothing starts ranks on the second host";
    other["PET_NNODES"] = "2";
    facts.command->torchrun = true;
    EXPECT_TRUE(judge(facts).empty()) << "torchrun gives the ranks another address";
}

TEST(Findings, SwitchesOfNcclsThatAreOffAndLargeFilesAreNoFault) {
    Facts facts = healthy();
    facts.plugin->settings["NCCL_SHM_DISABLE"] = {"0", "environment"};
    facts.plugin->settings["NCCL_P2P_LEVEL"] = {"SYS", "environment"};
    facts.settings->other["LD_AUDIT"] = "";
    facts.host->file_size = std::uint64_t{1} << 40;
    EXPECT_TRUE(judge(facts).empty());
}

TEST(Findings, WithoutSharedMemoryNothingChangesWhereP2pReachesAll) {
    Facts facts = healthy();
    auto& settings = facts.plugin->settings;
    settings["NCCL_SHM_DISABLE"] = {"1", "environment"};
    EXPECT_EQ(exit_code(judge(facts)), 0);
    settings["NCCL_P2P_DISABLE"] = {"1", "environment"};
    EXPECT_EQ(exit_code(judge(facts)), 1);
    facts.host->gpu.count = 1;
    EXPECT_EQ(exit_code(judge(facts)), 0) << "nobody to talk to on this host";
}

TEST(Findings, AVariableOfAScriptIsSeenThere) {
    Facts facts = healthy();
    facts.settings->origins["LD_AUDIT"] = "job.sh:3";
    for (const char* value : {"/opt/audit.so", "/usr/lib/libnccl-net-deft.so"}) {
        facts.settings->other["LD_AUDIT"] = value;
        EXPECT_EQ(judge(facts).at(0).evidence, "job.sh:3") << value;
    }
}

TEST(Findings, LimitsOfFilesAreInTheUnitsOfTheShell) {
    const auto found = [](const char* first, const char* most) {
        Facts facts = healthy();
        facts.command->limits =
            read_shell_script("job", std::string(first) + "\nulimit -f " + most + "\n").limits;
        return !judge(facts).empty();
    };
    EXPECT_TRUE(found("#!/bin/sh", "2000000"));
    EXPECT_FALSE(found("#!/bin/bash", "2000000")) << "KiB";
    EXPECT_FALSE(found("", "2000000")) << "nobody knows who reads it";
    EXPECT_FALSE(found("#!/bin/sh", "2100000"));
    EXPECT_TRUE(found("#!/usr/bin/env bash", "1000000"));
}

TEST(Findings, TheSameInterfacesInAnotherOrderAreNoContradiction) {
    Facts facts = healthy();
    facts.settings->config = settings({"DEFT_INTERFACES=eth0@1gbit, =eth1"});
    auto& theirs = facts.plugin->settings["NCCL_SOCKET_IFNAME"];
    theirs = {"eth1,eth0", "environment"};
    EXPECT_TRUE(judge(facts).empty());
    theirs.value = "eth1,eth2";
    EXPECT_FALSE(judge(facts).empty());
}

TEST(Findings, WhereOthersLeaveEnoughNothingIsFound) {
    Facts facts = healthy();
    facts.settings->config = settings({"DEFT_PORTS=42000-42099"});
    facts.settings->free_ports = 64;
    facts.host->shm_free = std::int64_t{1} << 27;
    facts.host->ports_reserved = 1000;
    facts.peer = peer();
    facts.peer->ways[0].local_mtu = facts.peer->ways[0].remote_mtu = 9000;
    EXPECT_TRUE(judge(facts).empty());
}

TEST(Findings, EqualCopiesAreNoContradiction) {
    Facts facts = healthy();
    facts.nccl->copies.push_back({"/opt/libnccl.so.2", 22809, "", false, "x"});
    EXPECT_TRUE(judge(facts).empty());
}

}  // namespace
}  // namespace deft::tools::doctor
