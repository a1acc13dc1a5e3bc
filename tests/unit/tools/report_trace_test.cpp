// SPDX-License-Identifier: Apache-2.0
// The trace of a job, and what the report says of stalls and of who waited.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tools/report.h"
#include "tools/report_stalls.h"
#include "tools/report_trace.h"

namespace deft::tools {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// A record as a rank writes it: two buckets and a gather, the second bucket on a stream of its own.
json record(int rank, int late_us) {
    json made = json::parse(R"({"format": "deft-observe", "version": 1, "writer": "1",
        "library": {"version": "0.1.0", "path": ""}, "nccl": {"version": 22809, "path": ""},
        "host": "left", "ranks": 2, "pid": 7, "mode": "exact", "final": true,
        "calls": {"ncclAllReduce": 90}, "plugin": {"loaded": true, "abi": 10, "calls": 9},
        "iterations": {"seen": 30, "cycle_length": 3, "stable": true,
            "time_ms": {"median": 10, "p10": 9, "p90": 11, "n": 30},
            "exposed_ms": {"median": 2, "p10": 1, "p90": 3, "n": 30}},
        "buckets": [
            {"position": 0, "bytes": 1048576, "in_place": true,
             "ready_ms": {"median": 1, "p10": 1, "p90": 1, "n": 30}},
            {"position": 1, "bytes": 2097152, "in_place": true,
             "ready_ms": {"median": 2, "p10": 2, "p90": 2, "n": 30}}],
        "other_calls": [{"position": 2, "function": "ncclAllGather", "bytes": 4096}],
        "links": [{"name": "eth0", "kind": "tcp", "bytes_sent": 9000, "bytes_received": 1,
            "stalls": {"total_ms": 1500.0, "bounds_s": [0.1, 0.3, 1.0], "counts": [2, 0, 0, 1]}}],
        "plans": [{"state": "running", "policy": "best", "switched": 1, "transfers": [
            {"bucket": 0, "link": 0, "start_ms": 1.0, "finish_ms": 4.0},
            {"bucket": 1, "link": 1, "start_ms": 2.0, "finish_ms": 5.0}]}],
        "traced": {"iterations": [
            {"origin_us": 1000000, "calls": [[0, 900, 1000, 1000, 4000], [1, 1900, 2000, 3000, 7000],
                                             [2, 7000, 7000, 7100, 7200]]},
            {"origin_us": 1007200, "calls": [[0, -50, 900, 950, 4000], [1, 1900, 2000, 3500, 6000],
                                             [2, 6900, 6900, 6900, 6900]]}],
          "links": [{"at_us": 1000000, "sent": [1000], "again": [0]},
                    {"at_us": 2000000, "sent": [126000], "again": [0]}]}})");
    made["rank"] = rank;
    made["buckets"][1]["ready_ms"]["median"] = 2 + late_us / 1000.0;
    return made;
}

RunReport run_of(const std::vector<json>& records) {
    std::vector<ObserveFile> files;
    for (const json& each : records) {
        files.push_back(parse_observe_file("r.json", each.dump()));
    }
    return compare_ranks(std::move(files));
}

json trace_of(const RunReport& run) {
    return json::parse(trace_text(run));
}

// What the viewers demand of a document in this format.
void expect_loads(const json& trace) {
    ASSERT_TRUE(trace.at("traceEvents").is_array());
    std::map<std::pair<int, int>, std::int64_t> until;
    for (const json& event : trace["traceEvents"]) {
        ASSERT_THAT(event.at("ph").get<std::string>(), testing::AnyOf("M", "X", "C"));
        ASSERT_TRUE(event.at("name").is_string());
        ASSERT_TRUE(event.at("pid").is_number_integer() && event.at("tid").is_number_integer());
        ASSERT_TRUE(event.at("ts").is_number_integer());
        if (event["ph"] != "X") {
            continue;
        }
        ASSERT_GE(event.at("dur").get<std::int64_t>(), 0);
        // Bars of a row follow each other: a viewer draws one that begins in another below it.
        const std::pair row{event["pid"].get<int>(), event["tid"].get<int>()};
        EXPECT_GE(event["ts"].get<std::int64_t>(), until[row]) << event;
        until[row] = event["ts"].get<std::int64_t>() + event["dur"].get<std::int64_t>();
    }
}

std::vector<std::string> names(const json& trace, const std::string& phase, int rank) {
    std::vector<std::string> list;
    for (const json& event : trace["traceEvents"]) {
        if (event["ph"] == phase && event["pid"] == rank) {
            list.push_back(phase == "M" ? event["args"].value("name", "")
                                        : event["name"].get<std::string>());
        }
    }
    return list;
}

TEST(ReportTrace, HasIterationsSumsCallsPlansAndLinks) {
    const json trace = trace_of(run_of({record(0, 0), record(1, 500)}));
    expect_loads(trace);
    for (const int rank : {0, 1}) {
        EXPECT_THAT(names(trace, "X", rank),
                    testing::IsSupersetOf({"measured iteration 1", "measured iteration 2", "waits",
                                           "bucket 0, 1.0 MiB", "bucket 1, 2.0 MiB",
                                           "ncclAllGather, 4.0 KiB", "bucket 0", "bucket 1"}));
        EXPECT_THAT(names(trace, "M", rank),
                    testing::IsSupersetOf({"iterations", "waits for transfers", "sums", "sums (2)",
                                           "other calls", "plan 'best' as computed, lane 1",
                                           "plan 'best' as computed, the job's network"}));
    }
    EXPECT_THAT(names(trace, "M", 1), testing::Contains("rank 1 on left"));
}

TEST(ReportTrace, TimesAreOfTheClock) {
    const json trace = trace_of(run_of({record(0, 0), record(1, 0)}));
    for (const json& event : trace["traceEvents"]) {
        if (event["name"] == "bucket 1, 2.0 MiB" && event["ts"] == 1003000) {
            EXPECT_EQ(event["dur"], 4000);
            EXPECT_EQ(event["args"]["waited_us"], 1000);
            return;
        }
    }
    FAIL() << trace.dump(1);
}

TEST(ReportTrace, WaitsBeginWhereNothingIsLeftToCompute) {
    const json trace = trace_of(run_of({record(0, 0), record(1, 0)}));
    std::vector<std::pair<std::int64_t, std::int64_t>> iterations, waits;
    for (const json& event : trace["traceEvents"]) {
        if (event["ph"] == "X" && event["pid"] == 0) {
            const std::string name = event["name"];
            auto* const list = name == "waits"                     ? &waits
                               : name.starts_with("measured iter") ? &iterations
                                                                   : nullptr;
            if (list != nullptr) {
                list->emplace_back(event["ts"], event["dur"]);
            }
        }
    }
    using Bars = std::vector<std::pair<std::int64_t, std::int64_t>>;
    EXPECT_EQ(iterations, (Bars{{1000000, 7200}, {1007200, 6900}}));
    EXPECT_EQ(waits, (Bars{{1007000, 200}}));
}

TEST(ReportTrace, IsNotWrittenOverARecord) {
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("deft-trace-" + std::to_string(::getpid()));
    std::filesystem::create_directory(folder);
    const std::string file = folder / "rank0.json";
    const std::string text = record(0, 0).dump();
    std::ofstream(file) << text;
    testing::internal::CaptureStderr();
    EXPECT_NE(report({.files = {file}, .trace = folder / "./rank0.json"}), 0);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, HasSubstr("rank0.json is a record that is read here"));
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
    std::ifstream kept(file);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(kept), {}), text);
    std::filesystem::remove_all(folder);
}

TEST(ReportTrace, LinksShowTheirRates) {
    const json trace = trace_of(run_of({record(0, 0), record(1, 0)}));
    std::vector<std::pair<std::int64_t, double>> rates;
    for (const json& event : trace["traceEvents"]) {
        if (event["ph"] == "C" && event["pid"] == 0) {
            EXPECT_EQ(event["name"], "link eth0 sends");
            rates.emplace_back(event["ts"], event["args"]["Gbit/s"]);
        }
    }
    ASSERT_EQ(rates.size(), 2U);
    EXPECT_EQ(rates[0].first, 1000000);
    EXPECT_DOUBLE_EQ(rates[0].second, 0.001);
    EXPECT_EQ(rates[1], std::pair(std::int64_t{2000000}, 0.0));
}

TEST(ReportTrace, RecordsWithoutOneHaveNone) {
    json old = record(0, 0);
    old.erase("traced");
    old.erase("other_calls");
    old["links"][0].erase("stalls");
    const RunReport run = run_of({old});
    EXPECT_FALSE(has_trace(run));
    expect_loads(trace_of(run));
    EXPECT_TRUE(stalls_of(run).empty());
}

TEST(ReportTrace, BrokenOnesAreNamed) {
    const auto problem = [](auto&& change) -> std::string {
        json broken = record(0, 0);
        change(broken);
        try {
            (void)parse_observe_file("r.json", broken.dump());
        } catch (const std::runtime_error& error) {
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(problem([](json&) {}), "");
    EXPECT_THAT(problem([](json& j) {
                    j["traced"]["iterations"][0]["calls"][0] = {0, 1};
                }),
                HasSubstr("traced.iterations[0].calls does not fit"));
    EXPECT_THAT(problem([](json& j) { j["traced"]["iterations"][0]["calls"][0][0] = 3; }),
                HasSubstr("does not fit"));  // a cycle of three calls
    EXPECT_THAT(problem([](json& j) { j["traced"]["iterations"][0]["calls"][0][4] = -9; }),
                HasSubstr("does not fit"));  // ends before it starts
    EXPECT_THAT(problem([](json& j) { j["traced"]["iterations"][0]["calls"][0][1] = "x"; }),
                HasSubstr("whole numbers"));
    EXPECT_THAT(problem([](json& j) { j["traced"]["iterations"][0]["origin_us"] = INT64_MAX; }),
                HasSubstr("iterations[0].origin_us does not fit"));  // sums would overflow
    EXPECT_THAT(problem([](json& j) {
                    j["traced"]["links"][0]["sent"] = {1, 2};
                }),
                HasSubstr("does not fit"));  // one link
    EXPECT_THAT(problem([](json& j) { j["links"][0]["stalls"]["counts"] = {1}; }),
                HasSubstr("stalls.counts does not fit"));
}

TEST(ReportStalls, AreSummedByLinkAndSaid) {
    const RunReport run = run_of({record(0, 0), record(1, 500)});
    const std::vector<LinkStalls> links = stalls_of(run);
    ASSERT_EQ(links.size(), 1U);
    EXPECT_EQ(links[0].counts, (std::vector<std::int64_t>{4, 0, 0, 2}));
    EXPECT_DOUBLE_EQ(links[0].total_ms, 3000);
    const std::string text = human_report(run);
    EXPECT_THAT(text, HasSubstr("left eth0: away 4 up to 0.1 s, 2 above 1 s; 3000 ms in all"));
    EXPECT_THAT(html_report(run), HasSubstr("4 up to 0.1 s, 2 above 1 s"));
    const json document = json::parse(json_report(run));
    EXPECT_EQ(document["ranks"][0]["links"][0]["stalls"][3]["count"], 1);
    EXPECT_TRUE(document["ranks"][0]["links"][0]["stalls"][3]["within_s"].is_null());
}

TEST(ReportStalls, NoneAreNotSaid) {
    json quiet = record(0, 0);
    quiet["links"][0]["stalls"]["counts"] = {0, 0, 0, 0};
    EXPECT_THAT(human_report(run_of({quiet})), Not(HasSubstr("stalls (")));
}

TEST(ReportWaits, TheBucketAndTheRankThatWaitedLongestAreNamed) {
    json second = record(1, 500);
    second["iterations"]["exposed_ms"]["median"] = 2.5;
    const std::string text = human_report(run_of({record(0, 0), second}));
    EXPECT_THAT(text, HasSubstr("rank 1: its data for bucket 1"));
    EXPECT_THAT(text, HasSubstr("rank 1 waits longest: 2.50 ms of each iteration"));
}

}  // namespace
}  // namespace deft::tools
