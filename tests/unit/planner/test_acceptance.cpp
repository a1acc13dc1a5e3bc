// SPDX-License-Identifier: Apache-2.0
// The acceptance tables: closed forms per coverage rate, DeFT's update interval and delay.
#include <gtest/gtest.h>

#include <cmath>

#include "planner/policies/builder.h"
#include "planner/policies/policy.h"
#include "planner/solver/closed_forms.h"
#include "tests/unit/planner/shapes.h"

namespace deft::planner {
namespace {

using testing::Shape;

double rounded(double value) {
    return std::round(value * 100) / 100;
}

struct Row {
    double coverage, overlap, order, dependencies;
};

void expect_table(const Shape& shape, const std::vector<Row>& rows, double slack = 0.0051) {
    const Profile profile = testing::profile_of(shape);
    for (const Row& row : rows) {
        const Fabric fabric = testing::fabric_of(row.coverage, {1});
        const auto costs = bucket_costs(profile, fabric.links[0]);
        const double ddp = make_plan("none", profile, fabric).predicted.iteration;
        Options ideal;
        ideal.partition_bytes = 0;
        ideal.grain = 1;
        const double optimal =
            make_plan("bytescheduler", profile, fabric, ideal).predicted.iteration;
        EXPECT_NEAR(optimal, time_optimal(profile, costs), 1e-9);
        EXPECT_NEAR((1 + row.coverage) / ddp, row.overlap, slack)
            << shape.name << " " << row.coverage;
        EXPECT_NEAR(ddp / optimal, row.order, slack) << shape.name << " " << row.coverage;
        EXPECT_NEAR(ddp / std::max(1.0, row.coverage), row.dependencies, slack)
            << shape.name << " " << row.coverage;
    }
}

TEST(Acceptance, OverlapOrderDependencies) {
    expect_table(testing::vgg16_shape(), {{0.5, 1.50, 1.00, 1.00},
                                          {0.75, 1.62, 1.08, 1.08},
                                          {1, 1.50, 1.33, 1.33},
                                          {1.5, 1.36, 1.22, 1.22},
                                          {2, 1.29, 1.17, 1.17},
                                          {4, 1.15, 1.08, 1.08}});
    expect_table(testing::gpt2_shape(), {{0.5, 1.26, 1.00, 1.19},
                                         {0.75, 1.32, 1.04, 1.33},
                                         {1, 1.27, 1.15, 1.58},
                                         {1.5, 1.20, 1.11, 1.39},
                                         {2, 1.16, 1.09, 1.29},
                                         {4, 1.09, 1.05, 1.14}});
    expect_table(testing::equal_shape(16), {{0.5, 1.45, 1.00, 1.03},
                                            {0.75, 1.56, 1.07, 1.12},
                                            {1, 1.45, 1.29, 1.38},
                                            {1.5, 1.33, 1.20, 1.25},
                                            {2, 1.26, 1.15, 1.19},
                                            {4, 1.14, 1.08, 1.09}});
}

TEST(Acceptance, OptimalAndDdpOverCompute) {
    const double coverage[] = {0.9, 1.1, 1.5, 2, 3};
    const struct {
        Shape shape;
        double optimal[5];
        double ddp[5];
    } tables[] = {
        {testing::vgg16_shape(), {1.00, 1.10, 1.50, 2.00, 3.00}, {1.23, 1.43, 1.83, 2.33, 3.33}},
        {testing::gpt2_shape(), {1.34, 1.47, 1.87, 2.37, 3.37}, {1.48, 1.68, 2.08, 2.58, 3.58}},
        {testing::equal_shape(8), {1.11, 1.23, 1.62, 2.12, 3.12}, {}},
    };
    for (const auto& table : tables) {
        const Profile profile = testing::profile_of(table.shape);
        for (int i = 0; i < 5; ++i) {
            const Fabric fabric = testing::fabric_of(coverage[i], {1});
            const auto costs = bucket_costs(profile, fabric.links[0]);
            EXPECT_NEAR(rounded(time_optimal(profile, costs)), table.optimal[i], 0.0101)
                << table.shape.name << " " << coverage[i];
            if (table.ddp[0] > 0) {
                EXPECT_NEAR(rounded(time_ddp(profile, costs)), table.ddp[i], 0.0101)
                    << table.shape.name << " " << coverage[i];
            }
        }
    }
}

// k = iterations per update and the age of the oldest gradient in it.
struct Interval {
    double coverage;
    std::vector<double> links;
    double k_low, k_high;
    std::uint32_t age_low, age_high;
};

class DeftTable : public ::testing::TestWithParam<Interval> {};

TEST_P(DeftTable, UpdateIntervalAndDelay) {
    const Interval& row = GetParam();
    double k_low = 1e9;
    double k_high = 0;
    std::uint32_t age_low = 1000;
    std::uint32_t age_high = 0;
    for (const Shape& shape :
         {testing::vgg16_shape(), testing::gpt2_shape(), testing::equal_shape(8)}) {
        // The table's first line is for models that divide, its 1.1 lines for the two real models.
        if (row.coverage < 1.2 && std::string(shape.name) == "equal") {
            continue;
        }
        const Profile profile = testing::profile_of(shape);
        const Fabric fabric = testing::fabric_of(row.coverage, row.links);
        Options options;
        options.max_delay = options.max_merge = 1000;
        options.max_period = 1000;
        options.least_piece = 1;
        const Plan plan = make_plan("deft", profile, fabric, options);
        // No bubbles: everything placed fits its window.
        EXPECT_NEAR(plan.predicted.iteration, 1, 1e-6) << shape.name;
        const double k = 1 / plan.predicted.updates;
        k_low = std::min(k_low, k);
        k_high = std::max(k_high, k);
        age_low = std::min(age_low, plan.predicted.max_age);
        age_high = std::max(age_high, plan.predicted.max_age);
    }
    EXPECT_NEAR(k_low, row.k_low, 0.08);
    EXPECT_NEAR(k_high, row.k_high, 0.08);
    EXPECT_EQ(age_low, row.age_low);
    EXPECT_EQ(age_high, row.age_high);
}

INSTANTIATE_TEST_SUITE_P(
    Facts, DeftTable,
    ::testing::Values(Interval{0.9, {1}, 1, 1, 1, 1}, Interval{0.9, {1, 1.65}, 1, 1, 1, 1},
                      Interval{0.9, {1, 4}, 1, 1, 1, 1}, Interval{1.1, {1}, 1.17, 1.17, 3, 3},
                      Interval{1.1, {1, 1.65}, 1, 1, 1, 1}, Interval{1.1, {1, 4}, 1, 1, 1, 1},
                      Interval{1.5, {1}, 1.55, 2.0, 4, 4}, Interval{1.5, {1, 1.65}, 1, 1.15, 1, 3},
                      Interval{1.5, {1, 4}, 1.5, 2, 3, 4}, Interval{2, {1}, 2.0, 2.7, 5, 6},
                      Interval{2, {1, 1.65}, 1.5, 2, 3, 4}, Interval{2, {1, 4}, 2, 2.7, 4, 6},
                      Interval{3, {1}, 3.1, 4.0, 7, 8}, Interval{3, {1, 1.65}, 2, 2.3, 4, 5},
                      Interval{3, {1, 4}, 3, 4, 6, 8}));

// Within caps DeFT merges as many iterations as they allow, and no iteration takes longer for it
// than the traffic left: CR / k.
TEST(DeftWithinCaps, MergesWhatTheyAllow) {
    for (const Shape& shape :
         {testing::vgg16_shape(), testing::gpt2_shape(), testing::equal_shape(8)}) {
        const Profile profile = testing::profile_of(shape);
        for (const std::uint32_t cap : {2U, 3U, 4U}) {
            const double coverage = 1.8 * cap;
            const Fabric fabric = testing::fabric_of(coverage, {1});
            Options options;
            options.max_delay = options.max_merge = cap;
            const Prediction got = make_plan("deft", profile, fabric, options).predicted;
            EXPECT_LE(got.max_delay, cap) << shape.name;
            EXPECT_LE(got.max_merge, cap) << shape.name;
            EXPECT_LE(got.updates, 1.2 / cap) << shape.name << " " << cap;
            EXPECT_LE(got.iteration, 1.12 * coverage / cap) << shape.name << " " << cap;
        }
    }
}

}  // namespace
}  // namespace deft::planner
