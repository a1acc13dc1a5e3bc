// SPDX-License-Identifier: Apache-2.0
// The guest (libdeft-preload.so) by itself and beside the library. That its hooks are the library's
// is what the tests of the hooks show that run a second time with it.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/system/shim/installed.h"
#include "tests/system/shim/process.h"

namespace deft::test {
namespace {

constexpr const char* kJob = "version=22809 init=0 calls=0 destroy=0 error=fake: wrong\n";

// Without deft, and with a guest that finds no library: the same results in every way to NCCL.
TEST(Guest, WithoutTheLibraryCallsGoWhereTheyWouldHaveGone) {
    const Installed alone;
    const std::vector<std::vector<std::string>> jobs{
        {LINKED_MAIN},
        {OPEN_MAIN, "local", LINKED_USER},
        {OPEN_MAIN, "global", LINKED_USER},
        {OPEN_MAIN, "handle", NCCL_A},
        {OPEN_MAIN, "default-global", NCCL_A},
        {OPEN_MAIN, "local", STATIC_USER},
        {OPEN_MAIN, "two", LINKED_USER, LINKED_USER_B},
    };
    for (const auto& job : jobs) {
        const Outcome plain = run(job);
        const Outcome outcome =
            run(job, {{"LD_LIBRARY_PATH", kNowhere}, {"LD_PRELOAD", alone.guest()}});
        const std::string name = job[0] + " " + (job.size() > 1 ? job[1] : "");
        EXPECT_EQ(outcome.status, plain.status) << name;
        EXPECT_EQ(outcome.out, plain.out) << name;
        // With a handle the job's calls pass the guest; one of NCCL's own goes through its names.
        EXPECT_EQ(count(outcome.err, "\n"), 1u) << name << outcome.err;
        EXPECT_EQ(count(outcome.err, "[deft] WARN cannot open libnccl-net-deft.so: "), 1u);
        EXPECT_TRUE(outcome.reports.empty());
    }
}

TEST(Guest, SaysWhyTheLibraryDoesNotOpen) {
    const Installed alone;
    Outcome outcome =
        run({LINKED_MAIN}, {{"LD_LIBRARY_PATH", kNowhere}, {"LD_PRELOAD", alone.guest()}});
    EXPECT_EQ(count(outcome.err, "libnccl-net-deft.so: cannot open shared object file"), 1u)
        << outcome.err;

    const Installed garbage;
    std::ofstream(garbage.library()) << "no library";
    outcome = run({LINKED_MAIN}, {{"LD_LIBRARY_PATH", kNowhere}, {"LD_PRELOAD", garbage.guest()}});
    EXPECT_EQ(outcome.out, kJob);
    EXPECT_EQ(count(outcome.err, "file too short"), 1u) << outcome.err;

    const Installed foreign(NCCL_B);  // opens, and is not deft's
    outcome = run({LINKED_MAIN}, {{"LD_LIBRARY_PATH", kNowhere}, {"LD_PRELOAD", foreign.guest()}});
    EXPECT_EQ(outcome.out, kJob);
    EXPECT_EQ(count(outcome.err, "it is of another version than"), 1u) << outcome.err;
}

TEST(Guest, IsQuietWhereItIsToldToBe) {
    const Installed alone;
    const Outcome outcome =
        run({LINKED_MAIN},
            {{"LD_LIBRARY_PATH", kNowhere}, {"LD_PRELOAD", alone.guest()}, {"DEFT_LOG", "none"}});
    EXPECT_EQ(outcome.out, kJob);
    EXPECT_EQ(outcome.err, "");
}

TEST(Guest, OpensNothingWhereDeftIsDisabled) {
    const Outcome outcome = run({LINKED_MAIN}, {{"LD_PRELOAD", GUEST}, {"DEFT_DISABLE", "1"}});
    EXPECT_EQ(outcome.out, kJob);
    EXPECT_EQ(outcome.err, "");
    EXPECT_TRUE(outcome.reports.empty());
}

TEST(Guest, WithoutTheLibraryMakesNoCommunicatorWhereDeftIsRequired) {
    const Installed alone;
    const Outcome outcome =
        run({LINKED_MAIN},
            {{"LD_LIBRARY_PATH", kNowhere}, {"LD_PRELOAD", alone.guest()}, {"DEFT_REQUIRE", "1"}});
    EXPECT_NE(outcome.out.find("version=22809 init=2"), std::string::npos) << outcome.out;
    EXPECT_EQ(count(outcome.err, "DEFT_REQUIRE is set, so no communicator is made"), 1u)
        << outcome.err;
}

TEST(Guest, IsOpenedByAnyNumberOfThreadsAtOnce) {
    const Installed alone;
    for (int round = 0; round < 20; ++round) {
        for (const std::string& guest : {std::string(GUEST), alone.guest()}) {
            const Outcome outcome = run({RACING_MAIN}, {{"LD_PRELOAD", guest}});
            EXPECT_EQ(outcome.out, "version=22809 threads=16\n");
            EXPECT_LE(count(outcome.err, "\n"), 1u) << outcome.err;
        }
    }
}

// Whoever preloads both gets the hooks once, in either order.
TEST(Guest, StandsBesideTheLibrary) {
    for (const bool first : {true, false}) {
        for (const std::vector<std::string>& job :
             {std::vector<std::string>{LINKED_MAIN}, {OPEN_MAIN, "local", LINKED_USER}}) {
            const std::string guest = preloadable(GUEST);
            const std::string library = preloadable(PRELOAD);
            const std::string both = first ? guest + ":" + library : library + ":" + guest;
            const Outcome outcome = run(job, {{"LD_PRELOAD", both}});
            EXPECT_EQ(outcome.status, 0);
            EXPECT_EQ(outcome.out, kJob);
            ASSERT_EQ(outcome.reports.size(), 1u);
            EXPECT_EQ(outcome.reports.at("rank0.json")["calls"]["ncclAllReduce"], 40);
        }
    }
}

// Found by a link elsewhere, as an administrator may make one: the library is next to the file.
TEST(Guest, FollowsALinkToItself) {
    const Folder folder;
    const fs::path link = folder / "preload.so";
    fs::create_symlink(GUEST, link);
    const Outcome outcome = run({LINKED_MAIN}, {{"LD_PRELOAD", link}});
    EXPECT_EQ(outcome.out, kJob);
    EXPECT_EQ(outcome.reports.size(), 1u) << outcome.err;
}

// Preloaded by a relative path, which leads elsewhere from the folder that the program goes to: not
// even a library of the same name there is taken.
TEST(Guest, IsFoundWhereTheProgramWasStarted) {
    const Installed installed(PRELOAD);
    const Installed elsewhere(NCCL_B);
    for (const std::string& folder : {std::string("/"), elsewhere.folder().string()}) {
        const std::string command = "cd '" + installed.folder().string() +
                                    "' && LD_PRELOAD=./libdeft-preload.so exec \"$0\" \"$@\"";
        const Outcome outcome =
            run({"/bin/sh", "-c", command, SCOPES_MAIN, "cd:" + folder,
                 std::string("M=l:") + LINKED_USER, "make:M", "group:M", "end:M"},
                {{"LD_LIBRARY_PATH", kNowhere}});
        EXPECT_EQ(count(outcome.out, "make:M=0 group:M=0 end:M=0"), 1u) << outcome.out;
        EXPECT_EQ(outcome.err, "") << folder;
        EXPECT_EQ(outcome.reports.size(), 1u) << folder;
    }
}

}  // namespace
}  // namespace deft::test
