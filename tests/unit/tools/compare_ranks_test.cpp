// SPDX-License-Identifier: Apache-2.0
// What the files of several ranks, or of several jobs, say together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/tools/observed_document.h"

namespace deft::tools {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

TEST(CompareRanks, AgreeingRanksHaveNothingToSay) {
    const RunReport run = compare_ranks({parsed(document(1, 2)), parsed(document(0, 2))});
    EXPECT_THAT(run.notes, IsEmpty());
    EXPECT_THAT(run.problems, IsEmpty());
    EXPECT_EQ(run.ranks[0].rank, 0);
}

TEST(CompareRanks, NamesMissingRanks) {
    const RunReport run = compare_ranks({parsed(document(1, 6)), parsed(document(4, 6))});
    EXPECT_THAT(run.notes,
                ElementsAre(AllOf(HasSubstr("4 of 6 ranks"), HasSubstr("rank 0, 2-3, 5"))));
    EXPECT_THAT(run.problems, IsEmpty());
}

TEST(CompareRanks, AnAbsurdNumberOfRanksIsNoLoop) {
    json text = document(0, 1);
    text["ranks"] = 9000000000000000000;
    const RunReport run = compare_ranks({parsed(text)});
    ASSERT_EQ(run.notes.size(), 1u);
    EXPECT_THAT(run.notes[0], HasSubstr("1-4096"));
}

TEST(CompareRanks, RefusesFilesOfDifferentRuns) {
    EXPECT_THAT(compare_ranks({parsed(document(0, 2), "a"), parsed(document(1, 3), "b")}).problems,
                Contains(AllOf(HasSubstr("2 ranks"), HasSubstr("b of one with 3"))));
    EXPECT_THAT(compare_ranks({parsed(document(0, 2), "a"), parsed(document(0, 2), "b")}).problems,
                Contains(AllOf(HasSubstr("rank 0 occurs twice"), HasSubstr("b"))));
}

TEST(CompareRanks, SaysWhereTheCyclesDiffer) {
    json other = document(1, 2);
    other["buckets"][1]["bytes"] = 4;
    EXPECT_THAT(compare_ranks({parsed(document(0, 2)), parsed(other)}).problems,
                ElementsAre(AllOf(HasSubstr("ranks 0 and 1"), HasSubstr("bucket 1"),
                                  HasSubstr("4 bytes"))));
    other = document(1, 2);
    other["buckets"].erase(1);
    EXPECT_THAT(compare_ranks({parsed(document(0, 2)), parsed(other)}).problems,
                ElementsAre(HasSubstr("2 and 1 buckets")));
    other = document(1, 2);
    other["iterations"]["cycle_length"] = 9;
    EXPECT_THAT(compare_ranks({parsed(document(0, 2)), parsed(other)}).problems,
                ElementsAre(HasSubstr("2 and 9 calls")));
}

TEST(CompareRanks, ARankThatIsStillLearningIsNoContradiction) {
    json other = document(1, 2);
    other["iterations"] = {{"seen", 1}, {"stable", false}};
    other["buckets"] = json::array();
    const RunReport run = compare_ranks({parsed(document(0, 2)), parsed(other)});
    EXPECT_THAT(run.problems, IsEmpty());
    EXPECT_THAT(run.notes, ElementsAre(AllOf(StartsWith("rank 1"), HasSubstr("run longer"))));
    EXPECT_THAT(human_report(run), HasSubstr("7.8 MiB"));
}

TEST(CompareRanks, SaysPlainlyWhenDeftWasNotInThePath) {
    json text = document(0, 2);
    text["calls"] = json::object();
    text["plugin"] = {{"loaded", false}};
    const RunReport run = compare_ranks({parsed(text)});
    EXPECT_THAT(run.problems,
                ElementsAre(AllOf(HasSubstr("hooks were never reached"), HasSubstr("deft run"))));
    EXPECT_THAT(run.notes, Contains(AllOf(HasSubstr("did not load the plugin"),
                                          HasSubstr("NCCL_NET_PLUGIN=deft"))));
    const std::string shown = human_report(run);
    EXPECT_THAT(shown, HasSubstr("hooks      NOT in the path"));
    EXPECT_THAT(shown, HasSubstr("plugin     NOT in the path"));
}

TEST(CompareRanks, PassesOnWhatTheRanksSayOfTheirMeasurements) {
    json text = document(0, 1);
    text["final"] = false;
    text["hooks"] = {{"in_path", true}, {"captured", 3}, {"lost", 4}, {"events_note", "no driver"}};
    text["iterations"]["compute_ms"] = quantiles(150);
    const RunReport run = compare_ranks({parsed(text)});
    EXPECT_THAT(run.problems, IsEmpty());
    EXPECT_THAT(run.notes, ElementsAre(HasSubstr("still runs"), HasSubstr("no driver"),
                                       HasSubstr("3 calls were captured"), HasSubstr("4 calls")));
    EXPECT_THAT(human_report(run), HasSubstr("           of which 150.00 ms computation"));
    text["iterations"]["exposed_ms"] = quantiles(100);
    EXPECT_THAT(human_report(compare_ranks({parsed(text)})),
                AllOf(HasSubstr("           150.00 ms computation, 100.00 ms waiting"),
                      HasSubstr("need not add up")));
}

TEST(CompareRanks, MixedReleasesAreAProblem) {
    json other = document(1, 2);
    other["library"]["version"] = "0.2.0";
    EXPECT_THAT(compare_ranks({parsed(document(0, 2)), parsed(other)}).problems,
                ElementsAre(HasSubstr("0.1.0, 0.2.0")));
}

TEST(ReportOfTwoJobs, IsRefused) {
    const auto with = [](int rank, const std::vector<const char*>& names) {
        json file = document(rank, 3);
        file["communicators"] = json::array();
        for (const char* name : names) {
            file["communicators"].push_back({{"communicator", name}});
        }
        return parse_observe_file("r" + std::to_string(rank) + ".json", file.dump());
    };
    // Ranks 0 and 2 meet in rank 1's communicators.
    EXPECT_THAT(compare_ranks({with(0, {"a"}), with(1, {"a", "b"}), with(2, {"b"})}).problems,
                IsEmpty());
    EXPECT_THAT(compare_ranks({with(0, {"a"}), with(1, {"a"}), with(2, {"b"})}).problems,
                Contains(AllOf(HasSubstr("r0.json and r2.json"), HasSubstr("no communicator"))));
    // Files that list none say nothing.
    EXPECT_THAT(compare_ranks({with(0, {"a"}), with(1, {"a"}), with(2, {})}).problems, IsEmpty());
    json exact = document(1, 2);
    exact["mode"] = "exact";
    EXPECT_THAT(compare_ranks({parse_observe_file("x.json", document(0, 2).dump()),
                               parse_observe_file("y.json", exact.dump())})
                    .problems,
                Contains(AllOf(HasSubstr("mode observe"), HasSubstr("mode exact"))));
}

// Of an observed job of 200 ms and another of 400: 300 ms are nobody's.
TEST(ReportOfTwoJobs, PutsNothingTogether) {
    json exact = document(1, 2, 2);
    exact["mode"] = "exact";
    const RunReport run =
        compare_ranks({parsed(document(0, 2), "x.json"), parsed(exact, "y.json")});
    const std::string shown = human_report(run);
    EXPECT_THAT(shown, AllOf(StartsWith("files of several runs"), HasSubstr("200.00"),
                             HasSubstr("400.00"), Not(HasSubstr("300.00"))));
    EXPECT_THAT(shown, AllOf(HasSubstr("x.json"), HasSubstr("y.json"), HasSubstr("problem: ")));
    const json document_out = json::parse(json_report(run));
    EXPECT_EQ(document_out["one_run"], false);
    EXPECT_EQ(document_out["time_ms"]["median"], nullptr);
    EXPECT_EQ(document_out["coverage_rate"]["median"], nullptr);
    EXPECT_EQ(document_out["ranks"][1]["time_ms"], 400.0);
    EXPECT_THAT(html_report(run),
                AllOf(HasSubstr("several runs"), HasSubstr("y.json"), Not(HasSubstr("300.00"))));
}

}  // namespace
}  // namespace deft::tools
