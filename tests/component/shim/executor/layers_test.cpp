// SPDX-License-Identifier: Apache-2.0
// Plans under which each layer waits for its own sum: calls return before theirs is there, and a
// bucket that comes later may be sent first. Whoever waits for a bucket gets its sum, however the
// plan ends.
#include <barrier>

#include "tests/component/shim/executor/layer_job.h"

namespace deft::executor::test {
namespace {

using Job = LayerJob;

const std::vector<std::uint64_t> kCounts{40960, 129, 20480};

std::uint64_t mark_of(std::uint32_t place) {
    return test::mark_of(place, kCounts.size());
}

// The last bucket is sent before the rest of the first, and the one between them last.
Plan urgent_plan(std::uint32_t links) {
    const auto bytes = bytes_of(shapes_of(kCounts));
    Plan plan = uniform_plan(bytes, 1, 0);
    plan.barrier = planner::Barrier::Layer;
    plan.transfers.clear();
    const auto add = [&](std::uint32_t bucket, std::uint64_t begin, std::uint64_t end,
                         std::uint32_t link) {
        Transfer t;
        t.bucket = bucket;
        t.begin = begin;
        t.end = end;
        t.link = link;
        t.order = static_cast<std::uint32_t>(plan.transfers.size());
        plan.transfers.push_back(t);
    };
    add(0, 0, 4096, 0);
    add(2, 0, 8192, 0);
    add(2, 8192, bytes[2], links - 1);
    add(0, 4096, bytes[0], 0);
    add(1, 0, bytes[1], links - 1);
    return plan;
}

template <class Run>
void with_jobs(int nranks, std::uint32_t links, const Plan& plan, Run run,
               const cuda::Execution& driver = *cuda::Execution::get()) {
    const Ids ids(links);
    softdev::test::run_ranks(nranks, [&](Rank& self) {
        Lanes lanes(self, ids);
        Job job(self, lanes, links, plan, shapes_of(kCounts), driver);
        run(job, self);
        job.let_go();
        job.executor.reset();
    });
    EXPECT_EQ(softdevReports(), 0U);
}
template <class Run>
void with_jobs(int nranks, std::uint32_t links, Run run) {
    with_jobs(nranks, links, urgent_plan(links), run);
}

TEST(Layers, EachBucketsSumIsThereForWhoWaitsForIt) {
    for (const std::uint32_t links : {1U, 2U}) {
        with_jobs(2, links, [](Job& job, Rank& self) {
            for (std::int64_t t = 0; t < 20; ++t) {
                EXPECT_FALSE(job.executor->renew(false));
                for (std::uint32_t b = 0; b < kCounts.size(); ++b) {
                    ASSERT_EQ(job.call(t, b), ncclSuccess);
                    ASSERT_NE(job.left[b].sums, nullptr);
                    // What overtakes it is still to come.
                    EXPECT_EQ(job.wait(b), b == 2 ? Wait::Waits : Wait::NotSent);
                }
                // As forward comes to them, on the stream or in this thread.
                for (const std::uint32_t b : {2U, 1U, 0U}) {
                    if ((t + b) % 2 == 0) {
                        EXPECT_EQ(job.wait_here(b), Wait::Waits);
                    } else {
                        EXPECT_EQ(job.wait(b), Wait::Waits);
                        self.sync();
                    }
                    job.expect_sum(t, b);
                }
                job.let_go();
            }
            EXPECT_EQ(job.executor->why(), BreakReason::None);
        });
    }
}

// What the calls before it have left is sent all the same, in one order on all ranks. Another call
// is one of another shape, or a sum in the place of a bucket of which some is sent later.
TEST(Layers, AnotherCallInTheMiddleEndsThePlanAndLosesNoSum) {
    for (const bool marked : {true, false}) {
        with_jobs(2, 2, [&](Job& job, Rank& self) {
            for (std::int64_t t = 0; t < 3; ++t) {
                for (std::uint32_t b = 0; b < kCounts.size(); ++b) {
                    ASSERT_EQ(job.call(t, b), ncclSuccess);
                }
                EXPECT_EQ(job.wait_here(0), Wait::Waits);
                EXPECT_EQ(job.wait_here(1), Wait::Waits);
                job.let_go();
            }
            ASSERT_EQ(job.call(3, 0), ncclSuccess);
            EXPECT_EQ(job.wait(0), Wait::NotSent);
            ASSERT_EQ(job.call(3, 1, marked ? mark_of(1) : 0, marked ? 77 : kCounts[1]),
                      ncclSuccess);
            EXPECT_EQ(job.left[1].sums, nullptr);
            EXPECT_EQ(job.executor->why(), marked ? BreakReason::Sequence : BreakReason::Unproven);
            job.executor.reset();  // nobody has waited yet
            EXPECT_EQ(job.wait_here(0), Wait::Waits);
            job.expect_sum(3, 0);
            if (!marked) {
                self.sync();
                job.expect_sum(3, 1);
            }
        });
    }
}

// The companion of one rank alone loses the mark of a bucket that is sent with its call. Ranks go
// on in one order, and this rank's caller has its sum. The plan ends with the lease.
TEST(Layers, AMarkThatOneRankAloneLacksPartsNoRanks) {
    with_jobs(2, 2, [](Job& job, Rank& self) {
        for (std::int64_t t = 0; t < 3; ++t) {
            const bool lacks = self.rank == 1 && t == 1;
            for (const std::uint32_t b : {0U, 1U, 2U}) {
                ASSERT_EQ(job.call(t, b, lacks && b == 2 ? 0 : mark_of(b), kCounts[b]),
                          ncclSuccess);
            }
            EXPECT_EQ(job.left[2].sums == nullptr, lacks);
            self.sync();
            for (const std::uint32_t b : {0U, 1U, 2U}) {
                if (job.left[b].sums != nullptr) {
                    EXPECT_EQ(job.wait_here(b), Wait::Waits) << b;
                }
                job.expect_sum(t, b);
            }
            job.let_go();
        }
        EXPECT_EQ(job.executor->why(), BreakReason::None);
        EXPECT_EQ(job.executor->withheld(), self.rank == 1);
    });
}

// And of one of which later calls send some. Nobody can be given its sum now, in the order in which
// the other ranks send: so the call fails there, and nobody gets another sum for its own.
TEST(Layers, AMarkThatOneRankAloneLacksOfWhatIsHeldBackFailsItsCall) {
    for (const std::uint32_t lacking : {0U, 1U}) {
        std::barrier failed(2);
        with_jobs(2, 1, [&](Job& job, Rank& self) {
            for (std::uint32_t b = 0; b < lacking; ++b) {
                ASSERT_EQ(job.call(0, b), ncclSuccess);
            }
            if (self.rank == 1) {
                EXPECT_NE(job.call(0, lacking, 0, kCounts[lacking]), ncclSuccess);
                EXPECT_EQ(job.executor->why(), BreakReason::Error);
            } else {
                EXPECT_EQ(job.call(0, lacking), ncclSuccess);
                EXPECT_EQ(job.executor->why(), BreakReason::None);
            }
            failed.arrive_and_wait();
            if (job.left[0].sums != nullptr) {
                EXPECT_EQ(job.wait(0), self.rank == 1 ? Wait::Lost : Wait::NotSent);
            }
        });
    }
}

thread_local cuda::Stream t_refuses_events = nullptr;

// The software device's driver, which takes no event on that stream.
const cuda::Execution& refusing_driver() {
    static const cuda::Driver& real = *cuda::Driver::get();
    static const cuda::Driver driver = [] {
        cuda::Driver made = real;
        made.EventRecord = [](cuda::Event event, cuda::Stream stream) {
            return stream == t_refuses_events ? 400 : real.EventRecord(event, stream);
        };
        return made;
    }();
    static const cuda::Execution execution = [] {
        cuda::Execution made = *cuda::Execution::get();
        made.driver = &driver;
        return made;
    }();
    return execution;
}

// The first bucket's part on the second lane is sent with its call, and no event can tell of it.
// The part on the first lane would be sent later, and is not any more.
TEST(Layers, AnErrorOfTheDriversFailsTheCallOfWhichSomeIsHeldBack) {
    Plan plan = urgent_plan(2);
    plan.transfers[0].link = 1;
    std::barrier failed(2);
    with_jobs(
        2, 2, plan,
        [&](Job& job, Rank& self) {
            if (self.rank == 1) {
                t_refuses_events = job.executor->all_lanes()[1]->stream();
            }
            const int result = job.call(0, 0);
            t_refuses_events = nullptr;
            EXPECT_EQ(result == ncclSuccess, self.rank == 0);
            EXPECT_EQ(job.executor->broken(), self.rank == 1);
            EXPECT_EQ(job.left[0].sums == nullptr, self.rank == 1);
            failed.arrive_and_wait();
        },
        refusing_driver());
}

// The companion of one rank says nothing of the iteration's first call. Others may wait for their
// sums themselves, so the rank follows the plan; its caller gets the sum as by any other call.
TEST(Layers, WhoeverIsNotKnownToWaitHasItsSumWhenTheCallHasReturned) {
    Plan in_order = uniform_plan(bytes_of(shapes_of(kCounts)), 1, 0);
    in_order.barrier = planner::Barrier::Layer;
    with_jobs(2, 1, in_order, [](Job& job, Rank& self) {
        const bool silent = self.rank == 1;
        ASSERT_EQ(job.call(0, 0, silent ? 0 : mark_of(0), kCounts[0]), ncclSuccess);
        EXPECT_EQ(job.left[0].sums == nullptr, silent);
        if (!silent) {
            EXPECT_EQ(job.wait(0), Wait::Waits);
        }
        self.sync();
        job.expect_sum(0, 0);
        for (const std::uint32_t b : {1U, 2U}) {
            ASSERT_EQ(job.call(0, b), ncclSuccess);
            EXPECT_EQ(job.wait_here(b), Wait::Waits);
            job.expect_sum(0, b);
        }
    });
}

TEST(Layers, WhatIsNotSentIsLostWithThePlan) {
    with_jobs(2, 1, [](Job& job, Rank&) {
        ASSERT_EQ(job.call(0, 0), ncclSuccess);
        EXPECT_EQ(job.wait(0), Wait::NotSent);
        EXPECT_TRUE(job.executor->sums_unsent());
        job.executor->end(BreakReason::Stopped);
        EXPECT_EQ(job.wait(0), Wait::Lost);
        EXPECT_EQ(job.wait_here(0), Wait::Lost);
    });
}

TEST(Layers, ASumThatNobodyTakesIsLetGo) {
    with_jobs(2, 1, [](Job& job, Rank&) {
        for (std::uint32_t b = 0; b < kCounts.size(); ++b) {
            ASSERT_EQ(job.call(0, b), ncclSuccess);
        }
        job.left[2].sums->retain();
        leave_sum(*job.left[2].sums, 2, 1);  // and again, in its place
        leave_sum(*job.left[2].sums, 2, 1);
        const LeftSum taken = take_left_sum();
        EXPECT_EQ(taken.sums, job.left[2].sums);
        EXPECT_EQ(take_left_sum().sums, nullptr);
        taken.sums->release();
        taken.sums->release();
        EXPECT_EQ(job.wait_here(0), Wait::Waits);
    });
}

TEST(Layers, APlanForThemIsRefusedWithoutMarks) {
    softdev::test::run_ranks(1, [&](Rank& self) {
        const Ids ids(1);
        Lanes lanes(self, ids);
        CompileOptions options;
        options.layers = true;
        std::string problem;
        const Script script = compile(urgent_plan(1), shapes_of(kCounts), options, problem);
        ASSERT_EQ(problem, "");
        ExecutorOptions executing;
        executing.lease = true;
        EXPECT_EQ(Executor::create(*cuda::Execution::get(), soft_nccl(), self.rank, lanes.pointers,
                                   script, executing, problem),
                  nullptr);
        EXPECT_NE(problem, "");
    });
}

// The last test: a companion that has ended does not come back. It goes on to mark what it waits
// for, so a call without a mark is another one.
TEST(Layers, ACompanionThatHasEndedIsStillAskedForItsMarks) {
    end_marks();
    with_jobs(2, 1, [](Job& job, Rank&) {
        for (std::uint32_t b = 0; b < kCounts.size(); ++b) {
            ASSERT_EQ(job.call(0, b), ncclSuccess);
        }
        EXPECT_EQ(job.wait_here(0), Wait::Waits);
        EXPECT_EQ(job.wait_here(1), Wait::Waits);
        job.let_go();
        ASSERT_EQ(job.call(1, 0), ncclSuccess);
        ASSERT_EQ(job.call(1, 1, 0, kCounts[1]), ncclSuccess);
        EXPECT_EQ(job.left[1].sums, nullptr);
        EXPECT_EQ(job.executor->why(), BreakReason::Unproven);
        EXPECT_EQ(job.wait_here(0), Wait::Waits);
        job.expect_sum(1, 0);
    });
}

}  // namespace
}  // namespace deft::executor::test
