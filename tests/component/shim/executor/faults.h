// SPDX-License-Identifier: Apache-2.0
// What the tests of the executor's faults share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/component/shim/executor/job.h"

namespace deft::executor::test {

inline const std::vector<Part> kSplit{{0.6, 0}, {0.4, 1}};

inline Script compiled(const Plan& plan, const std::vector<Shape>& shapes,
                       std::uint32_t delay = 1) {
    CompileOptions options;
    options.lanes = 2;
    options.forward_lane = kNoLane;
    options.max_delay = delay;
    std::string problem;
    Script script = compile(plan, shapes, options, problem);
    EXPECT_EQ(problem, "");
    return script;
}

inline std::unique_ptr<Executor> made(const Rank& self, const Lanes& lanes, const Script& script,
                                      const ExecutorOptions& options = {}) {
    std::string why;
    auto executor = Executor::create(*cuda::Execution::get(), soft_nccl(), self.rank,
                                     lanes.pointers, script, options, why);
    EXPECT_NE(executor, nullptr) << why;
    return executor;
}

}  // namespace deft::executor::test
