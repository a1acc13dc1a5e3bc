// SPDX-License-Identifier: Apache-2.0
// A plan that is late is for sums that a companion has proven to be gradients. A call of the same
// shape that is another sum on all ranks ends the plan before anything of that sum is late. What
// one rank alone says ends the plan on all ranks, at one call.
#include <limits>

#include "shim/executor/lease.h"
#include "shim/nccl/sum_mark.h"
#include "tests/component/shim/executor/job.h"

namespace deft::executor::test {
namespace {

const std::vector<std::uint64_t> kCounts{5003, 129};
constexpr std::int64_t kIterations = 12;
// What a rank withholds in this iteration it says when the ranks ask each other next, and all hear
// it at the beginning of another one.
constexpr std::int64_t kWithheld = 9;
constexpr std::int64_t kEvery = Lease::kEvery;
constexpr std::int64_t kAfter = Lease::kAfter;
constexpr std::int64_t kHeard = (kWithheld + kAfter + kEvery - 1) / kEvery * kEvery;
static_assert(kHeard - kAfter >= kWithheld && kHeard - kAfter - kEvery < kWithheld);

std::uint64_t mark_of(std::uint32_t place) {
    return pack({DEFT_SUM_BUCKET, 1, place, place + 1 == kCounts.size()});
}

// Two ranks under a plan that delays by one. `mark`: what a rank's companion says of a call. From
// iteration `ends` on every call gets its own sum. Why the plan ended.
template <class Mark>
BreakReason run_ranks(Mark mark, std::int64_t ends, std::int64_t iterations) {
    const auto shapes = shapes_of(kCounts);
    const Plan plan = uniform_plan(bytes_of(shapes), 1, 1, {{1, 0}});
    CompileOptions options;
    options.forward_lane = kNoLane;
    std::string problem;
    Script script = compile(plan, shapes, options, problem);
    EXPECT_EQ(problem, "");
    script.marks = {mark_of(0), mark_of(1)};
    const Ids ids(1);
    ExecutorOptions executing;
    executing.lease = true;
    BreakReason why[2] = {};
    softdev::test::run_ranks(2, [&](Rank& self) {
        Lanes lanes(self, ids);
        std::string failed;
        auto executor = Executor::create(*cuda::Execution::get(), soft_nccl(), self.rank,
                                         lanes.pointers, script, executing, failed);
        ASSERT_NE(executor, nullptr) << failed;
        executor->vouch(std::numeric_limits<std::int64_t>::max());
        for (std::int64_t t = 0; t < iterations; ++t) {
            EXPECT_FALSE(executor->renew(false));
            for (std::uint32_t b = 0; b < shapes.size(); ++b) {
                Device<std::byte> buffer(local_gradient(shapes[b], self.rank, t, b));
                ASSERT_EQ(hooked_all_reduce(*executor, self, self.stream, buffer.get(),
                                            buffer.get(), shapes[b], mark(self.rank, t, b)),
                          ncclSuccess);
                self.sync();
                const std::int64_t from = t >= ends ? t : t - 1;
                expect_delivered(
                    buffer.host(), shapes[b],
                    [&](std::uint64_t i) { return from < 0 ? 0 : reduced(2, from, b, i, ncclSum); },
                    "rank " + std::to_string(self.rank) + " iteration " + std::to_string(t));
            }
        }
        why[self.rank] = executor->why();
    });
    EXPECT_EQ(softdevReports(), 0U);
    EXPECT_EQ(why[0], why[1]);
    return why[0];
}

template <class Mark>
BreakReason run(Mark mark, std::int64_t ends) {
    return run_ranks([&](int, std::int64_t t, std::uint32_t b) { return mark(t, b); }, ends,
                     kIterations);
}

// Why a plan ended of which rank 0 alone says once that a call is this.
BreakReason run_alone(std::uint64_t said, std::uint32_t position) {
    const auto mark = [&](int rank, std::int64_t t, std::uint32_t b) {
        return rank == 0 && t == kWithheld && b == position ? said : mark_of(b);
    };
    return run_ranks(mark, kHeard, kHeard + 2);
}

constexpr std::uint64_t other_sum(std::uint32_t kind) {
    return pack({kind, 0, 0, false});
}

TEST(Marks, APlanGoesOnWithTheBucketsThatItIsFor) {
    EXPECT_EQ(run([](std::int64_t, std::uint32_t b) { return mark_of(b); }, kIterations),
              BreakReason::None);
}

TEST(Marks, WhatIsNoGradientOnAnyRankEndsItAndIsNotLate) {
    const std::uint64_t said[] = {0, other_sum(DEFT_SUM_FORWARD), other_sum(DEFT_SUM_PARAMETERS)};
    for (const std::uint64_t sum : said) {
        const auto mark = [&](std::int64_t t, std::uint32_t b) {
            return t == 7 ? sum : mark_of(b);
        };
        EXPECT_EQ(run(mark, 7), BreakReason::Unproven) << sum;
    }
}

TEST(Marks, TheBucketOfAnotherModuleEndsItToo) {
    const auto other = [](std::int64_t t, std::uint32_t b) {
        return t >= 5 ? pack({DEFT_SUM_BUCKET, 2, b, b + 1 == kCounts.size()}) : mark_of(b);
    };
    EXPECT_EQ(run(other, 5), BreakReason::Unproven);
}

// A rank that has no gradient for a parameter sums something else in its place. A plan that ended
// there alone would leave the other rank waiting in its transfers.
TEST(Marks, WhatOneRankAloneSaysEndsItOnAllRanksAtOneCall) {
    const std::uint64_t said[] = {0, other_sum(DEFT_SUM_FORWARD), mark_of(1)};
    for (const std::uint64_t sum : said) {
        EXPECT_EQ(run_alone(sum, 0), BreakReason::Lease) << sum;
    }
}

TEST(Marks, WhatOneRankAloneSaysOfALaterCallEndsItOnAllRanksToo) {
    EXPECT_EQ(run_alone(other_sum(DEFT_SUM_FORWARD), 1), BreakReason::Lease);
}

TEST(Marks, APlanForCertainSumsIsRefusedWithoutALease) {
    softdev::test::run_ranks(1, [&](Rank& self) {
        const auto shapes = shapes_of(kCounts);
        std::string problem;
        CompileOptions options;
        options.forward_lane = kNoLane;
        Script script =
            compile(uniform_plan(bytes_of(shapes), 1, 1, {{1, 0}}), shapes, options, problem);
        script.marks = {mark_of(0), mark_of(1)};
        const Ids ids(1);
        Lanes lanes(self, ids);
        EXPECT_EQ(Executor::create(*cuda::Execution::get(), soft_nccl(), self.rank, lanes.pointers,
                                   script, {}, problem),
                  nullptr);
        EXPECT_NE(problem, "");
    });
}

// The last test: a companion that has ended does not come back.
TEST(Marks, ACompanionThatHasEndedSaysNothingAboutACall) {
    end_marks();
    const auto unmarked = [](std::int64_t t, std::uint32_t b) { return t >= 7 ? 0 : mark_of(b); };
    EXPECT_EQ(run(unmarked, kIterations), BreakReason::None);
}

}  // namespace
}  // namespace deft::executor::test
