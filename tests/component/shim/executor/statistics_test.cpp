// SPDX-License-Identifier: Apache-2.0
// Norms and non-finite values that the executor measures on the lanes.
#include <chrono>
#include <cmath>
#include <limits>

#include "tests/component/shim/executor/job.h"

namespace deft::executor::test {
namespace {

using namespace std::chrono_literals;

bool taken_by(Executor& executor, Statistics& statistics) {
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (!executor.take(statistics)) {
        if (std::chrono::steady_clock::now() >= until) {
            return false;
        }
        std::this_thread::sleep_for(1ms);
    }
    return true;
}

class Measured : public ::testing::TestWithParam<ncclDataType_t> {};

TEST_P(Measured, NormsBeforeAndAfterTheReduction) {
    // The second bucket is longer than the window that is looked at between complete measurements.
    const auto shapes = shapes_of({5003, 600001}, GetParam());
    const Plan plan = uniform_plan(bytes_of(shapes), 2, 1, {{1, 1}});
    CompileOptions options;
    options.lanes = 2;
    std::string problem;
    const Script script = compile(plan, shapes, options, problem);
    ASSERT_EQ(problem, "");
    const Ids ids(2);
    softdev::test::run_ranks(2, [&](Rank& self) {
        Lanes lanes(self, ids);
        ExecutorOptions execution;
        execution.statistics = true;
        execution.complete_every = 4;
        std::string why;
        auto executor = Executor::create(*cuda::Execution::get(), soft_nccl(), self.rank,
                                         lanes.pointers, script, execution, why);
        ASSERT_NE(executor, nullptr) << why;
        std::uint64_t complete = 0;
        for (std::int64_t t = 0; t < 10; ++t) {
            for (std::uint32_t b = 0; b < shapes.size(); ++b) {
                Device<std::byte> buffer(local_gradient(shapes[b], self.rank, t, b));
                ASSERT_EQ(hooked_all_reduce(*executor, self, self.stream, buffer.get(),
                                            buffer.get(), shapes[b]),
                          ncclSuccess);
                self.sync();
            }
            if (t % 2 == 0) {
                continue;  // nothing is sent in these
            }
            Statistics statistics;
            ASSERT_TRUE(taken_by(*executor, statistics)) << t;
            EXPECT_EQ(statistics.iteration, static_cast<std::uint64_t>(t));
            EXPECT_EQ(statistics.complete, t % 4 == 1) << t;
            EXPECT_EQ(statistics.merged, 2);
            EXPECT_EQ(statistics.not_finite, 0U);
            complete += statistics.complete ? 1 : 0;
        }
        // Odd iterations send: of every four the first of them is complete.
        EXPECT_EQ(complete, 3U);
    });
    EXPECT_EQ(softdevReports(), 0U);
}

// Every second iteration is measured completely, and sums of the same iteration's gradients.
void expect_measured(const Plan& plan, const std::vector<Shape>& shapes, ncclDataType_t type) {
    CompileOptions options;
    options.lanes = 2;
    std::string problem;
    const Script script = compile(plan, shapes, options, problem);
    ASSERT_EQ(problem, "");
    const Ids ids(2);
    const std::size_t size = softdev::test::size_of(type);
    softdev::test::run_ranks(2, [&](Rank& self) {
        Lanes lanes(self, ids);
        ExecutorOptions execution;
        execution.statistics = true;
        execution.complete_every = 2;
        std::string why;
        auto executor = Executor::create(*cuda::Execution::get(), soft_nccl(), self.rank,
                                         lanes.pointers, script, execution, why);
        ASSERT_NE(executor, nullptr) << why;
        for (std::int64_t t = 0; t < 6; ++t) {
            double local = 0;
            double reduced_square = 0;
            for (std::uint32_t b = 0; b < shapes.size(); ++b) {
                auto values = local_gradient(shapes[b], self.rank, t, b);
                if (t == 4 && self.rank == 1 && b == 1) {
                    softdev::test::put(type, values.data() + 77 * size,
                                       std::numeric_limits<double>::quiet_NaN());
                    softdev::test::put(type, values.data() + 400000 * size,
                                       std::numeric_limits<double>::infinity());
                }
                for (std::uint64_t i = 0; i < shapes[b].count; ++i) {
                    const double mine = gradient(self.rank, t, b, i);
                    const double sum = reduced(2, t, b, i, ncclSum);
                    const bool bad = t == 4 && b == 1 && (i == 77 || i == 400000);
                    local += bad && self.rank == 1 ? 0 : mine * mine;
                    reduced_square += bad ? 0 : sum * sum;
                }
                Device<std::byte> buffer(values);
                ASSERT_EQ(hooked_all_reduce(*executor, self, self.stream, buffer.get(),
                                            buffer.get(), shapes[b]),
                          ncclSuccess);
                self.sync();
            }
            Statistics statistics;
            ASSERT_TRUE(taken_by(*executor, statistics)) << t;
            EXPECT_EQ(statistics.iteration, static_cast<std::uint64_t>(t));
            EXPECT_EQ(statistics.complete, t % 2 == 0);
            EXPECT_EQ(statistics.not_finite, t == 4 ? 2U : 0U);
            if (statistics.complete) {
                EXPECT_EQ(statistics.bytes, shapes[0].bytes() + shapes[1].bytes());
                EXPECT_DOUBLE_EQ(statistics.local_square, local);
                EXPECT_DOUBLE_EQ(statistics.reduced_square, reduced_square);
            } else {
                EXPECT_EQ(statistics.local_square, 0);
                EXPECT_LE(statistics.bytes, shapes[0].bytes() + shapes[1].bytes());
            }
        }
    });
    EXPECT_EQ(softdevReports(), 0U);
}

TEST_P(Measured, CompletelyAndByWindow) {
    const auto shapes = shapes_of({5003, 600001}, GetParam());
    expect_measured(uniform_plan(bytes_of(shapes), 1, 1, {{0.5, 0}, {1, 1}}), shapes, GetParam());
}

// The norm is one gradient's, though an update gets what is fresh of it and what is late of the
// one before.
TEST_P(Measured, AGradientOfMixedAges) {
    const auto shapes = shapes_of({5003, 600001}, GetParam());
    Plan plan = uniform_plan(bytes_of(shapes), 1, 0);
    ASSERT_EQ(plan.deliveries.at(1).bucket, 1U);
    plan.deliveries[1].generation.first = -1;
    expect_measured(plan, shapes, GetParam());
}

// Each bucket in its turn: measurements are compared with each other, so they are of one bucket.
TEST(Complete, AreTheSameIterationsOfAPeriod) {
    const auto shapes = shapes_of({5003, 6001});
    Plan plan = uniform_plan(bytes_of(shapes), 3, 0);
    plan.transfers[1].iteration = plan.deliveries[1].iteration = 0;
    plan.transfers[1].generation = plan.deliveries[1].generation = {-2, 3};
    CompileOptions options;
    options.max_merge = 3;
    std::string problem;
    const Script script = compile(plan, shapes, options, problem);
    ASSERT_EQ(problem, "");
    ASSERT_EQ(script.period % 3, 0U);
    const Ids ids(1);
    softdev::test::run_ranks(2, [&](Rank& self) {
        Lanes lanes(self, ids);
        ExecutorOptions execution;
        execution.statistics = true;
        execution.complete_every = 2;
        std::string why;
        auto executor = Executor::create(*cuda::Execution::get(), soft_nccl(), self.rank,
                                         lanes.pointers, script, execution, why);
        ASSERT_NE(executor, nullptr) << why;
        std::vector<std::uint64_t> complete;
        for (std::int64_t t = 0; t < 24; ++t) {
            for (std::uint32_t b = 0; b < shapes.size(); ++b) {
                Device<std::byte> buffer(local_gradient(shapes[b], self.rank, t, b));
                ASSERT_EQ(hooked_all_reduce(*executor, self, self.stream, buffer.get(),
                                            buffer.get(), shapes[b]),
                          ncclSuccess);
                self.sync();
            }
            Statistics statistics;
            while (executor->take(statistics)) {
                if (statistics.complete) {
                    complete.push_back(statistics.iteration);
                }
            }
        }
        ASSERT_GE(complete.size(), 4U);
        for (const std::uint64_t iteration : complete) {
            EXPECT_EQ(iteration % 3, complete.front() % 3) << iteration;
        }
    });
    EXPECT_EQ(softdevReports(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Types, Measured,
                         ::testing::Values(ncclFloat32, ncclFloat64, ncclBfloat16));

}  // namespace
}  // namespace deft::executor::test
