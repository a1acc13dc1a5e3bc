// SPDX-License-Identifier: Apache-2.0
// Several copies of NCCL in one process. Each call ends in the copy in which it would have ended
// without the preload, whatever has been loaded since: the outputs are those of the same program
// without it.
#include <gtest/gtest.h>

#include "tests/system/shim/installed.h"
#include "tests/system/shim/process.h"

namespace deft::test {
namespace {

struct Scene {
    const char* name;
    std::vector<std::string> steps;
    const char* counts;  // of the copies, without the preload and with it
    int all_reduces;     // that observe sees: those on communicators of the called copy
};

void PrintTo(const Scene& scene, std::ostream* out) {
    *out << scene.name;
}

std::string opened(const char* how, const char* path) {
    return std::string(how) + ":" + path;
}

// M and N are modules, A and B the copies of NCCL that they are linked to.
const Scene kScenes[] = {
    // A module's calls stay where they were bound, in groups too.
    {"global_copy_comes_later",
     {opened("M=l", LINKED_USER), "make:M", opened("B=g", NCCL_B), "group:M", "thread:M", "end:M"},
     "B: made 0, groups 0/0, all-reduces 0, destroyed 0\n"
     "M: made 1, groups 2/2, all-reduces 2, destroyed 1\n",
     2},
    // Nothing has been called before: when the module was loaded counts, not when it calls first.
    {"global_copy_comes_before_the_first_call",
     {opened("M=l", LINKED_USER), opened("B=g", NCCL_B), "make:M", "group:M", "thread:M", "end:M"},
     "B: made 0, groups 0/0, all-reduces 0, destroyed 0\n"
     "M: made 1, groups 2/2, all-reduces 2, destroyed 1\n",
     2},
    // The first call is one that returns to the program, which does not know NCCL.
    {"first_call_is_a_jump",
     {opened("M=l", LINKED_USER), opened("B=g", NCCL_B), "group:M", "make:M", "group:M", "end:M"},
     "B: made 0, groups 0/0, all-reduces 0, destroyed 0\n"
     "M: made 1, groups 2/2, all-reduces 2, destroyed 1\n",
     2},
    {"global_copy_comes_first",
     {opened("B=g", NCCL_B), opened("M=l", LINKED_USER), "make:M", "group:M", "end:M"},
     "B: made 1, groups 1/1, all-reduces 1, destroyed 1\n"
     "M: made 0, groups 0/0, all-reduces 0, destroyed 0\n",
     1},
    // Bound at the first use.
    {"lazy_module",
     {opened("M=lz", LAZY_USER), opened("B=g", NCCL_B), "make:M", "group:M", "end:M"},
     "B: made 1, groups 1/1, all-reduces 1, destroyed 1\n"
     "M: made 0, groups 0/0, all-reduces 0, destroyed 0\n",
     1},
    // In the global scope itself, what it depends on stands before what comes later.
    {"global_module",
     {opened("M=g", LINKED_USER), opened("B=g", NCCL_B), "make:M", "group:M", "end:M"},
     "B: made 0, groups 0/0, all-reduces 0, destroyed 0\n"
     "M: made 1, groups 1/1, all-reduces 1, destroyed 1\n",
     1},
    {"linked_statically",
     {opened("M=l", STATIC_USER), "make:M", opened("A=g", NCCL_A), "group:M", "thread:M", "end:M"},
     "A: made 0, groups 0/0, all-reduces 0, destroyed 0\n"
     "M: made 1, groups 2/2, all-reduces 2, destroyed 1\n",
     2},
    {"each_its_own",
     {opened("M=l", LINKED_USER), opened("N=l", LINKED_USER_B), "make:M", "make:N", "group:N",
      "group:M", "thread:N", "end:M", "end:N"},
     "M: made 1, groups 1/1, all-reduces 1, destroyed 1\n"
     "N: made 1, groups 2/2, all-reduces 2, destroyed 1\n",
     3},
    // Groups that begin with a jump, of now the one and now the other.
    {"each_its_own_group",
     {opened("M=l", LINKED_USER), opened("N=l", LINKED_USER_B), "group:N", "make:M", "make:N",
      "group:M", "thread:M", "group:N", "group:M", "group:M", "thread:N", "end:M", "end:N"},
     "M: made 1, groups 4/4, all-reduces 4, destroyed 1\n"
     "N: made 1, groups 3/3, all-reduces 3, destroyed 1\n",
     7},
    // For the program there is one library first, and later another.
    {"each_its_own_one_after_the_other",
     {opened("M=l", LINKED_USER), "make:M", "group:M", opened("N=l", LINKED_USER_B), "make:N",
      "group:N", "group:M", "thread:N", "end:N", "end:M"},
     "M: made 1, groups 2/2, all-reduces 2, destroyed 1\n"
     "N: made 1, groups 2/2, all-reduces 2, destroyed 1\n",
     4},
    // Looked up, not linked: the first in the global scope at that moment.
    {"looked_up",
     {opened("B=g", NCCL_B), opened("A=g", NCCL_A), "pointers"},
     "A: made 0, groups 0/0, all-reduces 0, destroyed 0\n"
     "B: made 1, groups 1/1, all-reduces 1, destroyed 1\n",
     1},
};

// The guest where it forwards by itself: switched off, or with no library to open.
struct Without {
    const char* name;
    bool disabled;
};
constexpr Without kWithout[] = {{"disabled", true}, {"alone", false}};

Outcome run_without(const Without& how, const std::vector<std::string>& command) {
    if (how.disabled) {
        return run(command, {{"LD_PRELOAD", GUEST}, {"DEFT_DISABLE", "1"}});
    }
    const Installed alone;
    return run(
        command,
        {{"LD_PRELOAD", alone.guest()}, {"LD_LIBRARY_PATH", kNowhere}, {"DEFT_LOG", "none"}});
}

class Scopes : public ::testing::TestWithParam<Scene> {
protected:
    std::vector<std::string> command() const {
        std::vector<std::string> all = {SCOPES_MAIN};
        all.insert(all.end(), GetParam().steps.begin(), GetParam().steps.end());
        return all;
    }
};

TEST_P(Scopes, EachCallReachesTheSameCopyAsWithoutThePreload) {
    const Outcome without = run(command());
    EXPECT_EQ(without.status, 0) << without.out;
    const std::string counts = without.out.substr(without.out.find('\n') + 1);
    EXPECT_EQ(counts, GetParam().counts) << without.out;
    for (const char* mode : {"off", "observe", "exact", "deft"}) {
        const Outcome with = run(command(), {{"LD_PRELOAD", PRELOAD}, {"DEFT_MODE", mode}});
        EXPECT_EQ(with.status, 0) << mode;
        EXPECT_EQ(with.out, without.out) << mode;
        EXPECT_EQ(with.err, "") << mode;
        if (mode == std::string("observe")) {
            ASSERT_EQ(with.reports.count("rank0.json"), 1u) << mode;
            EXPECT_EQ(with.reports.at("rank0.json")["calls"]["ncclAllReduce"],
                      GetParam().all_reduces);
        }
    }
}

TEST_P(Scopes, SoItDoesWithAGuestThatForwardsByItself) {
    const Outcome plain = run(command());
    for (const Without& how : kWithout) {
        const Outcome outcome = run_without(how, command());
        EXPECT_EQ(outcome.status, 0) << how.name;
        EXPECT_EQ(outcome.out, plain.out) << how.name;
        EXPECT_EQ(outcome.err, "") << how.name;
    }
}

INSTANTIATE_TEST_SUITE_P(Loads, Scopes, ::testing::ValuesIn(kScenes),
                         [](const auto& info) { return std::string(info.param.name); });

// A communicator of another copy is refused by the copy that is asked, as without the preload.
TEST(Scopes, ForeignCommunicatorsReachTheCalledCopy) {
    const std::vector<std::string> command = {SCOPES_MAIN,
                                              opened("M=l", LINKED_USER),
                                              opened("N=l", LINKED_USER_B),
                                              "make:M",
                                              "make:N",
                                              "foreign:MN",
                                              "foreign:NM",
                                              "group:M",
                                              "group:N"};
    const Outcome without = run(command);
    EXPECT_EQ(count(without.out, "foreign:MN=3 foreign:NM=3 group:M=0 group:N=0"), 1u)
        << without.out;
    for (const char* mode : {"off", "observe", "exact", "deft"}) {
        const Outcome with = run(command, {{"LD_PRELOAD", PRELOAD}, {"DEFT_MODE", mode}});
        EXPECT_EQ(with.out, without.out) << mode;
        EXPECT_EQ(with.err, "") << mode;
    }
    for (const Without& how : kWithout) {
        EXPECT_EQ(run_without(how, command).out, without.out) << how.name;
    }
}

// A module that is mapped where another lay, which has been closed: its calls are its own.
TEST(Scopes, AModuleInAnothersPlaceIsAnother) {
    const std::vector<std::string> steps = {
        SCOPES_MAIN, opened("M=l", LINKED_USER),   "make:M",  "group:M", "end:M",
        "close:M",   opened("N=l", LINKED_USER_B), "place:N", "make:N",  "group:N",
        "end:N"};
    const auto expect_its_own = [](const Outcome& outcome, const char* name) {
        EXPECT_EQ(outcome.status, 0) << name;
        EXPECT_EQ(count(outcome.out, "make:N=0 group:N=0 end:N=0"), 1u) << name << outcome.out;
        EXPECT_EQ(count(outcome.out, "N: made 1, groups 1/1, all-reduces 1, destroyed 1\n"), 1u)
            << name << ": " << outcome.out;
        EXPECT_EQ(outcome.err, "") << name;
        return count(outcome.out, "place:N=1") == 1;
    };
    expect_its_own(run(steps), "plain");
    bool shown = true;
    for (const char* mode : {"off", "observe", "exact", "deft"}) {
        shown &= expect_its_own(run(steps, {{"LD_PRELOAD", PRELOAD}, {"DEFT_MODE", mode}}), mode);
    }
    for (const Without& how : kWithout) {
        shown &= expect_its_own(run_without(how, steps), how.name);
    }
    if (!shown) {
        GTEST_SKIP() << "the loader has mapped the second module elsewhere";
    }
}

}  // namespace
}  // namespace deft::test
