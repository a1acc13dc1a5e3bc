// SPDX-License-Identifier: Apache-2.0
// How alike successive sums are, measured on the lanes of real executors.
#include "shim/executor/correlation.h"

#include <chrono>
#include <cmath>
#include <tuple>

#include "tests/component/shim/executor/job.h"

namespace deft::executor::test {
namespace {

using namespace std::chrono_literals;

Script compiled(const Plan& plan, const std::vector<Shape>& shapes, CompileOptions options = {}) {
    options.lanes = 2;
    std::string problem;
    Script script = compile(plan, shapes, options, problem);
    EXPECT_EQ(problem, "");
    return script;
}

// A gradient that turns by so much in every update: of all elements, the even ones have the cosine
// and the odd ones the sine.
std::vector<float> turned(std::uint64_t count, double angle, int rank) {
    std::vector<float> values(count);
    for (std::uint64_t i = 0; i < count; ++i) {
        values[i] =
            static_cast<float>((rank + 1) * (i % 2 == 0 ? std::cos(angle) : std::sin(angle)));
    }
    return values;
}

std::unique_ptr<Executor> measuring(const Rank& self, Lanes& lanes, const Script& script) {
    ExecutorOptions options;
    options.statistics = true;
    std::string why;
    auto executor = Executor::create(*cuda::Execution::get(), soft_nccl(), self.rank,
                                     lanes.pointers, script, options, why);
    EXPECT_EQ(why, "");
    return executor;
}

class Turning : public ::testing::TestWithParam<std::tuple<std::uint32_t, std::uint32_t>> {};

TEST_P(Turning, SumsHaveTheCosinesOfTheirAngles) {
    const std::uint32_t merge = std::get<0>(GetParam());
    const std::uint32_t delay = std::get<1>(GetParam());
    // One longer than the window, one with an odd number of elements, one tiny.
    const auto shapes = shapes_of({600002, 5003, 300, 40001, 70000}, ncclFloat32);
    const Plan plan = uniform_plan(bytes_of(shapes), merge, delay, {{0.5, 0}, {1, 1}});
    const Script script = compiled(plan, shapes);
    const Ids ids(2);
    softdev::test::run_ranks(2, [&](Rank& self) {
        Lanes lanes(self, ids);
        const auto executor = measuring(self, lanes, script);
        ASSERT_NE(executor, nullptr);
        constexpr double kAngle = 0.3;  // between two updates
        std::uint64_t update = 0;
        for (std::uint32_t t = 0; t < 20 * merge; ++t) {
            for (const Shape& shape : shapes) {
                Device<float> buffer(turned(shape.count, t / merge * kAngle, self.rank));
                ASSERT_EQ(hooked_all_reduce(*executor, self, self.stream, buffer.get(),
                                            buffer.get(), shape),
                          ncclSuccess);
                self.sync();
            }
            Statistics s;
            const auto until = std::chrono::steady_clock::now() + 60s;
            const bool sends = t % merge == merge - 1;
            while (!executor->take(s) && sends && std::chrono::steady_clock::now() < until) {
                std::this_thread::sleep_for(1ms);
            }
            if (!sends) {
                continue;
            }
            ASSERT_EQ(s.iteration, t);
            if (update >= 1) {
                EXPECT_NEAR(s.cosine_before, std::cos(kAngle), 1e-4) << t;
            } else {
                EXPECT_EQ(s.cosine_before, kNoCosine);
            }
            if (update >= Correlation::kBack) {
                EXPECT_NEAR(s.cosine_earlier, std::cos(Correlation::kBack * kAngle), 1e-4) << t;
            } else {
                EXPECT_EQ(s.cosine_earlier, kNoCosine);
            }
            ++update;
        }
    });
    EXPECT_EQ(softdevReports(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Plans, Turning,
                         ::testing::Values(std::tuple{1U, 1U}, std::tuple{2U, 0U},
                                           std::tuple{2U, 1U}));

TEST(Correlation, KeepsAFewWindowsWhateverThePlanSends) {
    const auto many = shapes_of(std::vector<std::uint64_t>(30, 1000000), ncclFloat32);
    const Script whole = compiled(uniform_plan(bytes_of(many), 1, 1), many);
    EXPECT_EQ(Correlation(whole).device_bytes(),
              Correlation::kPieces * Correlation::kBack * Correlation::kWindow * 4);
    const auto one = shapes_of({100}, ncclFloat32);
    EXPECT_EQ(Correlation(compiled(uniform_plan(bytes_of(one), 1, 1), one)).device_bytes(),
              Correlation::kBack * 512U);
}

// Two in a row of one lane would be sums of every second update.
TEST(Correlation, LeavesOutWhatTakesTurnsBetweenLanes) {
    const auto shapes = shapes_of({5003, 6001}, ncclFloat32);
    const auto turns_of = [&](bool both) {
        Plan plan = uniform_plan(bytes_of(shapes), 1, 1);
        const Plan again = plan;
        plan.period = 2;
        for (Transfer transfer : again.transfers) {
            transfer.iteration = 1;
            transfer.generation.first = 1;
            transfer.link = both || transfer.bucket == 0 ? 1 : 0;
            plan.transfers.push_back(transfer);
        }
        for (Delivery delivery : again.deliveries) {
            delivery.iteration = 1;
            delivery.generation.first = 0;
            plan.deliveries.push_back(delivery);
        }
        return plan;
    };
    const std::uint64_t window = (6001 * 4 + 511) / 512 * 512;
    EXPECT_EQ(Correlation(compiled(turns_of(true), shapes)).device_bytes(), 0U);
    EXPECT_EQ(Correlation(compiled(turns_of(false), shapes)).device_bytes(),
              Correlation::kBack * window);
}

// What lies between two measured iterations is not known: nothing is compared across it.
TEST(Correlation, BeginsAnewWhereIterationsWereNotMeasured) {
    const auto shapes = shapes_of({5003}, ncclFloat32);
    const Script script = compiled(uniform_plan(bytes_of(shapes), 1, 1), shapes);
    const Ids ids(2);
    softdev::test::run_ranks(1, [&](Rank& self) {
        Lanes lanes(self, ids);
        const auto executor = measuring(self, lanes, script);
        ASSERT_NE(executor, nullptr);
        const auto iterate = [&](double angle) {
            Device<float> buffer(turned(shapes[0].count, angle, self.rank));
            ASSERT_EQ(hooked_all_reduce(*executor, self, self.stream, buffer.get(), buffer.get(),
                                        shapes[0]),
                      ncclSuccess);
            self.sync();
        };
        std::vector<Statistics> all;
        const auto take = [&](std::size_t until) {
            const auto end = std::chrono::steady_clock::now() + 60s;
            for (Statistics s; all.size() < until && std::chrono::steady_clock::now() < end;) {
                executor->take(s) ? all.push_back(s) : std::this_thread::sleep_for(1ms);
            }
            ASSERT_EQ(all.size(), until);
        };
        for (int t = 0; t < 12; ++t) {  // nobody takes them: from the ninth on none is measured
            iterate(0.1 * t);
        }
        take(8);
        iterate(0.1 * 12);
        iterate(0.1 * 13);
        take(10);
        EXPECT_NEAR(all[7].cosine_before, std::cos(0.1), 1e-4);
        EXPECT_EQ(all[8].iteration, 12U);
        EXPECT_EQ(all[8].cosine_before, kNoCosine);
        EXPECT_NEAR(all[9].cosine_before, std::cos(0.1), 1e-4);
        EXPECT_EQ(all[9].cosine_earlier, kNoCosine);
    });
    EXPECT_EQ(softdevReports(), 0U);
}

TEST(Correlation, LooksAtNothingOfCovap) {
    const auto shapes = shapes_of({5003, 6001}, ncclFloat32);
    CompileOptions options;
    options.residual = true;
    const Script script = compiled(uniform_plan(bytes_of(shapes), 2, 0), shapes, options);
    EXPECT_EQ(Correlation(script).device_bytes(), 0U);
}

}  // namespace
}  // namespace deft::executor::test
