// SPDX-License-Identifier: Apache-2.0
// The real library under the preload answers as it does alone. Without a GPU the communicator
// fails, with the same code.
#include <gtest/gtest.h>

#include "tests/system/shim/process.h"

namespace deft::test {
namespace {

class RealNccl : public ::testing::TestWithParam<const char*> {};

TEST_P(RealNccl, AnswersTheSameWithAndWithoutThePreload) {
    const Outcome without = run({PROBE});
    ASSERT_EQ(without.status, 0) << without.err;
    ASSERT_NE(without.out.find("version=0,2"), std::string::npos) << without.out;
    const Outcome with = run({PROBE}, {{"LD_PRELOAD", PRELOAD}, {"DEFT_MODE", GetParam()}});
    EXPECT_EQ(with.status, 0);
    EXPECT_EQ(with.out, without.out);
    EXPECT_EQ(count(with.err, "[deft]"), 0u) << with.err;
}

TEST_P(RealNccl, GivesTheSameUniqueId) {
    // With NCCL_COMM_ID the id has nothing random in it.
    const Environment fixed{{"NCCL_COMM_ID", "127.0.0.1:23456"}};
    const Outcome without = run({PROBE, "whole-id"}, fixed);
    Environment preloaded = fixed;
    preloaded["LD_PRELOAD"] = PRELOAD;
    preloaded["DEFT_MODE"] = GetParam();
    const Outcome with = run({PROBE, "whole-id"}, preloaded);
    EXPECT_EQ(with.out, without.out);
    EXPECT_NE(with.out.find("id=0 8002800280028002"), std::string::npos) << with.out;
}

INSTANTIATE_TEST_SUITE_P(Modes, RealNccl, ::testing::Values("off", "observe"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace deft::test
