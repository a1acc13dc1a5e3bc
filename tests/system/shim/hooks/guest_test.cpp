// SPDX-License-Identifier: Apache-2.0
// The shim as a guest in the job: configuration, threads, children, files.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/system/shim/process.h"

namespace deft::test {
namespace {

constexpr const char* kJob = "version=22809 init=0 calls=0 destroy=0 error=fake: wrong\n";

TEST(Guest, StartsNoThreadBeforeTheFirstCommunicator) {
    // Where plans are made another one looks for the kill switch.
    const Outcome exact = run({LINKED_MAIN, "threads"}, {{"LD_PRELOAD", PRELOAD}});
    EXPECT_EQ(exact.out, "threads before=1 after=3\n");
    const Outcome observe =
        run({LINKED_MAIN, "threads"}, {{"LD_PRELOAD", PRELOAD}, {"DEFT_MODE", "observe"}});
    EXPECT_EQ(observe.out, "threads before=1 after=2\n");
    const Outcome off =
        run({LINKED_MAIN, "threads"}, {{"LD_PRELOAD", PRELOAD}, {"DEFT_MODE", "off"}});
    EXPECT_EQ(off.out, "threads before=1 after=1\n");
    for (const char* mode : {"exact", "deft", "covap"}) {
        const Outcome plans =
            run({LINKED_MAIN, "threads"}, {{"LD_PRELOAD", PRELOAD}, {"DEFT_MODE", mode}});
        EXPECT_TRUE(plans.out.starts_with("threads before=1 ")) << mode << ": " << plans.out;
    }
}

TEST(Guest, AllocatesNothingInACall) {
    const Outcome without = run({ALLOCATION_MAIN});
    ASSERT_EQ(without.out, "start=0 calls=0 result=0\n");
    for (const char* mode : {"off", "observe", "exact", "deft"}) {
        const Outcome outcome =
            run({ALLOCATION_MAIN}, {{"LD_PRELOAD", PRELOAD}, {"DEFT_MODE", mode}});
        // Before main there is one: the C++ run time, linked in, sets memory aside for exceptions.
        // The guest has none.
        EXPECT_EQ(outcome.out, std::string("start=") + (instead(PRELOAD) == PRELOAD ? "1" : "0") +
                                   " calls=0 result=0\n")
            << mode;
    }
}

TEST(Guest, KeepsNothingForThreadsThatHaveEnded) {
    const Outcome outcome = run({ALLOCATION_MAIN, "threads"}, {{"LD_PRELOAD", PRELOAD}});
    long left = -1;
    ASSERT_EQ(std::sscanf(outcome.out.c_str(), "threads=1000 left=%ld result=0", &left), 1)
        << outcome.out;
    EXPECT_LT(left, 200) << "the background thread's own are some";
}

TEST(Guest, AChildIsPassThrough) {
    const Outcome outcome = run({LINKED_MAIN, "fork"}, {{"LD_PRELOAD", PRELOAD}});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_NE(outcome.out.find("child result=0 threads=1\n"), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("parent status=0 threads=3\n"), std::string::npos) << outcome.out;
    ASSERT_EQ(outcome.reports.count("rank0.json"), 1u);
    EXPECT_EQ(outcome.reports.at("rank0.json")["calls"]["ncclAllReduce"], 10)
        << "the child's calls and its exit leave no trace";
    EXPECT_EQ(outcome.err, "");
}

TEST(Guest, ErrorsAreNcclsOwn) {
    const Outcome without = run({LINKED_MAIN, "failures"});
    for (const char* mode : {"off", "observe"}) {
        const Outcome outcome =
            run({LINKED_MAIN, "failures"}, {{"LD_PRELOAD", PRELOAD}, {"DEFT_MODE", mode}});
        EXPECT_EQ(outcome.out, without.out) << mode;
        EXPECT_EQ(outcome.err, "") << mode;
        EXPECT_TRUE(outcome.reports.empty()) << "no communicator, nothing to report";
    }
}

TEST(Configuration, WrongIsSaidOnceAndMeansOff) {
    const Outcome outcome =
        run({LINKED_MAIN},
            {{"LD_PRELOAD", PRELOAD}, {"DEFT_MODE", "observ"}, {"DEFT_LINK_TIMEOUT", "x"}});
    EXPECT_EQ(outcome.out, kJob);
    EXPECT_EQ(count(outcome.err, "WARN"), 1u) << outcome.err;
    EXPECT_EQ(count(outcome.err, "DEFT_MODE='observ'"), 1u) << outcome.err;
    EXPECT_EQ(count(outcome.err, "DEFT_LINK_TIMEOUT='x'"), 1u) << outcome.err;
    EXPECT_TRUE(outcome.reports.empty());
}

TEST(Configuration, WrongAndRequiredFailsTheCommunicator) {
    const Outcome outcome = run(
        {LINKED_MAIN}, {{"LD_PRELOAD", PRELOAD}, {"DEFT_MODE", "observ"}, {"DEFT_REQUIRE", "1"}});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_NE(outcome.out.find("init=4"), std::string::npos) << outcome.out;
    EXPECT_EQ(count(outcome.err, "DEFT_REQUIRE=1: the communicator fails"), 1u) << outcome.err;
}

TEST(Configuration, RequiredAndRightChangesNothing) {
    const Outcome outcome = run({LINKED_MAIN}, {{"LD_PRELOAD", PRELOAD}, {"DEFT_REQUIRE", "1"}});
    EXPECT_EQ(outcome.out, kJob);
    EXPECT_EQ(outcome.reports.size(), 1u);
}

// On every rank for itself, and nothing else: a guess beside it would send the operator astray.
TEST(Release, ThatIsNotKnownIsSaidOnce) {
    for (const char* rank : {"0", "1"}) {
        const Outcome outcome =
            run({LINKED_MAIN, "rank", rank},
                {{"LD_PRELOAD", PRELOAD}, {"DEFT_MODE", "deft"}, {"DEFT_NCCL_LIB", NCCL_UNKNOWN}});
        EXPECT_EQ(outcome.out, std::string("rank ") + rank + " result=0\n") << outcome.err;
        EXPECT_EQ(count(outcome.err, "WARN"), 1u) << outcome.err;
        EXPECT_EQ(count(outcome.err, "it is not known whether NCCL 99900 leaves"), 1u)
            << outcome.err;
    }
}

TEST(Report, ThatCannotBeWrittenIsSaidOnceAndTheJobGoesOn) {
    const Outcome outcome =
        run({LINKED_MAIN}, {{"LD_PRELOAD", PRELOAD}, {"DEFT_OUT", "/nonexistent-folder/r.json"}});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.out, kJob);
    EXPECT_EQ(
        count(outcome.err, "cannot write the report /nonexistent-folder/r.json: No such file"), 1u)
        << outcome.err;
    EXPECT_EQ(count(outcome.err, "DEFT_OUT"), 1u);
}

TEST(Report, SaysThatThePluginIsNotLoaded) {
    const Outcome outcome = run({LINKED_MAIN}, {{"LD_PRELOAD", PRELOAD}, {"DEFT_LOG", "info"}});
    EXPECT_EQ(count(outcome.err, "has not loaded deft as its network plugin"), 1u) << outcome.err;
    ASSERT_EQ(outcome.reports.size(), 1u);
    EXPECT_EQ(outcome.reports.begin()->second["plugin"]["loaded"], false);
    EXPECT_EQ(outcome.reports.begin()->second["hooks"]["in_path"], true);
}

}  // namespace
}  // namespace deft::test
