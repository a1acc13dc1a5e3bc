// SPDX-License-Identifier: Apache-2.0
#include "planner/model/model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "planner/model/plan.h"
#include "planner/model/plan_json.h"

namespace deft::planner {
namespace {

struct Known {
    const char* name;
    std::uint64_t parameters;
    std::size_t tensors;
    double mebibytes;
    std::size_t buckets;
    std::vector<double> first, last;  // MiB
};

class Models : public ::testing::TestWithParam<Known> {};

TEST_P(Models, ParametersTensorsAndDdpBuckets) {
    const Known& known = GetParam();
    const Model model = make_model(known.name);
    EXPECT_EQ(model.parameters(), known.parameters);
    EXPECT_EQ(model.tensors(), known.tensors);
    const Profile profile = model_profile(model);
    EXPECT_EQ(profile.problem(), "");
    EXPECT_NEAR(static_cast<double>(profile.bytes()) / 0x1p20, known.mebibytes, 0.06);
    ASSERT_EQ(profile.size(), known.buckets);
    for (std::size_t i = 0; i < known.first.size(); ++i) {
        EXPECT_NEAR(static_cast<double>(profile.buckets[i].bytes) / 0x1p20, known.first[i], 0.006)
            << i;
    }
    for (std::size_t i = 0; i < known.last.size(); ++i) {
        const Bucket& bucket = profile.buckets[profile.size() - known.last.size() + i];
        EXPECT_NEAR(static_cast<double>(bucket.bytes) / 0x1p20, known.last[i], 0.06) << i;
    }
    EXPECT_DOUBLE_EQ(profile.buckets.back().ready, profile.backward);
    double owned = 0;
    for (const Bucket& bucket : profile.buckets) {
        owned += bucket.forward;
    }
    EXPECT_LE(owned, profile.forward * (1 + 1e-12));
}

INSTANTIATE_TEST_SUITE_P(
    Published, Models,
    ::testing::Values(
        Known{"vgg16", 138357544, 32, 527.8, 6, {15.63, 64.02, 392.02, 27.01, 27.01, 2.12}, {}},
        Known{"vgg19", 143667240, 38, 548.0, 6, {15.63, 64.02, 392.02, 27.01, 27.01, 22.38}, {}},
        Known{"resnet50", 25557032, 161, 97.5, 5, {7.82, 30.04, 25.04, 25.32, 9.27}, {}},
        Known{"resnet101",
              44549160,
              314,
              169.9,
              8,
              {7.82, 30.04, 25.04, 26.57, 25.57, 25.57, 25.14, 4.19},
              {}},
        Known{"bert-base", 109482240, 199, 417.6, 14, {2.25, 27.04, 27.04}, {90.93}},
        Known{"bert-large", 335141888, 391, 1278.5, 38, {4.00, 32.03}, {125.25}},
        Known{"gpt2", 124439808, 148, 474.7, 13, {9.01, 27.04}, {168.27}},
        Known{"gpt2-medium", 354823168, 292, 1353.5, 37, {16.01}, {216.35}},
        Known{"gpt2-large", 774030080, 436, 2952.7, 109, {}, {250.4}},
        Known{"gpt2-xl", 1557611200, 580, 5941.8, 145, {}, {313.0}},
        Known{"tinyllama-1.1b", 1100048384, 201, 4196.4, 90, {250, 44.02, 44, 44, 36}, {250}},
        Known{"llama-3.2-1b", 1235814400, 146, 4714.3, 65, {64.02, 64, 64, 40}, {1002}},
        Known{"llama-2-7b",
              6738415616,
              291,
              12852.5,
              226,
              {250, 86.02, 86, 86, 32, 32, 32, 32},
              {250}}),
    [](const auto& info) {
        std::string name = info.param.name;
        for (char& c : name) {
            c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
        }
        return name;
    });

TEST(Models, ThirteenOfThem) {
    EXPECT_EQ(model_names().size(), 13U);
}

TEST(Models, MeasuredComputeReplacesTheFormula) {
    ModelRun run;
    run.seconds = 0.25;
    const Profile profile = model_profile(make_model("resnet50"), run);
    EXPECT_NEAR(profile.compute(), 0.25, 1e-12);
    EXPECT_NEAR(profile.backward / profile.forward, 2, 0.05);
}

TEST(Models, EveryTensorAlone) {
    ModelRun run;
    run.first_bucket = run.bucket = 1;
    EXPECT_EQ(model_profile(make_model("resnet50"), run).size(), 161U);
}

TEST(Models, UnknownNameIsAnError) {
    EXPECT_THROW(make_model("resnet9000"), std::invalid_argument);
}

Plan small_plan() {
    Plan plan;
    plan.policy = "de\"ft";
    plan.period = 2;
    plan.bucket_bytes = {1000};
    plan.links = {"eth0"};
    Transfer transfer;
    transfer.generation = {-1, 2};
    transfer.end = 1000;
    transfer.iteration = 1;
    transfer.order = 3;
    transfer.message = 4;
    transfer.finish = 0.1;
    plan.transfers = {transfer};
    plan.deliveries = {{1, 0, 0, 1000, {-1, 2}}};
    plan.predicted.cycles = {0, 1.5};
    return plan;
}

// Ranks of two builds of one release compare both.
TEST(Plan, ItsTextAndFingerprintStay) {
    EXPECT_EQ(
        plan_to_json(small_plan()),
        R"({"format":"deft-plan","version":1,"policy":"de\"ft","origin":"","period":2,"barrier":"update",)"
        R"("bucket_bytes":[1000],"links":["eth0"],"transfers":[{"bucket":0,"first":-1,"count":2,)"
        R"("begin":0,"end":1000,"link":0,"operation":"all-reduce","iteration":1,"stage":"backward",)"
        R"("order":3,"message":4,"start_s":0,"finish_s":0.1}],"deliveries":[{"iteration":1,)"
        R"("bucket":0,"begin":0,"end":1000,"first":-1,"count":2}],"predicted":{"iteration_s":0,)"
        R"("updates_per_iteration":1,"max_delay":0,"max_age":0,"max_merge":1,"mean_age":0,"late":0,"progress":1,)"
        R"("bound_s":0,"gap":0,"exposed_s":0,"baseline_s":0,"cycles_s":[0,1.5],"verdict":"use"}})");
    EXPECT_EQ(small_plan().fingerprint(), 0x3d84051c03fcff93U);
}

}  // namespace
}  // namespace deft::planner
