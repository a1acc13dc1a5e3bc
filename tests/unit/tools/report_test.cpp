// SPDX-License-Identifier: Apache-2.0
#include "tools/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

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

json quantiles(double median) {
    return {{"median", median}, {"p10", median * 0.9}, {"p90", median * 1.2}, {"n", 40}};
}

json document(int rank, int ranks, double slower = 1) {
    return {{"format", "deft-observe"},
            {"version", 1},
            {"library", {{"version", "0.1.0"}, {"path", "/lib/libnccl-net-deft.so"}}},
            {"nccl", {{"version", 22809}, {"path", "/lib/libnccl.so.2"}}},
            {"host", rank % 2 == 0 ? "left" : "right"},
            {"rank", rank},
            {"ranks", ranks},
            {"pid", 100 + rank},
            {"mode", "observe"},
            {"calls", {{"ncclAllReduce", 90}, {"ncclBroadcast", 10}}},
            {"plugin", {{"loaded", true}, {"abi", 11}, {"calls", 5000}}},
            {"iterations",
             {{"seen", 44},
              {"cycle_length", 2},
              {"stable", true},
              {"time_ms", quantiles(200 * slower)},
              {"coverage_rate", quantiles(0.75)}}},
            {"buckets",
             {{{"position", 0},
               {"communicator", "c0ffee"},
               {"bytes", 8224000},
               {"count", 2056000},
               {"type", "float32"},
               {"op", "sum"},
               {"in_place", true},
               {"ready_ms", quantiles(30 * slower)},
               {"transfer_ms", quantiles(65.792)}},
              {{"position", 1},
               {"communicator", "c0ffee"},
               {"bytes", 23987200},
               {"count", 5996800},
               {"type", "float32"},
               {"op", "sum"},
               {"in_place", true},
               {"ready_ms", quantiles(100 * slower)},
               {"transfer_ms", json{{"median", nullptr}, {"n", 0}}}}}},
            {"links",
             {{{"name", "eth0"},
               {"kind", "tcp"},
               {"bytes_sent", 1048576},
               {"bytes_received", 2097152},
               {"chunks_sent", 16},
               {"busy_ms", 12.5},
               {"resent_bytes", 0},
               {"transitions", 0},
               {"speed_mbps", 2000}}}}};
}

ObserveFile parsed(const json& text, const std::string& path = "f.json") {
    return parse_observe_file(path, text.dump());
}

std::string error_of(const std::string& text) {
    try {
        parse_observe_file("f.json", text);
    } catch (const std::runtime_error& error) {
        return error.what();
    }
    return "accepted";
}

TEST(ObserveFileTest, ReadsEverythingTheReportShows) {
    const ObserveFile file = parsed(document(1, 4));
    EXPECT_EQ(file.rank, 1);
    EXPECT_EQ(file.ranks, 4);
    EXPECT_EQ(file.nccl_version, 22809);
    EXPECT_EQ(file.all_calls(), 100);
    EXPECT_EQ(file.plugin_abi, 11);
    EXPECT_TRUE(file.stable);
    EXPECT_EQ(file.time_ms.median, 200);
    ASSERT_EQ(file.buckets.size(), 2u);
    EXPECT_EQ(file.buckets[1].bytes, 23987200);
    EXPECT_EQ(file.buckets[1].transfer_ms.median, std::nullopt) << "null is: not measured";
    ASSERT_EQ(file.links.size(), 1u);
    EXPECT_EQ(file.links[0].speed_mbps, 2000);
}

TEST(ObserveFileTest, AFileHasTheRecordsOfAHost) {
    const std::string first = document(0, 2).dump();
    const std::string second = document(1, 2).dump();
    EXPECT_THAT(records_in(first + "\n" + second + "\n"), ElementsAre(first, second));
    EXPECT_THAT(records_in(first), ElementsAre(first));
    const std::string pretty = document(0, 1).dump(1);
    EXPECT_THAT(records_in(pretty), ElementsAre(pretty));
    const std::string cut = first + "\n" + second.substr(0, second.size() - 1);
    EXPECT_THAT(records_in(cut), ElementsAre(first, second.substr(0, second.size() - 1)));
    EXPECT_THAT(records_in(""), ElementsAre(""));
    const std::string path = ::testing::TempDir() + "deft-records.json";
    std::ofstream(path) << first << "\n" << second << "\n";
    std::vector<std::string> problems;
    const std::vector<ObserveFile> files = read_observe_files(path, problems);
    EXPECT_THAT(problems, IsEmpty());
    ASSERT_EQ(files.size(), 2U);
    EXPECT_EQ(files[1].rank, 1);
    EXPECT_EQ(files[1].path, path + ", record 2");
    ::unlink(path.c_str());
    EXPECT_THAT(read_observe_files(path, problems), IsEmpty());
    EXPECT_THAT(problems, ElementsAre(HasSubstr(path)));
}

TEST(ObserveFileTest, ARecordThatCannotBeReadHidesNoOther) {
    const std::string path = ::testing::TempDir() + "deft-records-cut.json";
    const std::string second = document(1, 2).dump();
    std::ofstream(path) << document(0, 2).dump().substr(0, 100) << "\n" << second << "\n";
    std::vector<std::string> problems;
    const std::vector<ObserveFile> files = read_observe_files(path, problems);
    EXPECT_THAT(problems, ElementsAre(StartsWith(path + ", record 1:")));
    ASSERT_EQ(files.size(), 1U);
    EXPECT_EQ(files[0].rank, 1);
    ::unlink(path.c_str());
}

TEST(ObserveFileTest, IgnoresFieldsOfLaterReleases) {
    json text = document(0, 1);
    text["weather"] = {{"wind", 3}};
    text["buckets"][0]["colour"] = "red";
    EXPECT_EQ(parsed(text).buckets.size(), 2u);
}

TEST(ObserveFileTest, SaysWhereTheTextIsNoJson) {
    EXPECT_THAT(error_of("{\n \"format\": \"deft-observe\",\n  oops }"),
                AllOf(StartsWith("f.json: line 3, column 3:"), HasSubstr("not valid JSON")));
    const std::string whole = document(0, 1).dump(1);
    EXPECT_THAT(error_of(whole.substr(0, whole.size() / 2)), HasSubstr("cut off"));
    EXPECT_THAT(error_of(""), HasSubstr("empty"));
    EXPECT_THAT(error_of(" \n\t"), HasSubstr("empty"));
    EXPECT_THAT(error_of(std::string("\0\1\2\xff", 4)), HasSubstr("line 1, column 1"));
    EXPECT_THAT(error_of(R"({"format":"deft-observe","version":1e999})"),
                StartsWith("f.json: version is a number out of range"));
    EXPECT_THAT(error_of(R"({"buckets":[{},{"ready_ms":{"median":-1e999}}]})"),
                StartsWith("f.json: buckets[1].ready_ms.median is a number out of range"));
    EXPECT_THAT(error_of(R"({"format":"deft-observe","rank":1,"rank":0})"),
                StartsWith("f.json: rank is given twice"));
    EXPECT_THAT(error_of(std::string(200000, '[')), HasSubstr("nested more than 64 deep"));
}

TEST(ObserveFileTest, SaysThatSomethingElseIsNoReport) {
    for (const char* text :
         {"[]", "3", "null", "{}", R"({"format":"deft-env"})", R"({"format":7})"}) {
        EXPECT_THAT(error_of(text),
                    AllOf(HasSubstr("not a report of deft"), HasSubstr("DEFT_MODE")))
            << text;
    }
}

TEST(ObserveFileTest, SaysThatAnotherVersionWroteIt) {
    json text = document(0, 1);
    text["version"] = 2;
    EXPECT_THAT(error_of(text.dump()), AllOf(HasSubstr("version 2"), HasSubstr("reads version 1"),
                                             HasSubstr("release that wrote it")));
}

// Every field, one at a time: missing, of another type, negative, absurdly large. The reader either
// copes or names the field; it never lets an exception of the JSON library out.
void spoil(const json& whole, const json::json_pointer& place, const json& node) {
    for (const json& bad : {json("text"), json(-1), json(18446744073709551615u), json(1.5),
                            json(true), json::array({1}), json::object(), json(nullptr)}) {
        json text = whole;
        text[place] = bad;
        const std::string error = error_of(text.dump());
        if (error != "accepted") {
            EXPECT_THAT(error, StartsWith("f.json: ")) << place.to_string() << " " << bad;
            EXPECT_THAT(error, AnyOf(HasSubstr(place.back()), HasSubstr("not a report"),
                                     HasSubstr("is "), HasSubstr("missing")));
            EXPECT_EQ(error.find('\n'), error.npos);
        }
    }
    if (node.is_structured()) {
        for (const auto& [key, value] : node.items()) {
            spoil(whole, place / key, value);
        }
        for (const auto& [key, value] : node.items()) {
            json text = whole;
            text[place].is_object() ? (void)text[place].erase(key) : (void)0;
            const std::string error = error_of(text.dump());
            EXPECT_TRUE(error == "accepted" || error.starts_with("f.json: ")) << error;
        }
    }
}

TEST(ObserveFileTest, NamesTheFieldThatIsWrong) {
    json whole = document(0, 2);
    whole["plans"] = json::array({{{"state", "running"}, {"policy", "deft"}, {"predicted_ms", 1}}});
    for (const auto& [key, value] : whole.items()) {
        spoil(whole, json::json_pointer("/" + key), value);
    }
    json text = whole;
    text["buckets"][1]["bytes"] = "many";
    EXPECT_THAT(error_of(text.dump()), AllOf(HasSubstr("buckets[1].bytes"), HasSubstr("\"many\""),
                                             HasSubstr("a whole number")));
    text = whole;
    text["buckets"][1]["transfer_ms"]["median"] = -5;
    EXPECT_THAT(error_of(text.dump()),
                AllOf(HasSubstr("buckets[1].transfer_ms.median"), HasSubstr("-5")));
    text["buckets"][1]["transfer_ms"]["median"] = 1e300;
    EXPECT_THAT(error_of(text.dump()), HasSubstr("buckets[1].transfer_ms.median is 1e+300"));
    // The host may run ahead of the iteration's origin.
    text = whole;
    text["buckets"][1]["ready_ms"]["p10"] = -5;
    EXPECT_EQ(error_of(text.dump()), "accepted");
    text = whole;
    text["plugin"].erase("loaded");
    EXPECT_THAT(error_of(text.dump()), HasSubstr("plugin.loaded is missing"));
    text = whole;
    text["rank"] = 2;
    EXPECT_THAT(error_of(text.dump()), HasSubstr("rank 2 of 2"));
}

std::string plans_shown(const json& plans) {
    json text = document(0, 1);
    text["plans"] = plans;
    const std::string report = human_report(compare_ranks({parsed(text)}));
    std::string lines;
    for (std::size_t at = report.find("\nplan "); at != report.npos;
         at = report.find("\nplan ", at + 1)) {
        lines += report.substr(at + 1, report.find('\n', at + 1) - at);
    }
    return lines;
}

TEST(HumanReport, TellsOfThePlanOfEachCommunicator) {
    const json running = {{"state", "running"},   {"reason", ""},        {"policy", "deft"},
                          {"predicted_ms", 40.5}, {"before_ms", 61.25},  {"baseline_ms", 60},
                          {"switched", 1},        {"iterations", 100000}};
    EXPECT_EQ(
        plans_shown(json::array({running})),
        "plan       'deft' in force: measured 200.00 ms per iteration, predicted 40.50 ms per "
        "iteration, measured 61.25 ms without it\n");
    json ended = running;
    ended["state"] = "forwarding";
    ended["reason"] = "the sums stopped\nfalling";
    EXPECT_EQ(plans_shown(json::array({running, ended})),
              "plan       'deft' in force: predicted 40.50 ms per iteration, measured 61.25 ms "
              "without it\n"
              "plan       'deft' was in force and is not any more, state forwarding: the sums "
              "stopped\\x0afalling: predicted 40.50 ms per iteration, measured 61.25 ms "
              "without it\n");
    EXPECT_EQ(plans_shown(json::array({{{"state", "watching"}, {"reason", "no optimizer"}}})),
              "plan       none in force, state watching: no optimizer\n");
    EXPECT_EQ(plans_shown(json::array({{{"state", "watching"}}})),
              "plan       none in force, state watching\n");
    json dearer = running;
    dearer["state"] = "watching";
    dearer["switched"] = 0;
    dearer["before_ms"] = 0;
    EXPECT_EQ(plans_shown(json::array({dearer})),
              "plan       'deft' not in force, state watching: predicted 40.50 ms per iteration, "
              "predicted 60.00 ms without it\n");
    EXPECT_EQ(plans_shown(json::array()), "");
}

TEST(HumanReport, TellsHowCallsAreCarriedOut) {
    json text = document(0, 1);
    json plan = {{"state", "watching"}, {"reason", "none is worth it"}};
    plan["tuning"] = {{"state", "settled"},
                      {"reason", ""},
                      {"ratio", 0.875},
                      {"calls", json::array({{{"call", "ncclAllReduce of 4096 float32"},
                                              {"choice", "Tree/Simple on 1 channel"},
                                              {"own_ms", 4.5},
                                              {"chosen_ms", 3.25}}})}};
    text["plans"] = json::array({plan});
    EXPECT_THAT(human_report(compare_ranks({parsed(text)})),
                HasSubstr("\ntuner      settled: an iteration takes 0.88 times as long as before\n"
                          "           ncclAllReduce of 4096 float32: Tree/Simple on 1 channel, "
                          "3.25 ms (NCCL's own choice 4.50 ms)\n"));
    plan["tuning"] = {{"state", "watching"},
                      {"reason", "NCCL_ALGO is set"},
                      {"ratio", 1},
                      {"calls", json::array()}};
    text["plans"] = json::array({plan});
    EXPECT_THAT(human_report(compare_ranks({parsed(text)})),
                HasSubstr("\ntuner      watching: NCCL_ALGO is set\n"));
    plan.erase("tuning");
    text["plans"] = json::array({plan});
    EXPECT_THAT(human_report(compare_ranks({parsed(text)})), Not(HasSubstr("tuner")));
}

TEST(HumanReport, SaysWhetherTheLargeSumsAreKnownToBeGradients) {
    const auto shown = [](const char* mode, const char* gradients) {
        json texts[] = {document(0, 2), document(1, 2)};
        for (json& text : texts) {
            text["mode"] = mode;
            text["gradients"] = gradients;
        }
        const std::string report =
            human_report(compare_ranks({parsed(texts[0]), parsed(texts[1])}));
        const std::size_t at = report.find("\ngradients ");
        const std::size_t end = report.find('\n', at + 1);
        EXPECT_EQ(report.find("\ngradients ", end), report.npos) << "once for all ranks";
        return at == report.npos ? std::string() : report.substr(at + 1, end - at);
    };
    EXPECT_EQ(shown("deft", "trust"),
              "gradients  trusted: the operator says that the large sums are gradients "
              "(DEFT_GRADIENTS=trust)\n");
    EXPECT_EQ(shown("covap", "proven"),
              "gradients  mode covap delays or merges what the companions of all ranks have proven "
              "(docs/companion.md)\n");
    EXPECT_EQ(shown("exact", "proven"), "");
    EXPECT_EQ(shown("deft", ""), "") << "of an older writer";
}

TEST(HumanReport, RanksThatTellTheSameOfAPlanTellItOnce) {
    json texts[] = {document(0, 3), document(1, 3), document(2, 3)};
    for (json& text : texts) {
        text["plans"] =
            json::array({{{"state", "running"}, {"policy", "deft"}, {"predicted_ms", 1}}});
    }
    texts[2]["plans"][0]["state"] = "staging";
    const RunReport run = compare_ranks({parsed(texts[0]), parsed(texts[1]), parsed(texts[2])});
    const std::string report = human_report(run);
    EXPECT_NE(report.find("plan       ranks 0-1: 'deft' in force"), report.npos);
    EXPECT_NE(report.find("plan       rank 2: 'deft' not in force, state staging"), report.npos);
    EXPECT_EQ(report.find("in force: "), report.rfind("in force: ")) << report;
    EXPECT_NE(report.find("as a rule its rank 0, plans: its line counts"), report.npos);
    texts[2] = texts[1];
    texts[2]["rank"] = 2;
    const std::string agreed =
        human_report(compare_ranks({parsed(texts[0]), parsed(texts[1]), parsed(texts[2])}));
    EXPECT_NE(agreed.find("plan       'deft' in force"), agreed.npos) << agreed;
    EXPECT_EQ(agreed.find("its line counts"), agreed.npos);
    EXPECT_EQ(json::parse(json_report(run))["ranks"][1]["plans"][0]["policy"], "deft");
}

// The loss of a training that diverges is larger than any time.
TEST(JsonReport, TellsWhatAFallCost) {
    const json fall = {{"iteration", 120},
                       {"action", "fall back"},
                       {"reason", "the loss rose"},
                       {"acted", true},
                       {"from", 90},
                       {"to", 130},
                       {"late_by", 1},
                       {"dropped", 2},
                       {"loss_expected", 0.5},
                       {"loss_seen", 1e200}};
    const json resume = {
        {"iteration", 330}, {"action", "resume"}, {"reason", "synchronous"}, {"acted", true}};
    json text = document(0, 1);
    text["plans"] = {{{"communicator", "c0ffee"},
                      {"state", "running"},
                      {"guard_decisions", 2},
                      {"guard_history", {fall, resume}}}};
    const json told = json::parse(json_report(compare_ranks({parsed(text)})));
    EXPECT_EQ(told["ranks"][0]["plans"][0]["guard_history"], json({fall, resume}));
}

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

TEST(HumanReport, ShowsFiguresAndSpread) {
    const std::string shown =
        human_report(compare_ranks({parsed(document(0, 2)), parsed(document(1, 2, 1.5))}));
    EXPECT_THAT(shown, HasSubstr("observed 2 of 2 ranks on 2 hosts; NCCL 2.28.9"));
    EXPECT_THAT(shown, HasSubstr("100 NCCL calls seen on each rank, 90 of them ncclAllReduce"));
    EXPECT_THAT(shown, HasSubstr("net ABI v11), called 10000 times"));
    EXPECT_THAT(shown, HasSubstr("250.00 [200.00..300.00] ms"));
    EXPECT_THAT(shown, HasSubstr("37.50 [30.00..45.00]")) << "ready time of bucket 0";
    EXPECT_THAT(shown, HasSubstr("1.00\n")) << "8224000 bytes in 65.792 ms are 1 Gbit/s";
    EXPECT_THAT(shown, HasSubstr("22.9 MiB"));
    EXPECT_THAT(shown, HasSubstr("eth0"));
}

TEST(HumanReport, SaysWhatIsAGuess) {
    json text = document(0, 1);
    text["iterations"]["compute_ms"] = quantiles(40);
    text["iterations"]["coverage_rate"] = quantiles(3);
    text["iterations"]["latest_start_ms"] = quantiles(120);
    EXPECT_THAT(human_report(compare_ranks({parsed(text)})),
                HasSubstr("may be up to 120.00 ms, coverage down to 1.00\n"));
    text["iterations"]["latest_start_ms"] = quantiles(42);
    EXPECT_THAT(human_report(compare_ranks({parsed(text)})), Not(HasSubstr("may be")));
    text["iterations"].erase("latest_start_ms");  // a file of an earlier release
    EXPECT_THAT(human_report(compare_ranks({parsed(text)})), Not(HasSubstr("may be")));
}

TEST(HumanReport, AFileCannotDriveTheTerminal) {
    json text = document(0, 1);
    text["links"][0]["name"] = "eth\x1b[2J";
    text["library"]["version"] = "0\n1";
    const std::string shown = human_report(compare_ranks({parsed(text)}));
    EXPECT_EQ(shown.find('\x1b'), shown.npos);
    EXPECT_THAT(shown, HasSubstr("eth\\x1b[2J"));
}

TEST(JsonReport, IsJsonWithTheSameFigures) {
    const json document_out = json::parse(
        json_report(compare_ranks({parsed(document(0, 2)), parsed(document(1, 2, 1.5))})));
    EXPECT_EQ(document_out["format"], "deft-report");
    EXPECT_EQ(document_out["time_ms"]["median"], 250.0);
    EXPECT_EQ(document_out["time_ms"]["highest"], 300.0);
    EXPECT_EQ(document_out["ranks"].size(), 2u);
    EXPECT_EQ(document_out["ranks"][0]["buckets"][1]["transfer_ms"], nullptr);
    EXPECT_TRUE(document_out["problems"].empty());
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
