// SPDX-License-Identifier: Apache-2.0
// Plans executed by ranks of the software device, against what the plan says must be delivered.
#include "tests/component/shim/executor/job.h"

namespace deft::executor::test {
namespace {

struct Scenario {
    const char* name;
    std::uint32_t merge;
    std::uint32_t delay;
    std::vector<Part> parts;
    ncclDataType_t type = ncclFloat32;
    ncclRedOp_t op = ncclSum;
    bool in_place = true;
    int nranks = 2;

    friend void PrintTo(const Scenario& s, std::ostream* out) { *out << s.name; }
};

const std::vector<std::uint64_t> kCounts{5003, 40001, 129};

class Delivered : public ::testing::TestWithParam<Scenario> {};

TEST_P(Delivered, WhatThePlanSaysOnAllRanks) {
    const Scenario& scenario = GetParam();
    auto shapes = shapes_of(kCounts, scenario.type, scenario.op);
    for (Shape& shape : shapes) {
        shape.in_place = scenario.in_place;
    }
    const Plan plan =
        uniform_plan(bytes_of(shapes), scenario.merge, scenario.delay, scenario.parts);
    CompileOptions options;
    options.lanes = 2;
    options.forward_lane = kNoLane;
    options.delay_half = true;
    std::string problem;
    const Script script = compile(plan, shapes, options, problem);
    ASSERT_EQ(problem, "");
    const Ids ids(2);
    std::vector<std::uint64_t> launched(static_cast<std::size_t>(scenario.nranks));
    softdev::test::run_ranks(scenario.nranks, [&](Rank& self) {
        ASSERT_NE(cuda::Execution::get(), nullptr);
        Lanes lanes(self, ids);
        std::string why;
        auto executor = Executor::create(*cuda::Execution::get(), soft_nccl(), self.rank,
                                         lanes.pointers, script, {}, why);
        ASSERT_NE(executor, nullptr) << why;
        for (std::int64_t t = 0; t < 9; ++t) {
            for (std::uint32_t b = 0; b < shapes.size(); ++b) {
                Device<std::byte> send(local_gradient(shapes[b], self.rank, t, b));
                Device<std::byte> other(shapes[b].bytes());
                std::byte* const receive = scenario.in_place ? send.get() : other.get();
                ASSERT_EQ(
                    hooked_all_reduce(*executor, self, self.stream, send.get(), receive, shapes[b]),
                    ncclSuccess);
                self.sync();
                expect_delivered(
                    scenario.in_place ? send.host() : other.host(), shapes[b],
                    [&](std::uint64_t i) {
                        return expected(plan, shapes[b], self.nranks, t, b, i);
                    },
                    "rank " + std::to_string(self.rank) + " iteration " + std::to_string(t) +
                        " bucket " + std::to_string(b));
            }
        }
        const ExecutorStats stats = executor->stats();
        EXPECT_EQ(stats.executed, 9U * shapes.size());
        EXPECT_EQ(stats.iterations, 9U);
        EXPECT_FALSE(executor->broken());
        launched[static_cast<std::size_t>(self.rank)] = stats.launched;
    });
    EXPECT_GT(launched[0], 0U);
    EXPECT_EQ(launched[0], launched[1]);
    EXPECT_EQ(softdevReports(), 0U);
}

const std::vector<Part> kSplit{{0.6, 0}, {0.4, 1}};
const std::vector<Part> kWhole{{1, 1}};

INSTANTIATE_TEST_SUITE_P(
    Plans, Delivered,
    ::testing::Values(Scenario{"exact split over two lanes", 1, 0, kSplit},
                      Scenario{"exact split, out of place, 4 ranks", 1, 0, kSplit, ncclFloat32,
                               ncclSum, false, 4},
                      Scenario{"exact split of integers", 1, 0, kSplit, ncclInt32},
                      Scenario{"delay 1", 1, 1, kWhole}, Scenario{"delay 1, split", 1, 1, kSplit},
                      Scenario{"delay 1, average, out of place", 1, 1, kSplit, ncclFloat32, ncclAvg,
                               false},
                      Scenario{"delay 1, double", 1, 1, kSplit, ncclFloat64},
                      Scenario{"merge 2", 2, 0, kSplit},
                      Scenario{"merge 2, out of place", 2, 0, kWhole, ncclFloat32, ncclSum, false},
                      Scenario{"merge 2, bf16", 2, 0, kSplit, ncclBfloat16},
                      Scenario{"merge 2, f16", 2, 0, kSplit, ncclFloat16},
                      Scenario{"merge 2, double", 2, 0, kSplit, ncclFloat64},
                      Scenario{"merge 2, one late", 2, 1, kSplit},
                      Scenario{"merge 2, one late, bf16, out of place", 2, 1, kSplit, ncclBfloat16,
                               ncclSum, false}),
    [](const auto& info) {
        std::string name;
        for (const char* c = info.param.name; *c != 0; ++c) {
            name += std::isalnum(static_cast<unsigned char>(*c)) ? *c : '_';
        }
        return name;
    });

}  // namespace
}  // namespace deft::executor::test
