// SPDX-License-Identifier: Apache-2.0
// A job reaches NCCL in many ways; under the preload each must end in the copy of NCCL it would
// have reached without it, and with the same results. Expected values are measured with glibc 2.36.
#include <gtest/gtest.h>

#include "tests/system/shim/process.h"

namespace deft::test {
namespace {

constexpr const char* kJob = "version=22809 init=0 calls=0 destroy=0 error=fake: wrong\n";
constexpr const char* kOther = "version=21903 init=0 calls=0 destroy=0 error=fake: wrong\n";

struct Binding {
    const char* name;
    std::vector<std::string> command;
    const char* output;  // under the preload
    bool works_without;  // the same without the preload
    bool hooked;         // the calls pass the hooks
};

void PrintTo(const Binding& binding, std::ostream* out) {
    *out << binding.name;
}

const Binding kBindings[] = {
    {"linked", {LINKED_MAIN}, kJob, true, true},
    {"extension_local", {OPEN_MAIN, "local", LINKED_USER}, kJob, true, true},
    {"extension_global", {OPEN_MAIN, "global", LINKED_USER}, kJob, true, true},
    {"extension_deepbind", {OPEN_MAIN, "deepbind", LINKED_USER}, kJob, true, false},
    {"handle", {OPEN_MAIN, "handle", NCCL_A}, kJob, true, false},
    {"default_local", {OPEN_MAIN, "default-local", NCCL_A}, kJob, false, true},
    {"default_global", {OPEN_MAIN, "default-global", NCCL_A}, kJob, true, true},
    // By another name than libnccl.so.2, so that only its functions tell what it is.
    {"default_local_renamed", {OPEN_MAIN, "default-local", NCCL_B}, kOther, false, true},
    // Linked statically into the extension.
    {"static_local", {OPEN_MAIN, "local", STATIC_USER}, kOther, true, true},
    {"static_global", {OPEN_MAIN, "global", STATIC_USER}, kOther, true, true},
};

class BindingTest : public ::testing::TestWithParam<Binding> {};

TEST_P(BindingTest, WorksWithoutThePreload) {
    const Outcome outcome = run(GetParam().command);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    if (GetParam().works_without) {
        EXPECT_EQ(outcome.out, GetParam().output);
    } else {
        EXPECT_EQ(outcome.out, "no ncclX found\n");
    }
}

TEST_P(BindingTest, IsForwardedInModeOff) {
    const Outcome outcome =
        run(GetParam().command, {{"LD_PRELOAD", PRELOAD}, {"DEFT_MODE", "off"}});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.out, GetParam().output);
    EXPECT_EQ(outcome.err, "");
    EXPECT_TRUE(outcome.reports.empty());
}

TEST_P(BindingTest, IsForwardedAndSeenInModeObserve) {
    const Outcome outcome = run(GetParam().command, {{"LD_PRELOAD", PRELOAD}});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.out, GetParam().output);
    EXPECT_EQ(outcome.reports.size(), GetParam().hooked ? 1u : 0u);
    if (!GetParam().hooked || outcome.reports.count("rank0.json") == 0) {
        return;
    }
    const nlohmann::json& report = outcome.reports.at("rank0.json");
    EXPECT_EQ(report["calls"]["ncclAllReduce"], 40);
    EXPECT_EQ(report["calls"]["ncclBcast"], 1);
    EXPECT_FALSE(report["calls"].contains("ncclBroadcast")) << "that is NCCL's own call";
    EXPECT_EQ(report["calls"]["ncclCommInitRank"], 1);
    EXPECT_EQ(report["nccl"]["version"], GetParam().output == kJob ? 22809 : 21903);
    EXPECT_EQ(report["iterations"]["seen"], 20);
    EXPECT_EQ(report["iterations"]["cycle_length"], 2);
    ASSERT_EQ(report["buckets"].size(), 2u);
    EXPECT_EQ(report["buckets"][0]["bytes"], 4000);
    EXPECT_EQ(report["buckets"][1]["bytes"], 16000);
    EXPECT_EQ(report["plugin"]["loaded"], false);
    EXPECT_EQ(report["final"], true);
}

INSTANTIATE_TEST_SUITE_P(Ways, BindingTest, ::testing::ValuesIn(kBindings),
                         [](const auto& info) { return info.param.name; });

// Two extensions, each with an NCCL of its own, and a communicator passed from one to the other:
// the copies refuse it, with the shim as without.
TEST(TwoCopies, EachCallReachesTheCallersOwn) {
    const std::string expected =
        std::string("one: ") + kJob + "other: " + kOther + "make=0,0 own=0,0 crossed=3,3\n";
    EXPECT_EQ(run({OPEN_MAIN, "two", LINKED_USER, LINKED_USER_B}).out, expected);
    for (const char* mode : {"off", "observe"}) {
        const Outcome outcome = run({OPEN_MAIN, "two", LINKED_USER, LINKED_USER_B},
                                    {{"LD_PRELOAD", PRELOAD}, {"DEFT_MODE", mode}});
        EXPECT_EQ(outcome.status, 0);
        EXPECT_EQ(outcome.out, expected) << mode;
        EXPECT_EQ(outcome.err, "") << mode;
    }
}

TEST(Override, DeftNcclLibWins) {
    const Outcome outcome = run({OPEN_MAIN, "local", LINKED_USER},
                                {{"LD_PRELOAD", PRELOAD}, {"DEFT_NCCL_LIB", NCCL_B}});
    EXPECT_EQ(outcome.out, kOther);
}

TEST(Override, ThatCannotBeOpenedIsSaidAndFallsBack) {
    const Environment environment{{"LD_PRELOAD", PRELOAD}, {"DEFT_NCCL_LIB", "/nonexistent/nccl"}};
    Outcome outcome = run({LINKED_MAIN}, environment);
    EXPECT_EQ(outcome.out, kJob);
    EXPECT_EQ(count(outcome.err, "DEFT_NCCL_LIB=/nonexistent/nccl cannot be used"), 1u)
        << outcome.err;
    Environment required = environment;
    required["DEFT_REQUIRE"] = "1";
    outcome = run({LINKED_MAIN}, required);
    EXPECT_NE(outcome.out.find("init=4"), std::string::npos) << outcome.out;
    EXPECT_EQ(count(outcome.err, "DEFT_REQUIRE=1: the communicator fails"), 1u) << outcome.err;
}

// The loader that runs a program without the cache of installed libraries, or "".
std::string loader() {
    for (const char* path : {"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"}) {
        if (fs::exists(path)) {
            return path;
        }
    }
    return "";
}

TEST(Missing, NcclIsSaidWithTheRemedy) {
    if (loader().empty()) {
        GTEST_SKIP() << "no glibc loader known on this machine";
    }
    for (const char* mode : {"off", "observe"}) {
        // An installed NCCL must not be found.
        const Outcome outcome = run(
            {loader(), "--inhibit-cache", "--preload", preloadable(PRELOAD), OPEN_MAIN, "default"},
            {{"DEFT_MODE", mode}, {"LD_LIBRARY_PATH", ""}});
        EXPECT_EQ(outcome.status, 0);
        EXPECT_EQ(outcome.out,
                  "version=-2 init=2 calls=0 destroy=0 error=unhandled system error (deft found no "
                  "NCCL library to forward to)\n");
        EXPECT_EQ(count(outcome.err, "WARN"), 1u) << outcome.err;
        EXPECT_EQ(count(outcome.err, "DEFT_NCCL_LIB"), 1u) << outcome.err;
        EXPECT_TRUE(outcome.reports.empty());
    }
}

}  // namespace
}  // namespace deft::test
