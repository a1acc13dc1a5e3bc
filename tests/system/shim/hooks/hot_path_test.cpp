// SPDX-License-Identifier: Apache-2.0
// What the hooks do in the gradient calls of two ranks that have agreed: with a director that
// watches and forwards, and under plans; and of two that are only observed. Nothing is allocated,
// locked, waited for or started.
#include <gtest/gtest.h>

#include <cstdio>
#include <ostream>

#include "tests/system/shim/process.h"

namespace deft::test {
namespace {

struct Case {
    const char* name;
    Environment settings;
    const char* how;
    const char* state;  // of the plan, in the report; null: none is reported
};

// In the test's name and failures.
void PrintTo(const Case& one, std::ostream* out) {
    *out << one.name;
}

class HotPath : public ::testing::TestWithParam<Case> {};

TEST_P(HotPath, IsFreeOfAllocationsLocksAndThreads) {
    const Folder folder;
    constexpr int kRanks = 2;
    std::vector<Started> started;
    for (int rank = 0; rank < kRanks; ++rank) {
        // The communicator fails if its ranks do not agree.
        Environment environment{
            {"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_HOSTID", "host" + std::to_string(rank)},
            {"DEFT_INTERFACES", "lo"},    {"DEFT_REQUIRE", "1"},
            {"DEFT_GRADIENTS", "trust"},  {"DEFT_OUT", folder / "rank%r.json"},
            {"LD_PRELOAD", PRELOAD},      {"NCCL_NET_PLUGIN", PRELOAD}};
        environment.insert(GetParam().settings.begin(), GetParam().settings.end());
        started.push_back(start({HOT_PATH_MAIN, std::to_string(rank), std::to_string(kRanks),
                                 folder / "id", "300", GetParam().how},
                                environment, folder, "rank" + std::to_string(rank)));
    }
    for (int rank = 0; rank < kRanks; ++rank) {
        SCOPED_TRACE("rank " + std::to_string(rank));
        const Outcome outcome = finish(started[static_cast<std::size_t>(rank)], folder);
        EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
        EXPECT_EQ(count(outcome.err, "WARN"), 0u) << outcome.err;
        EXPECT_EQ(count(outcome.err, "softdev: error"), 0u) << outcome.err;
        // It would have been seen: making a communicator takes all of them.
        unsigned long allocations = 0;
        unsigned long locks = 0;
        unsigned long waits = 0;
        unsigned long threads = 0;
        ASSERT_EQ(std::sscanf(outcome.out.c_str(),
                              "made: allocations=%lu locks=%lu waits=%lu threads=%lu", &allocations,
                              &locks, &waits, &threads),
                  4)
            << outcome.out;
        EXPECT_GT(allocations, 0u);
        EXPECT_GT(locks, 0u);
        EXPECT_GE(threads, GetParam().state != nullptr ? 2u : 1u) << "deft-observe, deft-agree";
        EXPECT_EQ(count(outcome.out, "calls: allocations=0 locks=0 waits=0 threads=0\n"), 1u)
            << outcome.out;
        const std::string report = "rank" + std::to_string(rank) + ".json";
        ASSERT_EQ(outcome.reports.count(report), 1u);
        EXPECT_GT(outcome.reports.at(report)["hooks"]["timed"], 0) << "some calls record events";
        const auto& plans = outcome.reports.at(report)["plans"];
        ASSERT_EQ(plans.size(), GetParam().state != nullptr ? 1u : 0u) << plans;
        if (GetParam().state != nullptr) {
            EXPECT_EQ(plans[0]["state"], GetParam().state) << plans;
        }
    }
}

// Over one network mode exact has nothing to gain by a plan; mode deft makes none as long as the
// warm-up's end is far.
INSTANTIATE_TEST_SUITE_P(
    Gradients, HotPath,
    ::testing::Values(
        Case{"Observe", {{"DEFT_MODE", "observe"}}, "forwarding", nullptr},
        Case{"Exact", {{"DEFT_MODE", "exact"}}, "forwarding", "watching"},
        Case{"Deft", {{"DEFT_MODE", "deft"}, {"DEFT_WARMUP", "1000000"}}, "forwarding", "watching"},
        Case{"Delayed",
             {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "delay1"}, {"DEFT_WARMUP", "10"}},
             "planned",
             "running"},
        Case{"Merged",
             {{"DEFT_MODE", "deft"}, {"DEFT_PLAN", "merge2"}, {"DEFT_WARMUP", "10"}},
             "planned",
             "running"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace deft::test
