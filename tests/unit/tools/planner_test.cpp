// SPDX-License-Identifier: Apache-2.0
// What `deft plan`, `deft sim` and `deft advise` read, and how they complain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "planner/adviser.h"
#include "planner/model/collective.h"
#include "planner/model/presets.h"
#include "planner/policies/policy.h"
#include "tests/unit/tools/complaint.h"
#include "tools/planner/fields.h"
#include "tools/planner/links_reader.h"
#include "tools/planner/profile_reader.h"
#include "tools/planner/timeline.h"

namespace deft::tools {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

json quantiles(double median) {
    return {{"median", median}, {"p10", median * 0.9}, {"p90", median * 1.2}, {"n", 40}};
}

json report() {
    return {
        {"format", "deft-observe"},
        {"version", 1},
        {"host", "left"},
        {"ranks", 4},
        {"iterations", {{"time_ms", quantiles(200)}, {"compute_ms", quantiles(150)}}},
        {"buckets",
         {{{"bytes", 8000000}, {"ready_ms", quantiles(70)}, {"transfer_ms", quantiles(20)}},
          {{"bytes", 24000000}, {"ready_ms", quantiles(150)}, {"transfer_ms", quantiles(60)}}}}};
}

TEST(ObserveProfile, TakesWhatWasMeasured) {
    const planner::Profile profile = profile_from_text("r.json", report().dump());
    ASSERT_EQ(profile.size(), 2U);
    EXPECT_EQ(profile.ranks, 4U);
    EXPECT_EQ(profile.source, "observe");
    EXPECT_EQ(profile.buckets[1].bytes, 24000000U);
    EXPECT_DOUBLE_EQ(profile.buckets[1].transfer.median, 0.060);
    EXPECT_DOUBLE_EQ(profile.buckets[1].transfer.p90, 0.072);
    EXPECT_DOUBLE_EQ(profile.iteration.median, 0.200);
    EXPECT_NEAR(profile.compute(), 0.150, 1e-12);
    EXPECT_EQ(profile.problem(), "");
}

TEST(ObserveProfile, SaysThatAPlanWasInForce) {
    std::vector<std::string> notes;
    const auto read = [&](const json& record) {
        notes.clear();
        TraceOptions options;
        options.notes = &notes;
        (void)profile_from_text("r.json", record.dump(), options);
    };
    json record = report();
    for (const char* state : {"observing", "fallen"}) {
        record["plans"] = {{{"state", state}}};
        read(record);
        EXPECT_TRUE(notes.empty()) << state;
    }
    record["plans"] = {{{"state", "idle"}}, {{"state", "running"}}, "?"};
    read(record);
    ASSERT_EQ(notes.size(), 1U);
    EXPECT_THAT(notes[0], HasSubstr("under a plan in force"));
}

struct Broken {
    const char* pointer;  // JSON pointer of what is changed
    json value;           // discarded: removed
    const char* says;     // file and field
};

class BrokenReport : public testing::TestWithParam<Broken> {};

TEST_P(BrokenReport, NamesFileAndField) {
    json document = report();
    const json::json_pointer at(GetParam().pointer);
    if (GetParam().value.is_discarded()) {
        document[at.parent_pointer()].erase(at.back());
    } else {
        document[at] = GetParam().value;
    }
    EXPECT_THAT(complaint_of([&] { profile_from_text("r.json", document.dump()); }),
                AllOf(StartsWith("r.json: "), HasSubstr(GetParam().says)));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, BrokenReport,
    testing::Values(
        Broken{"/format", 7, "format: not a text"}, Broken{"/format", "x", "format: neither"},
        Broken{"/format", json(json::value_t::discarded), "format: missing"},
        Broken{"/version", 2, "version: this command reads version 1"},
        Broken{"/version", "1", "version: not a whole number"},
        Broken{"/ranks", -1, "ranks: -1 is outside"},
        Broken{"/buckets", json::array(), "buckets: none was learned"},
        Broken{"/buckets", 3, "buckets: not an array"},
        Broken{"/buckets/0", 3, "buckets[0]: not an object"},
        Broken{"/buckets/1/bytes", 0, "buckets[1].bytes: 0 is outside"},
        Broken{"/buckets/1/bytes", 1.5, "buckets[1].bytes: not a whole number"},
        Broken{"/buckets/1/bytes", 1ULL << 60, "buckets[1].bytes: 1152921504606846976 is outside"},
        Broken{"/buckets/1/ready_ms", json(), "buckets[1].ready_ms: not measured"},
        Broken{"/buckets/1/ready_ms/median", -1e300, "buckets[1].ready_ms.median"},
        Broken{"/buckets/1/ready_ms/p90", 1, "buckets[1].ready_ms: p10, median and"},
        Broken{"/buckets/1/transfer_ms/p10", -1, "buckets[1].transfer_ms.p10"},
        Broken{"/buckets/1/ready_ms/median", "soon", "buckets[1].ready_ms.median: not a number"},
        Broken{"/buckets/1/transfer_ms/p90", 1e300, "buckets[1].transfer_ms.p90"},
        Broken{"/iterations", json(json::value_t::discarded), "iterations: missing"},
        Broken{"/iterations/time_ms/n", -3, "iterations.time_ms.n: -3 is outside"}));

TEST(SavedProfile, SurvivesAndRefusesUnknownNames) {
    const planner::Profile profile = profile_from_model("model:resnet50");
    const json saved = profile_to_json(profile);
    const planner::Profile back = profile_from_text("p.json", saved.dump());
    ASSERT_EQ(back.size(), profile.size());
    for (std::size_t i = 0; i < back.size(); ++i) {
        EXPECT_EQ(back.buckets[i].bytes, profile.buckets[i].bytes);
        EXPECT_NEAR(back.buckets[i].ready, profile.buckets[i].ready, 1e-12);
    }
    json typo = saved;
    typo["buckets"][0]["redy_ms"] = 1;
    EXPECT_EQ(complaint_of([&] { profile_from_text("p.json", typo.dump()); }),
              "p.json: buckets[0].redy_ms: not a known name; did you mean ready_ms?");
    typo = saved;
    typo["buckets"][2]["ready_ms"] = 0;  // before the bucket in front
    EXPECT_THAT(complaint_of([&] { profile_from_text("p.json", typo.dump()); }),
                AllOf(StartsWith("p.json: "), HasSubstr("buckets[2]")));
}

TEST(ModelProfile, EverySettingAndEveryMistake) {
    const auto seconds = [](const char* what) { return profile_from_model(what).compute(); };
    EXPECT_NEAR(seconds("model:vgg19,seconds=0.25"), 0.25, 1e-12);
    EXPECT_NEAR(seconds("model:vgg19,batch=64") * 2, seconds("model:vgg19,batch=128"), 1e-9);
    EXPECT_NEAR(seconds("model:vgg19,tflops=100"), 2 * seconds("model:vgg19,tflops=200"), 1e-9);
    EXPECT_EQ(profile_from_model("model:vgg19,layers").size(), 19U);
    for (const char* wrong : {"model:", "model:vgg", "model:vgg19,", "model:vgg19,batch",
                              "model:vgg19,batch=0", "model:vgg19,batch=nan", "model:vgg19,batch=x",
                              "model:vgg19,seconds=-1", "model:vgg19,colour=3"}) {
        const std::string says = complaint_of([&] { profile_from_model(wrong); });
        if (std::string(wrong) != "model:vgg19,") {
            EXPECT_THAT(says, StartsWith(std::string(wrong) + ": ")) << wrong;
        }
    }
}

TEST(Links, EqualOnesAreNumbered) {
    const planner::Fabric fabric = read_links("2x10GbE,10GbE", 16);
    ASSERT_EQ(fabric.links.size(), 3U);
    EXPECT_EQ(fabric.links[0].name, "10GbE");
    EXPECT_EQ(fabric.links[1].name, "10GbE#2");
    EXPECT_EQ(fabric.links[2].name, "10GbE#3");
    EXPECT_EQ(fabric.links[0].cost, fabric.links[2].cost);
    for (const char* wrong : {"0x10GbE", "65x10GbE", "x10GbE", "2x", "2xnothing"}) {
        EXPECT_THAT(complaint_of([&] { read_links(wrong, 16); }), HasSubstr("2x10GbE")) << wrong;
    }
}

TEST(Links, TomlAndJsonSayTheSame) {
    const std::string toml = R"(
striped = false
[[links]]
name = "eth0"
gbit_per_s = 9.4
latency_us = 20
group = "uplink"
[[links]]
name = "eth1"
points = [[65536, 0.0001], [1048576, 0.001]]
group = "uplink"
[[groups]]
name = "uplink"
gbit_per_s = 12
)";
    json parsed;
    const std::string why = complaint_of([&] { parsed = parse_toml("l.toml", toml); });
    if (why != "accepted") {
        GTEST_SKIP() << why;
    }
    const json same = {
        {"striped", false},
        {"links",
         {{{"name", "eth0"}, {"gbit_per_s", 9.4}, {"latency_us", 20}, {"group", "uplink"}},
          {{"name", "eth1"},
           {"points", {{65536, 0.0001}, {1048576, 0.001}}},
           {"group", "uplink"}}}},
        {"groups", {{{"name", "uplink"}, {"gbit_per_s", 12}}}}};
    const planner::Fabric a = links_from_json("l", parsed, 8);
    EXPECT_EQ(a, links_from_json("l", same, 8));
    EXPECT_DOUBLE_EQ(a.groups[0].rate, 1.5e9);
    EXPECT_DOUBLE_EQ(a.links[0].cost.beta, 2.0 * 7 / 8 / 1.175e9);
    EXPECT_DOUBLE_EQ(a.links[0].cost.alpha, 14 * 20e-6);
}

// What is wrong in a file of links, and what the complaint says.
constexpr std::pair<const char*, const char*> kMistakes[] = {
    {"[]", "not an object"},
    {"{}", "links: missing"},
    {R"({"links":[]})", "links: there is none"},
    {R"({"links":[3]})", "links[0]"},
    {R"({"links":[{"name":"a"}]})", "links[0]: needs exactly one of"},
    {R"({"links":[{"name":"a","preset":"10GbE","gbit_per_s":1}]})", "links[0]: needs exactly"},
    {R"({"links":[{"name":"a","preset":"x"}]})",
     "links[0].preset: 'x' is no preset; known: 10GbE,"},
    {R"({"links":[{"gbit_per_s":1}]})", "links[0].name: missing"},
    {R"({"links":[{"name":"a","gbit_per_s":0}]})", "links[0].gbit_per_s: 0 is outside"},
    {R"({"links":[{"name":"a","gbit_per_s":"9"}]})", "links[0].gbit_per_s: not a number"},
    {R"({"links":[{"name":"a","gbits":9}]})", "links[0].gbits: not a known name"},
    {R"({"links":[{"name":"a","points":[]}]})", "links[0].points: there is none"},
    {R"({"links":[{"name":"a","points":[[1]]}]})", "links[0].points[0]: not a pair"},
    {R"({"links":[{"name":"a","points":[[8,1],[4,1]]}]})", "points[1].bytes: sizes must ascend"},
    {R"({"links":[{"name":"a","gbit_per_s":1,"group":"g"}]})", "group: \"g\" is not among"},
    {R"({"links":[{"name":"a","gbit_per_s":1,"in_flight":0}]})", "in_flight: 0 is outside"},
    {R"({"links":[{"name":"a","gbit_per_s":1},{"name":"a","gbit_per_s":1}]})",
     "links[1].name: \"a\" is taken"},
    {R"({"links":[{"name":"a","gbit_per_s":1,"algorithm":"star"}]})",
     "links[0].algorithm: none of"},
    {R"({"links":[{"name":"a","gbit_per_s":1,"algorithm":"hierarchical"}]})",
     "links[0].ranks_per_node: missing"},
    {R"({"links":[{"name":"a","gbit_per_s":1,"algorithm":"hierarchical","ranks_per_node":3,
         "node_gbit_per_s":9}]})",
     "links[0].ranks_per_node: 8 ranks are no whole number of nodes of 3"},
    {R"({"striped":1,"links":[]})", "striped: neither true nor false"},
    {R"({"links":[{"name":"a","gbit_per_s":1}],"groups":[{"name":"g","gbit_per_s":-1}]})",
     "groups[0].gbit_per_s: -1 is outside"},
    {"{\"links\": [\n,", "line 2"},
};

TEST(Links, MistakesNameFileAndField) {
    const auto says = [](const char* text) {
        return complaint_of([&] { links_from_json("l.json", parse_json("l.json", text), 8); });
    };
    for (const auto& [text, expected] : kMistakes) {
        EXPECT_THAT(says(text), AllOf(StartsWith("l.json: "), HasSubstr(expected))) << text;
    }
    EXPECT_THAT(complaint_of([] { parse_toml("l.toml", "links = [\n"); }), HasSubstr("l.toml"));
    EXPECT_THAT(complaint_of([] { parse_toml("l.toml", "a = " + std::string(100000, '[')); }),
                HasSubstr("l.toml"));
    // What is no error of TOML has its line as well.
    const std::string toml =
        "striped = false\n[[links]]\nname = \"a\"\ngbit_per_s = 1\n"
        "[[links]]\nname = \"b\"\n\ngbit_per_s = ";
    const auto complaint = [&](const std::string& end) {
        return complaint_of([&] { links_from_toml("l.toml", toml + end, 8); });
    };
    if (complaint("2\n") == "accepted") {
        EXPECT_EQ(complaint("-1\n"),
                  "l.toml: line 8: links[1].gbit_per_s: -1 is outside 1e-06..1000000");
        EXPECT_THAT(complaint("nan\n"), StartsWith("l.toml: line 8: links[1].gbit_per_s: "));
        EXPECT_THAT(complaint("1\nspeed = 2\n"),
                    StartsWith("l.toml: line 9: links[1].speed: not a known name; known: name, "));
        EXPECT_THAT(complaint("1\n[[links]]\ngbit_per_s = 1\n"),
                    AllOf(StartsWith("l.toml: line 9: links[2]"), HasSubstr("name: missing")));
        EXPECT_EQ(complaint("1\ngroup = 1979-05-27\n"),
                  "l.toml: line 9: links[1].group: not a text");
    }
    // A string that never ends, an escape that is none: refused, nothing read beyond the text.
    for (const char* text : {R"(a = ")", "a = \'\'\'", R"(a = "\u12")", "a = \"x\ny\"",
                             "a = 1\na = 2", "[[*x]]", "a\xcd\xa7 = 1"}) {
        EXPECT_THAT(complaint_of([&] { parse_toml("l.toml", text); }), StartsWith("l.toml: "));
    }
}

TEST(Links, PresetsByNameAndUnknownOnes) {
    const planner::Fabric fabric = read_links("nvlink-a100,10GbE", 8);
    ASSERT_EQ(fabric.links.size(), 2U);
    for (const planner::Link& link : fabric.links) {
        EXPECT_NE(link.source, "");
    }
    const planner::Fabric mixture = read_links("10gbe+100Gb", 8);
    ASSERT_EQ(mixture.links.size(), 2U);
    EXPECT_EQ(mixture.links[0].name, "10GbE");
    EXPECT_EQ(mixture.links[1].name, "100Gb-IB");
    EXPECT_EQ(read_links("4x100Gb-EFA", 32).links[0], planner::preset_link("4x100Gb-EFA", 32));
    EXPECT_EQ(read_links("2x4x100Gb-EFA", 32).links.size(), 2U);
    EXPECT_EQ(read_links("56gb", 8).links[0], planner::preset_link("56Gb-IB", 8));
    for (const char* unknown : {"", "10GbE,", "10GbE++56Gb", "1GbE", "1", "nvlink", "links.conf"}) {
        EXPECT_THAT(complaint_of([&] { read_links(unknown, 8); }),
                    AllOf(StartsWith("--links: '"), HasSubstr("known: 10GbE, ")))
            << unknown;
    }
    EXPECT_THAT(complaint_of([] { read_links("/no/such.toml", 8); }),
                StartsWith("/no/such.toml: "));
}

TEST(Links, Hierarchical) {
    const json file = {{"links",
                        {{{"name", "a"},
                          {"gbit_per_s", 80},
                          {"latency_us", 5},
                          {"algorithm", "hierarchical"},
                          {"ranks_per_node", 4},
                          {"node_gbit_per_s", 800},
                          {"node_latency_us", 2}}}}};
    const planner::Fabric read = links_from_json("l", file, 16);
    const planner::Link same = planner::hierarchical_link("a", 4, 4, 2e-6, 1e11, 5e-6, 1e10);
    ASSERT_EQ(read.links[0].hops.size(), 3U);
    EXPECT_DOUBLE_EQ(read.links[0].seconds(1e6), same.seconds(1e6));
    EXPECT_DOUBLE_EQ(read.links[0].best_rate(), same.best_rate());
}

TEST(Files, BrokenGzipAndBombs) {
    EXPECT_THAT(complaint_of([] { inflate("x.gz", "\x1f\x8b\x08", 100); }), StartsWith("x.gz: "));
    EXPECT_THAT(complaint_of([] { read_file("/", 1000); }), StartsWith("/: a folder"));
    EXPECT_THAT(complaint_of([] { parse_json("x", std::string(100000, '[')); }), StartsWith("x: "));
    EXPECT_THAT(complaint_of([] { parse_json("x", "1e999"); }), StartsWith("x: "));
    EXPECT_THAT(complaint_of([] {
                    parse_json("x", R"({"a":[],"links":[{"n":{"k":1}},{"gbit_per_s":1e999}]})");
                }),
                AllOf(StartsWith("x: links[1].gbit_per_s: "), HasSubstr("1e999")));
    EXPECT_THAT(complaint_of([] { parse_json("x", R"({"a":1,"b":[0,NaN]})"); }),
                StartsWith("x: b[1]: "));
}

// Where a bar begins, in per cent of a drawing, from its title.
std::vector<double> places(const std::string& svg, const std::string& title) {
    std::vector<double> found;
    const std::regex bar("<rect class=\"[a-z0-9]+\" x=\"([0-9.]+)%\"[^>]*><title>" + title);
    for (std::sregex_iterator at(svg.begin(), svg.end(), bar), end; at != end; ++at) {
        found.push_back(std::stod((*at)[1]));
    }
    return found;
}

// The same second is at the same place in each timeline, however long it is.
TEST(Timelines, ShareOneAxis) {
    Timeline quick;
    quick.title = "quick";
    quick.links = {"eth0"};
    quick.length = 0.05;
    planner::Interval bar;
    bar.kind = planner::Interval::Kind::Backward;
    bar.iteration = 4;
    bar.start = 0.02;
    bar.finish = 0.04;
    quick.bars = {bar};
    Timeline slow = quick;
    slow.title = "slow";
    slow.length = 0.2;
    const std::vector<double> at = places(svg_timeline({quick, slow}), "backward 4 ");
    ASSERT_EQ(at.size(), 2U);
    EXPECT_DOUBLE_EQ(at[0], at[1]);
    EXPECT_NEAR(at[0], 2 + 96 * 0.1, 0.01);
}

TEST(Timelines, SvgAndTraceHoldEveryBar) {
    const planner::Profile profile = profile_from_model("model:resnet50");
    const planner::Fabric fabric = read_links("10GbE,10GbE-gloo", 16);
    const planner::Plan plan = make_plan("deft", profile, fabric);
    Timeline timeline = timeline_of(plan, profile, fabric, {});
    ASSERT_GT(timeline.bars.size(), 4U);
    timeline.title = "a<b>&\"c";
    const std::string svg = svg_timeline({timeline});
    std::size_t titles = 0;
    for (std::size_t at = 0; (at = svg.find("<title>", at)) != std::string::npos; ++at) {
        ++titles;
    }
    EXPECT_EQ(titles, timeline.bars.size() + 1);  // and the drawing's own
    EXPECT_NE(svg.find("a&lt;b&gt;&amp;&quot;c"), std::string::npos);
    for (const char* part : {"width=\"100%\"", "prefers-color-scheme:dark", ">forward<",
                             ">backward<", ">time, ms<", ": 2 iterations of "}) {
        EXPECT_NE(svg.find(part), std::string::npos) << part;
    }
    const json events = chrome_trace({timeline})["traceEvents"];
    std::size_t bars = 0;
    for (const json& event : events) {
        if (event["ph"] == "X") {
            ++bars;
            EXPECT_GE(event["dur"].get<double>(), 0);
            EXPECT_LE(event["ts"].get<double>() + event["dur"].get<double>(),
                      timeline.length * 1e6 * (1 + 1e-9));
        }
    }
    EXPECT_EQ(bars, timeline.bars.size());
    const std::string text = text_timeline(timeline, 60);
    EXPECT_NE(text.find("compute"), std::string::npos);
    EXPECT_NE(text.find("10GbE-gloo"), std::string::npos);
}

}  // namespace
}  // namespace deft::tools
