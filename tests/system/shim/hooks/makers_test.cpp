// SPDX-License-Identifier: Apache-2.0
// Communicators made in every way NCCL has, blocking and not, and captured calls: the same results
// with the hooks as without, and every call counted.
#include <gtest/gtest.h>

#include "tests/system/shim/process.h"

namespace deft::test {
namespace {

constexpr const char* kDone = "InitAll\nScalable\nNonblocking\nGrouped\n";

Environment loopback() {
    return {{"NCCL_SOCKET_IFNAME", "lo"}, {"DEFT_INTERFACES", "lo"}};
}

TEST(Makers, WorkWithoutThePreload) {
    const Outcome outcome = run({MAKERS_MAIN}, loopback());
    EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.out, kDone);
}

TEST(Makers, AreForwardedInModeOff) {
    Environment environment = loopback();
    environment["LD_PRELOAD"] = PRELOAD;
    environment["DEFT_MODE"] = "off";
    const Outcome outcome = run({MAKERS_MAIN}, environment);
    EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.out, kDone);
    EXPECT_EQ(outcome.err, "");
    EXPECT_TRUE(outcome.reports.empty());
}

class ModesOfMakers : public ::testing::TestWithParam<const char*> {};

TEST_P(ModesOfMakers, AreForwardedAndCounted) {
    Environment environment = loopback();
    environment["LD_PRELOAD"] = PRELOAD;
    environment["NCCL_NET_PLUGIN"] = PRELOAD;
    environment["DEFT_MODE"] = GetParam();
    const Outcome outcome = run({MAKERS_MAIN}, environment);
    EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.out, kDone);
    EXPECT_EQ(count(outcome.err, "softdev: error"), 0u) << outcome.err;
    EXPECT_EQ(count(outcome.err, "WARN"), 0u) << outcome.err;
    ASSERT_EQ(outcome.reports.size(), 2u) << "one for each device; calls are the process's";
    const nlohmann::json& calls = outcome.reports.at("rank1.json")["calls"];
    EXPECT_EQ(calls["ncclCommInitAll"], 1);
    EXPECT_EQ(calls["ncclCommSplit"], 4);
    EXPECT_EQ(calls["ncclCommShrink"], 1);
    EXPECT_EQ(calls["ncclCommInitRankScalable"], 2);
    EXPECT_EQ(calls["ncclCommInitRankConfig"], 2);
    EXPECT_EQ(calls["ncclCommInitRank"], 2);
    EXPECT_EQ(calls["ncclCommFinalize"], 4);
    EXPECT_EQ(calls["ncclCommDestroy"], 12);
    EXPECT_EQ(calls["ncclAllReduce"], 40);
}

INSTANTIATE_TEST_SUITE_P(All, ModesOfMakers, ::testing::Values("observe", "exact", "deft"),
                         [](const auto& info) { return std::string(info.param); });

// What their ranks agree on is known when all of them have been made.
class ChildrenOfMakers : public ::testing::TestWithParam<const char*> {};

TEST_P(ChildrenOfMakers, OfOneGroupAgree) {
    Environment environment = loopback();
    environment["LD_PRELOAD"] = PRELOAD;
    environment["NCCL_NET_PLUGIN"] = PRELOAD;
    environment["DEFT_MODE"] = "deft";
    environment["DEFT_REQUIRE"] = "1";
    const Outcome outcome = run({MAKERS_MAIN, GetParam()}, environment);
    EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.out, "Children\n");
    EXPECT_EQ(count(outcome.err, "WARN"), 0u) << outcome.err;
}

// Simulated: what makes communicators is carried out in such a group too.
INSTANTIATE_TEST_SUITE_P(All, ChildrenOfMakers, ::testing::Values("children", "simulated"),
                         [](const auto& info) { return std::string(info.param); });

// A shrink concerns those alone that remain: what all of them make later has one name on all ranks.
TEST(Makers, ChildrenAgreeAfterSomeRanksHaveShrunkTheirParent) {
    Environment environment = loopback();
    environment["LD_PRELOAD"] = PRELOAD;
    environment["NCCL_NET_PLUGIN"] = PRELOAD;
    environment["SOFTDEV_DEVICES"] = "4";
    environment["DEFT_MODE"] = "deft";
    environment["DEFT_REQUIRE"] = "1";
    environment["DEFT_AGREE_TIMEOUT"] = "20s";
    environment["DEFT_LOG"] = "info";
    const Outcome outcome = run({MAKERS_MAIN, "shrunk"}, environment);
    EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.out, "Shrunk\n");
    EXPECT_EQ(count(outcome.err, "WARN"), 0u) << outcome.err;
    EXPECT_EQ(count(outcome.err, "all 4 ranks of the communicator agree"), 8u) << outcome.err;
    EXPECT_EQ(count(outcome.err, "all 3 ranks of the communicator agree"), 6u) << outcome.err;
    EXPECT_EQ(count(outcome.err, "all 2 ranks of the communicator agree"), 2u) << outcome.err;
}

// Of communicators that carry no call, as a job makes them for a barrier. What is kept of the
// latest ones takes the place of what was kept of others.
TEST(Makers, NothingStaysOfCommunicatorsThatAreDropped) {
    Environment environment = loopback();
    environment["LD_PRELOAD"] = PRELOAD;
    environment["NCCL_NET_PLUGIN"] = PRELOAD;
    environment["DEFT_MODE"] = "exact";
    const Outcome outcome = run({MAKERS_MAIN, "dropped"}, environment);
    ASSERT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    ASSERT_EQ(outcome.out.rfind("Dropped\n", 0), 0u) << outcome.out;
    EXPECT_LT(std::stol(outcome.out.substr(8)), 300'000) << "of a hundred, two ranks each";
}

// Their handles come after the calls that make them. Each is known from its first call on, also one
// that is used without asking NCCL whether its parent is done.
TEST(Makers, ChildrenOfNonblockingCommunicatorsAgree) {
    const Folder folder;
    const std::string log = folder / "log";
    Environment environment = loopback();
    environment["LD_PRELOAD"] = PRELOAD;
    environment["NCCL_NET_PLUGIN"] = PRELOAD;
    environment["DEFT_MODE"] = "deft";
    environment["DEFT_LOG"] = "info";
    environment["DEFT_LOG_FILE"] = log;
    environment["DEFT_GRADIENTS"] = "trust";
    const Outcome outcome = run({MAKERS_MAIN, "late"}, environment);
    const std::string said = read_file(log);
    EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err << said;
    EXPECT_EQ(outcome.out, "Late\n");
    EXPECT_EQ(count(said, "all 2 ranks of the communicator agree"), 8u) << said;
    EXPECT_EQ(count(said, "WARN"), 0u) << said;
}

// The memory that a child's handle was stored to is not the shim's: it may be gone at any time.
class HandlesOfMakers : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(HandlesOfMakers, AreNotTouchedWhereTheirMemoryIsGone) {
    const auto [when, mode] = GetParam();
    const Folder folder;
    const std::string log = folder / "log";
    Environment environment = loopback();
    environment["LD_PRELOAD"] = PRELOAD;
    environment["NCCL_NET_PLUGIN"] = PRELOAD;
    environment["DEFT_MODE"] = mode;
    environment["DEFT_LOG"] = "info";
    environment["DEFT_LOG_FILE"] = log;
    environment["DEFT_GRADIENTS"] = "trust";  // one warning less
    const Outcome outcome = run({MAKERS_MAIN, "gone", when}, environment);
    const std::string said = read_file(log);
    EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err << said;
    EXPECT_EQ(outcome.out, "Gone\n");
    EXPECT_EQ(count(said, "WARN"), 0u) << said;
    if (mode == std::string("off")) {
        EXPECT_TRUE(outcome.reports.empty());
        return;
    }
    ASSERT_EQ(outcome.reports.count("rank0.json"), 1u);
    const nlohmann::json& report = outcome.reports.at("rank0.json");
    EXPECT_EQ(report["calls"]["ncclAllReduce"], 16);
    // Where nobody can tell any more which child it is, it is only forwarded.
    const bool known = when != std::string("early");
    if (mode != std::string("observe")) {
        EXPECT_EQ(count(said, "all 2 ranks of the communicator agree"), known ? 4u : 2u) << said;
    }
}

INSTANTIATE_TEST_SUITE_P(All, HandlesOfMakers,
                         ::testing::Combine(::testing::Values("early", "told", "used"),
                                            ::testing::Values("off", "observe", "exact", "deft")),
                         [](const auto& info) {
                             return std::string(std::get<0>(info.param)) + "_" +
                                    std::get<1>(info.param);
                         });

// All or none, for one reason that is said once.
TEST(Makers, AllAtOnceAreRefusedWhereAgreementIsRequired) {
    Environment environment = loopback();
    environment["LD_PRELOAD"] = PRELOAD;
    environment["NCCL_NET_PLUGIN"] = PRELOAD;
    environment["DEFT_REQUIRE"] = "1";
    for (const char* mode : {"deft", "observe"}) {
        environment["DEFT_MODE"] = mode;
        const bool refused = mode == std::string("deft");
        const Outcome outcome = run({MAKERS_MAIN, "refused"}, environment);
        EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
        EXPECT_EQ(outcome.out, refused ? "InitAll: 2, 0 handles\n" : "InitAll: 0, 2 handles\n");
        EXPECT_EQ(count(outcome.err, "WARN"), refused ? 1u : 0u) << outcome.err;
        EXPECT_EQ(count(outcome.err, "one process with all ranks"), refused ? 1u : 0u);
    }
}

}  // namespace
}  // namespace deft::test
