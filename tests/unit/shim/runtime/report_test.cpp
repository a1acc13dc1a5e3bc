// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/report.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json_writer.h"
#include "base/link_stats.h"

namespace deft {
namespace {

TEST(JsonWriter, EscapesAndNests) {
    JsonWriter json;
    json.begin_object().member("quote\"d", "a\\b\n\x01").key("list").begin_array();
    json.value(1).value(-2.5).value(true).value(std::nan("")).value(std::uint64_t{1} << 63);
    json.begin_object().end_object().begin_array().end_array().end_array();
    json.member("last", std::int64_t{-7}).end_object();
    const auto parsed = nlohmann::json::parse(json.text());
    EXPECT_EQ(parsed["quote\"d"], "a\\b\n\x01");
    EXPECT_EQ(parsed["list"][0], 1);
    EXPECT_EQ(parsed["list"][1], -2.5);
    EXPECT_EQ(parsed["list"][2], true);
    EXPECT_TRUE(parsed["list"][3].is_null());
    EXPECT_EQ(parsed["list"][4], std::uint64_t{1} << 63);
    EXPECT_EQ(parsed["list"].size(), 7u);
    EXPECT_EQ(parsed["last"], -7);
}

// A record whose command line is Latin-1, or was cut within a character, is one to its readers.
TEST(JsonWriter, WritesUtf8WhateverItGets) {
    JsonWriter json;
    json.begin_array().value("\xC3\xA9\xE6\x97\xA5").value("f\xFCr").value("cut \xE6\x97");
    json.value("\xED\xA0\x80").end_array();
    const auto parsed = nlohmann::json::parse(json.text());
    EXPECT_EQ(parsed[0], "\xC3\xA9\xE6\x97\xA5");
    EXPECT_EQ(parsed[1], "f\xEF\xBF\xBDr");
    EXPECT_EQ(parsed[2], "cut \xEF\xBF\xBD\xEF\xBF\xBD");
    EXPECT_EQ(parsed[3], "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

// What `deft report --trace` draws: the latest measured iterations in microseconds of UTC, and what
// each link had carried by when.
TEST(Report, HasTracedIterationsAndLinks) {
    constexpr std::int64_t kMs = 1'000'000;
    Track track;
    std::int64_t now = 0;
    for (int i = 0; i < 6; ++i, now += 10 * kMs) {
        CallRecord record;
        record.comm_serial = 1;
        record.count = 1000;
        record.type = DEFT_NCCL_FLOAT32;
        record.op = DEFT_NCCL_SUM;
        record.issued_ns = now;
        track.feed(record);
        if (!track.waiting().empty()) {
            TimedCall& call = track.waiting().back().call;
            call.timed = true;
            call.start = now + kMs;
            call.end = now + 3 * kMs;
        }
        track.settle();
    }
    LinkCounters& link = LinkStats::process().link("traced0", "tcp");
    link.bytes_sent = 500;
    link.note_stall(2'000'000'000);
    LinkHistory history;
    history.look(7);
    history.look(LinkHistory::kApart / 2);  // too soon
    link.bytes_sent = 900;
    history.look(7 + LinkHistory::kApart);
    ReportFacts facts;
    facts.utc_offset_ns = 5'000'000;
    facts.link_history = &history;
    const auto report = nlohmann::json::parse(make_report(facts, &track));
    const auto& iterations = report["traced"]["iterations"];
    ASSERT_GE(iterations.size(), 1u);
    const auto& last = iterations.back();
    // The iteration before ended at 43 ms of the monotonic clock.
    EXPECT_EQ(last["origin_us"], 48'000);
    EXPECT_EQ(last["calls"], nlohmann::json::parse("[[0, 7000, 8000, 8000, 10000]]"));
    const auto& samples = report["traced"]["links"];
    ASSERT_EQ(samples.size(), 2u);
    EXPECT_EQ(samples[1]["at_us"], 5'000 + LinkHistory::kApart / 1000);
    EXPECT_EQ(samples[0]["sent"].back(), 500);
    EXPECT_EQ(samples[1]["sent"].back(), 900);
    const auto& stalls = report["links"].back()["stalls"];
    EXPECT_EQ(stalls["bounds_s"].size() + 1, stalls["counts"].size());
    EXPECT_EQ(stalls["counts"][3], 1);  // of 1 to 3 s
    EXPECT_EQ(stalls["total_ms"], 2000);
}

TEST(Report, HasTheAgreedForm) {
    Track track;
    for (int i = 0; i < 5; ++i) {
        CallRecord record;
        record.comm_serial = 1;
        record.comm_hash = 0xabcd;
        record.count = 1000;
        record.type = DEFT_NCCL_FLOAT32;
        record.op = DEFT_NCCL_SUM;
        record.in_place = true;
        record.nranks = 2;
        track.feed(record);
        record.type = DEFT_NCCL_INT32;
        record.count = 8;
        track.feed(record);
    }
    ReportFacts facts;
    facts.rank = 1;
    facts.ranks = 2;
    facts.calls[static_cast<std::size_t>(Function::AllReduce)] = 10;
    facts.communicators.push_back({1, 0xabcd, 1, 2, 0});
    facts.job = {"42", "python train.py", "2026-11-26T15:07:50Z"};
    facts.plans.emplace_back();
    GuardEvent rose{9, "fall back", "it rose", true};
    rose.from = 3;
    rose.to = 11;
    rose.late_by = 2;
    rose.dropped = 1;
    rose.loss_expected = 0.5;
    rose.loss_seen = 2;
    facts.plans[0].guard_history = {{7, "fall back", "it grew", true}, rose};
    facts.written = "2026-11-26T15:08:00Z";
    const auto report = nlohmann::json::parse(make_report(facts, &track));
    EXPECT_EQ(report["format"], "deft-observe");
    EXPECT_EQ(report["version"], 1);
    EXPECT_EQ(report["library"]["version"], DEFT_VERSION);
    EXPECT_EQ(report["calls"]["ncclAllReduce"], 10);
    EXPECT_EQ(report["iterations"]["seen"], 5);
    EXPECT_EQ(report["iterations"]["cycle_length"], 2);
    EXPECT_EQ(report["iterations"]["stable"], true);
    ASSERT_EQ(report["buckets"].size(), 1u);
    EXPECT_EQ(report["buckets"][0]["position"], 0);
    EXPECT_EQ(report["buckets"][0]["bytes"], 4000);
    EXPECT_EQ(report["buckets"][0]["count"], 1000);
    EXPECT_EQ(report["buckets"][0]["type"], "float32");
    EXPECT_EQ(report["buckets"][0]["op"], "sum");
    EXPECT_EQ(report["buckets"][0]["in_place"], true);
    EXPECT_EQ(report["buckets"][0]["communicator"], "000000000000abcd");
    EXPECT_EQ(report["buckets"][0]["transfer_ms"]["n"], 0);
    EXPECT_TRUE(report["buckets"][0]["transfer_ms"]["median"].is_null());
    ASSERT_EQ(report["other_calls"].size(), 1u);
    EXPECT_EQ(report["other_calls"][0]["position"], 1);
    EXPECT_EQ(report["plugin"]["loaded"], false);
    EXPECT_EQ(report["hooks"]["in_path"], true);
    EXPECT_TRUE(report["links"].is_array());
    EXPECT_EQ(report["plans"][0]["guard_history"],
              nlohmann::json::parse(
                  R"([{"iteration": 7, "action": "fall back", "reason": "it grew", "acted": true},
                {"iteration": 9, "action": "fall back", "reason": "it rose", "acted": true,
                 "from": 3, "to": 11, "late_by": 2, "dropped": 1, "loss_expected": 0.5, "loss_seen": 2.0}])"));
    EXPECT_EQ(report["job"]["id"], "42");
    EXPECT_EQ(report["job"]["command"], "python train.py");
    EXPECT_EQ(report["job"]["started"], "2026-11-26T15:07:50Z");
    EXPECT_EQ(report["job"]["written"], "2026-11-26T15:08:00Z");
}

TEST(Report, IsWholeWithoutAnyCall) {
    const auto report = nlohmann::json::parse(make_report(ReportFacts{}, nullptr));
    EXPECT_EQ(report["iterations"]["cycle_length"], 0);
    EXPECT_EQ(report["hooks"]["in_path"], false);
    EXPECT_TRUE(report["buckets"].empty());
}

}  // namespace
}  // namespace deft
