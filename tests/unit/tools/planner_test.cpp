// SPDX-License-Identifier: Apache-2.0
// What `deft plan`, `deft sim` and `deft advise` read, and how they complain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "planner/adviser.h"
#include "planner/model/collective.h"
#include "planner/model/presets.h"
#include "planner/policies/policy.h"
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

template <class Call>
std::string complaint_of(Call&& call) {
    try {
        call();
    } catch (const InputError& error) {
        return error.what();
    }
    return "accepted";
}

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

json kernel(double ts, double dur, int floats, int external = 0) {
    return {{"ph", "X"},
            {"cat", "kernel"},
            {"name", "ncclKernel_AllReduce_RING_LL_Sum_float"},
            {"ts", ts},
            {"dur", dur},
            {"args", {{"In msg nelems", floats}, {"dtype", "Float"}, {"External id", external}}}};
}

json trace() {
    json events = json::array();
    for (int step = 0; step < 3; ++step) {
        const double at = 1000 + step * 100000.0;
        events.push_back({{"ph", "X"},
                          {"cat", "user_annotation"},
                          {"ts", at},
                          {"dur", 100000},
                          {"name", "ProfilerStep#" + std::to_string(step)}});
        events.push_back({{"ph", "X"},
                          {"cat", "user_annotation"},
                          {"ts", at + 30000},
                          {"dur", 60000},
                          {"name", "backward"}});
        events.push_back(kernel(at + 50000, 4000, 1000000, 1));
        events.push_back(kernel(at + 80000, 8000 + step, 2000000, 2));
    }
    return {{"traceEvents", events}, {"distributedInfo", {{"world_size", 8}}}};
}

TEST(TraceProfile, SizesReadyTimesAndDurations) {
    const planner::Profile profile = profile_from_text("t.json", trace().dump());
    ASSERT_EQ(profile.size(), 2U);
    EXPECT_EQ(profile.ranks, 8U);
    EXPECT_EQ(profile.buckets[0].bytes, 4000000U);
    EXPECT_EQ(profile.buckets[1].bytes, 8000000U);
    EXPECT_NEAR(profile.buckets[0].ready, 0.020, 1e-9);
    EXPECT_NEAR(profile.buckets[1].ready, 0.050, 1e-9);
    EXPECT_NEAR(profile.buckets[1].transfer.median, 0.008001, 1e-9);
    EXPECT_EQ(profile.buckets[1].transfer.n, 3U);
    EXPECT_NEAR(profile.iteration.median, 0.1, 1e-9);
}

TEST(TraceProfile, MistakesNameTheEvent) {
    const auto says = [](auto&& change) {
        json document = trace();
        change(document["traceEvents"]);
        return complaint_of([&] { profile_from_text("t.json", document.dump()); });
    };
    EXPECT_EQ(says([](json& e) { e[2]["args"]["dtype"] = "Complex"; }),
              "t.json: traceEvents[2].args.dtype: 'Complex' is not a known type");
    EXPECT_THAT(says([](json& e) { e[3]["args"]["In msg nelems"] = -5; }),
                HasSubstr("traceEvents[3].args.In msg nelems: -5 is outside"));
    EXPECT_EQ(says([](json& e) { e[2]["ts"] = "now"; }), "t.json: traceEvents[2].ts: not a number");
    EXPECT_THAT(says([](json& e) { e = json::array(); }), HasSubstr("no NCCL all-reduce kernel"));
    EXPECT_THAT(says([](json& e) { e = 5; }), HasSubstr("traceEvents: not an array"));
}

struct Read {
    planner::Profile profile;
    std::vector<std::string> notes;
};
Read read_trace(const json& document, const std::string& group = "") {
    Read read;
    read.profile = profile_from_text("t.json", document.dump(), {group, &read.notes});
    return read;
}

// The kernels of `document` belong to this group.
void name_group(json& document, const char* name, const char* description, int ranks) {
    for (json& event : document["traceEvents"]) {
        if (event["cat"] == "kernel") {
            event["args"]["Process Group Name"] = name;
            event["args"]["Process Group Description"] = description;
            event["args"]["Group size"] = ranks;
        }
    }
}

// A second group that sums two activations in each forward and one in backward.
void add_tensor_parallel(json& document, const char* description) {
    for (int step = 0; step < 3; ++step) {
        const double at = 1000 + step * 100000.0;
        document["traceEvents"].push_back({{"ph", "X"},
                                           {"cat", "user_annotation"},
                                           {"ts", at},
                                           {"dur", 29000},
                                           {"name", "DistributedDataParallel.forward"}});
        for (const double when : {5000.0, 15000.0, 40000.0}) {
            json sum = kernel(at + when, 1000, 500000);
            sum["args"]["Process Group Name"] = "7";
            sum["args"]["Process Group Description"] = description;
            sum["args"]["Group size"] = 4;
            document["traceEvents"].push_back(sum);
        }
    }
}

TEST(TraceProfile, OnlyTheDataParallelGroupSumsGradients) {
    const planner::Profile alone = read_trace(trace()).profile;
    for (const auto& [ours, theirs] : {std::pair{"default_pg", "TENSOR_MODEL_PARALLEL_GROUP"},
                                       {"DATA_PARALLEL_GROUP", "undefined"},
                                       {"DATA_PARALLEL_GROUP_WITH_CP", "MODEL_PARALLEL_GROUP"},
                                       {"mesh_dp", "mesh_tp"},
                                       // Nothing is said: gradients are not summed in forward.
                                       {"undefined", "undefined"}}) {
        json document = trace();
        name_group(document, "2", ours, 8);
        add_tensor_parallel(document, theirs);
        const Read read = read_trace(document);
        EXPECT_EQ(read.profile.buckets, alone.buckets) << ours << " and " << theirs;
        EXPECT_EQ(read.profile.ranks, 8U);
        ASSERT_EQ(read.notes.size(), 1U);
        EXPECT_THAT(read.notes[0], HasSubstr("t.json: process group 7 \"" + std::string(theirs)));
        EXPECT_THAT(read.notes[0], HasSubstr("--group"));
        // The user knows better.
        for (const std::string& wanted : {std::string("7"), std::string(theirs)}) {
            if (wanted != ours) {
                EXPECT_EQ(read_trace(document, wanted).profile.buckets[0].bytes, 2000000U);
            }
        }
    }
}

TEST(TraceProfile, GroupsThatNothingTellsApartAreAskedFor) {
    json document = trace();
    name_group(document, "2", "default_pg", 8);
    for (int step = 0; step < 3; ++step) {
        json sum = kernel(60000 + step * 100000.0, 1000, 500000);
        sum["args"]["Process Group Name"] = "5";
        document["traceEvents"].push_back(sum);
    }
    const std::string says = complaint_of([&] { read_trace(document); });
    EXPECT_THAT(says, HasSubstr("name one with --group"));
    EXPECT_THAT(says, HasSubstr("2 \"default_pg\" (6 sums, 34.3 MiB, 8 ranks)"));
    EXPECT_THAT(says, HasSubstr("5 (3 sums"));
    EXPECT_EQ(read_trace(document, "2").profile.buckets, read_trace(trace()).profile.buckets);
    EXPECT_THAT(complaint_of([&] { read_trace(document, "9"); }),
                HasSubstr("no process group '9'"));
}

// The kernels of group `from` sum by reduce-scatter.
void scatter(json& document, const char* from) {
    for (json& event : document["traceEvents"]) {
        if (event["cat"] == "kernel" && event["args"].value("Process Group Name", "") == from) {
            event["name"] = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL";
        }
    }
}

TEST(TraceProfile, ASoleGroupOfActivationsIsAskedFor) {
    for (const char* description :
         {"TENSOR_MODEL_PARALLEL_GROUP", "mesh_tp", "PIPELINE_MODEL_PARALLEL_GROUP", "mesh_cp"}) {
        json document = trace();
        name_group(document, "5", description, 8);
        const std::string says = complaint_of([&] { read_trace(document); });
        EXPECT_THAT(says, HasSubstr("--group"));
        EXPECT_THAT(says, HasSubstr("5 \"" + std::string(description)));
        // The user knows better.
        EXPECT_EQ(read_trace(document, "5").profile.buckets, read_trace(trace()).profile.buckets);
    }
    for (const char* description : {"default_pg", "undefined", "", "mesh_dp", "my group"}) {
        json document = trace();
        name_group(document, "0", description, 8);
        EXPECT_EQ(read_trace(document).profile.buckets, read_trace(trace()).profile.buckets);
    }
}

// FSDP or a distributed optimizer next to tensor parallelism: the all-reduces are activations.
TEST(TraceProfile, AShardedJobWithTensorParallelismIsSeen) {
    for (const auto& [ours, theirs] :
         {std::pair{"default_pg", "TENSOR_MODEL_PARALLEL_GROUP"},
          {"DATA_PARALLEL_GROUP_WITH_CP", "TENSOR_MODEL_PARALLEL_GROUP"},
          {"mesh_dp_shard", "mesh_tp"}}) {
        json document = trace();
        name_group(document, "2", ours, 8);
        add_tensor_parallel(document, theirs);
        scatter(document, "2");
        EXPECT_THAT(complaint_of([&] { read_trace(document); }), HasSubstr("FSDP")) << ours;
        // Nor do a few sums of metrics on its group make it another job.
        json metrics = kernel(95000, 100, 1000);
        metrics["args"]["Process Group Name"] = "2";
        metrics["args"]["Process Group Description"] = ours;
        document["traceEvents"].push_back(metrics);
        EXPECT_THAT(complaint_of([&] { read_trace(document); }), HasSubstr("FSDP")) << ours;
        EXPECT_THAT(complaint_of([&] { read_trace(document, "2"); }), HasSubstr("FSDP")) << ours;
        // The activations' kernels may not tell their sizes.
        std::erase_if(document["traceEvents"].get_ref<json::array_t&>(),
                      [](const json& event) { return event["ts"] == 95000.0; });
        for (json& event : document["traceEvents"]) {
            if (event["cat"] == "kernel" && event["args"]["Process Group Name"] == "7") {
                event["args"].erase("In msg nelems");
            }
        }
        EXPECT_THAT(complaint_of([&] { read_trace(document); }), HasSubstr("FSDP")) << ours;
    }
}

// Sharded in groups of hosts, the shards are summed across them: of the gradients that is the
// smaller part.
TEST(TraceProfile, AHybridShardedJobIsSeen) {
    json document = trace();
    name_group(document, "2", "mesh_dp_shard", 8);
    scatter(document, "2");
    for (int step = 0; step < 3; ++step) {
        json sum = kernel(60000 + step * 100000.0, 1000, 300000);
        sum["args"]["Process Group Name"] = "3";
        sum["args"]["Process Group Description"] = "mesh_dp_replicate";
        document["traceEvents"].push_back(sum);
    }
    EXPECT_THAT(complaint_of([&] { read_trace(document); }), HasSubstr("FSDP"));
    EXPECT_EQ(read_trace(document, "3").profile.buckets.size(), 1U);
}

// Sequence parallelism sums activations by reduce-scatter, the gradients are summed by DDP.
TEST(TraceProfile, ReduceScattersOfActivationsAreNoShardedJob) {
    for (const auto& [ours, theirs] : {std::pair{"default_pg", "TENSOR_MODEL_PARALLEL_GROUP"},
                                       {"DATA_PARALLEL_GROUP", "undefined"},
                                       {"undefined", "undefined"}}) {
        json document = trace();
        name_group(document, "2", ours, 8);
        for (int more = 0; more < 3; ++more) {  // more bytes than the gradients have
            add_tensor_parallel(document, theirs);
        }
        scatter(document, "7");
        EXPECT_EQ(read_trace(document).profile.buckets, read_trace(trace()).profile.buckets)
            << ours << " and " << theirs;
    }
}

// What a kernel of another group does not tell is no matter.
TEST(TraceProfile, UnsizedKernelsOfOtherGroupsLeaveNoStepOut) {
    for (const auto& [ours, theirs] : {std::pair{"default_pg", "TENSOR_MODEL_PARALLEL_GROUP"},
                                       {"DATA_PARALLEL_GROUP", "undefined"},
                                       {"default_pg", "undefined"},
                                       {"default_pg", ""}}) {
        for (const bool all : {true, false}) {
            json document = trace();
            name_group(document, "2", ours, 8);
            add_tensor_parallel(document, theirs);
            int at = 0;
            for (json& event : document["traceEvents"]) {
                if (event["cat"] == "kernel" && event["args"]["Process Group Name"] == "7" &&
                    (all || at++ % 2 == 0)) {
                    event["args"].erase("In msg nelems");
                }
            }
            const Read read = read_trace(document, all ? "" : "2");
            EXPECT_EQ(read.profile.buckets, read_trace(trace()).profile.buckets) << theirs;
            for (const std::string& note : read.notes) {
                EXPECT_THAT(note, Not(HasSubstr("steps left out"))) << theirs;
            }
            json bare = document;
            std::erase_if(bare["traceEvents"].get_ref<json::array_t&>(),
                          [](const json& event) { return event["cat"] != "kernel"; });
            EXPECT_EQ(read_trace(bare, "2").profile.size(), 2U) << theirs;
        }
    }
}

// Where it may be the gradients' kernels that say nothing, the others are not taken for them.
TEST(TraceProfile, UnsizedKernelsThatMayBeGradientsCount) {
    for (const auto& [unsized, sized] : {std::pair{"DATA_PARALLEL_GROUP", "default_pg"},
                                         {"DATA_PARALLEL_GROUP", "undefined"},
                                         {"default_pg", "undefined"}}) {
        json document = trace();
        name_group(document, "2", unsized, 8);
        for (json& event : document["traceEvents"]) {
            if (event["cat"] == "kernel") {
                event["args"].erase("In msg nelems");
            }
        }
        add_tensor_parallel(document, sized);
        EXPECT_THAT(complaint_of([&] { read_trace(document); }), HasSubstr("no step has sums"))
            << unsized << " and " << sized;
    }
}

// Each second step accumulates: two steps are one iteration.
TEST(TraceProfile, StepsWithoutSumsBelongToTheNext) {
    json document = {{"traceEvents", json::array()}};
    for (int step = 0; step < 7; ++step) {
        const double at = 1000 + step * 100000.0;
        for (const auto& [name, from, length] :
             {std::tuple{"ProfilerStep#" + std::to_string(step), 0.0, 100000.0},
              {std::string("backward"), 30000.0, 60000.0}}) {
            document["traceEvents"].push_back({{"ph", "X"},
                                               {"cat", "user_annotation"},
                                               {"ts", at + from},
                                               {"dur", length},
                                               {"name", name}});
        }
        // The trace begins in the middle of an accumulation.
        if (step % 2 == 0) {
            document["traceEvents"].push_back(kernel(at + 50000, 4000, 1000000, 1));
            document["traceEvents"].push_back(kernel(at + 80000, 8000, 2000000, 2));
        }
    }
    const planner::Profile profile = read_trace(document).profile;
    ASSERT_EQ(profile.size(), 2U);
    EXPECT_EQ(profile.iteration.n, 3U);
    EXPECT_NEAR(profile.iteration.median, 0.2, 1e-9);
    EXPECT_NEAR(profile.backward, 0.050, 1e-9);
    EXPECT_NEAR(profile.buckets[0].ready, 0.020, 1e-9);
}

TEST(TraceProfile, AStepWithAKernelThatSaysNothingIsLeftOut) {
    for (const char* missing : {"In msg nelems", "dtype", ""}) {
        json document = trace();
        json& kernel = document["traceEvents"][6];
        if (*missing == '\0') {
            kernel.erase("args");
        } else {
            kernel["args"].erase(missing);
        }
        const Read read = read_trace(document);
        EXPECT_EQ(read.profile.buckets[0].transfer.n, 2U) << missing;
        ASSERT_EQ(read.notes.size(), 1U) << missing;
        EXPECT_THAT(read.notes[0], HasSubstr("1 of 3 steps left out"));
        // Without steps nothing tells what belongs together.
        json bare = document;
        std::erase_if(bare["traceEvents"].get_ref<json::array_t&>(),
                      [](const json& event) { return event["cat"] != "kernel"; });
        EXPECT_THAT(complaint_of([&] { read_trace(bare); }), HasSubstr("profiler.step()"));
    }
}

TEST(TraceProfile, OldTracesAndShardedJobsHearWhatToDo) {
    json document = trace();
    for (json& event : document["traceEvents"]) {
        event.erase("args");
    }
    EXPECT_THAT(complaint_of([&] { read_trace(document); }), HasSubstr("--mode observe"));
    for (json& event : document["traceEvents"]) {
        if (event["cat"] == "kernel") {
            event["name"] = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL";
        }
    }
    EXPECT_THAT(complaint_of([&] { read_trace(document); }), HasSubstr("FSDP"));
}

// facts/anchors: 15 all-reduces of ResNet-50's 25,557,032 floats in 3 steps.
TEST(TraceProfile, TheRealTraceIsReadExactly) {
    const auto file = std::filesystem::path(DEFT_SOURCE_ROOT) / ".." / "shared" / "data" /
                      "traces" / "resnet50-ddp-2xA100.json.gz";
    if (!std::filesystem::exists(file)) {
        GTEST_SKIP() << file << " is not here (HolisticTraceAnalysis, not part of the sources)";
    }
    const planner::Profile profile = read_profile(file.string());
    const std::uint64_t floats[] = {2049000, 7875584, 6563840, 6637568, 2431040};
    // Medians over the steps of the kernels' durations, read off the file by other means.
    const double microseconds[] = {3306.963, 2673.916, 2621.533, 2417.184, 2028.293};
    ASSERT_EQ(profile.size(), std::size(floats));
    for (std::size_t i = 0; i < profile.size(); ++i) {
        EXPECT_EQ(profile.buckets[i].bytes, floats[i] * 4) << i;
        EXPECT_EQ(profile.buckets[i].transfer.n, 3U) << i;
        EXPECT_NEAR(profile.buckets[i].transfer.median, microseconds[i] * 1e-6, 1e-12) << i;
        EXPECT_EQ(profile.buckets[i].ready_spread.n, 3U) << i;
    }
    EXPECT_EQ(profile.bytes(), 25557032U * 4);
    EXPECT_EQ(profile.iteration.n, 3U);
    // No kernel waited for the one in front: buckets were ready when theirs started.
    EXPECT_NEAR(profile.buckets[4].ready_spread.p10 - profile.buckets[0].ready_spread.p10, 0.0807,
                2e-3);
    planner::Fabric fabric;
    fabric.links.push_back(planner::link_from_transfers(profile));
    const planner::Advice advice = planner::advise(profile, fabric, {});
    EXPECT_TRUE(advice.nothing_to_gain) << advice.verdict;
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
    EXPECT_EQ(titles, timeline.bars.size());
    EXPECT_NE(svg.find("a&lt;b&gt;&amp;&quot;c"), std::string::npos);
    for (const char* part :
         {"viewBox=\"0 0 1200 ", ">forward<", ">backward<", ">time, ms<", " iterations)<"}) {
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
