// SPDX-License-Identifier: Apache-2.0
// Which plans of reduce-scatters and all-gathers are compiled.
#include <gtest/gtest.h>

#include "deft/abi/nccl.h"
#include "perf/executor/plans.h"
#include "shim/executor/script.h"

namespace deft::executor::test {
namespace {

using planner::Operation;

constexpr std::uint64_t kBytes[] = {4096, 20};  // the second has an element too many

Plan dear_plan() {
    Plan plan = uniform_plan({kBytes[0], kBytes[1]}, 1, 0);
    plan.barrier = planner::Barrier::Layer;
    plan.transfers.clear();
    const auto add = [&](std::uint32_t bucket, Operation operation) {
        Transfer t;
        t.bucket = bucket;
        t.end = kBytes[bucket];
        t.operation = operation;
        t.order = static_cast<std::uint32_t>(plan.transfers.size());
        plan.transfers.push_back(t);
    };
    add(0, Operation::ReduceScatter);
    add(1, Operation::ReduceScatter);
    add(1, Operation::AllGather);
    add(0, Operation::AllGather);
    return plan;
}

std::vector<Shape> shapes() {
    return {{kBytes[0] / 4, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM},
            {kBytes[1] / 4, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM}};
}

std::string problem_of(const Plan& plan, std::uint32_t ranks = 2) {
    CompileOptions options;
    options.lanes = 2;
    options.layers = true;
    options.ranks = ranks;
    std::string problem;
    (void)compile(plan, shapes(), options, problem);
    return problem;
}

TEST(Halves, AreCarriedOutBetweenTwoRanksOnly) {
    EXPECT_EQ(problem_of(dear_plan()), "");
    for (const std::uint32_t ranks : {1U, 3U, 4U}) {
        EXPECT_EQ(problem_of(dear_plan(), ranks),
                  "a sum goes by reduce-scatter between two ranks only, here are " +
                      std::to_string(ranks));
    }
    Plan waits = dear_plan();
    waits.barrier = planner::Barrier::Update;
    EXPECT_EQ(problem_of(waits),
              "a sum goes by reduce-scatter only where layers wait for their own gradients");
}

TEST(Halves, AreRefusedWithoutEachOther) {
    const char* const alone = "bucket 0 has a reduce-scatter without the all-gather of its bytes";
    Plan plan = dear_plan();
    plan.transfers.pop_back();
    EXPECT_EQ(problem_of(plan), alone);
    plan = dear_plan();
    plan.transfers.back().link = 1;  // nothing says there that the first half is over
    EXPECT_EQ(problem_of(plan), alone);
    plan = dear_plan();
    plan.transfers.back().end /= 2;
    EXPECT_EQ(problem_of(plan), alone);
    plan = dear_plan();
    std::swap(plan.transfers.front().order, plan.transfers.back().order);
    EXPECT_EQ(problem_of(plan), alone);
    plan = dear_plan();
    plan.transfers.push_back(plan.transfers.back());
    EXPECT_EQ(problem_of(plan), alone);
    plan = dear_plan();
    plan.transfers.front().operation = Operation::AllReduce;
    EXPECT_EQ(problem_of(plan), "there are all-gathers of what is not scattered");
}

TEST(Halves, AreRehearsedWithTheirShapes) {
    const std::vector<Shape> calls = with_halves(shapes(), 2);
    ASSERT_EQ(calls.size(), 6U);
    EXPECT_EQ(calls[1], shapes()[1]);
    EXPECT_EQ(calls[2].function, Function::ReduceScatter);
    EXPECT_EQ(calls[2].count, kBytes[0] / 8);
    EXPECT_EQ(calls[5].function, Function::AllGather);
    EXPECT_EQ(calls[5].count, 2U);
    EXPECT_EQ(with_halves({{1, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM}}, 2).back().count, 1U);
}

}  // namespace
}  // namespace deft::executor::test
