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

// "id=0 5a43...": the hexadecimal digits, and the output without them.
std::string take_id(std::string& out) {
    const std::size_t at = out.find("id=0 ") + 5;
    const std::string digits = out.substr(at, out.find('\n', at) - at);
    out.erase(at, digits.size());
    return digits;
}

class RealNcclPlanning : public ::testing::TestWithParam<const char*> {};

TEST_P(RealNcclPlanning, OnlyTheSpareHalfOfTheUniqueIdChanges) {
    Outcome without = run({PROBE, "whole-id"});
    Outcome with = run({PROBE, "whole-id"}, {{"LD_PRELOAD", PRELOAD}, {"DEFT_MODE", GetParam()}});
    const std::string before = take_id(without.out);
    const std::string after = take_id(with.out);
    EXPECT_EQ(with.out, without.out);
    EXPECT_EQ(count(with.err, "[deft]"), 0u) << with.err;
    ASSERT_EQ(before.size(), 256u);
    ASSERT_EQ(after.size(), 256u);
    EXPECT_EQ(before.substr(128), std::string(128, '0'));
    // Magic and port are random; family, address and the zeros behind them are NCCL's still.
    EXPECT_EQ(after.substr(16, 4), before.substr(16, 4));
    EXPECT_EQ(after.substr(24, 104), before.substr(24, 104));
    EXPECT_EQ(after.substr(128, 8), "44454641");
}

TEST_P(RealNcclPlanning, NothingIsAddedWithNcclCommId) {
    const Environment fixed{{"NCCL_COMM_ID", "127.0.0.1:23456"}};
    Environment preloaded = fixed;
    preloaded["LD_PRELOAD"] = PRELOAD;
    preloaded["DEFT_MODE"] = GetParam();
    const Outcome with = run({PROBE, "whole-id"}, preloaded);
    EXPECT_EQ(with.out, run({PROBE, "whole-id"}, fixed).out);
    EXPECT_EQ(count(with.err, "NCCL_COMM_ID is set"), 1u) << with.err;
}

TEST_P(RealNcclPlanning, NorIfNcclsOwnFileSetsIt) {
    const Folder folder;
    std::ofstream(folder / "nccl.conf") << "NCCL_COMM_ID=127.0.0.1:23456\n";
    Environment environment{{"NCCL_CONF_FILE", folder / "nccl.conf"}};
    const Outcome without = run({PROBE, "whole-id"}, environment);
    ASSERT_NE(without.out.find("id=0 8002800280028002"), std::string::npos) << without.out;
    environment["LD_PRELOAD"] = PRELOAD;
    environment["DEFT_MODE"] = GetParam();
    EXPECT_EQ(run({PROBE, "whole-id"}, environment).out, without.out);
}

INSTANTIATE_TEST_SUITE_P(Modes, RealNcclPlanning, ::testing::Values("exact", "deft", "covap"),
                         [](const auto& info) { return std::string(info.param); });
INSTANTIATE_TEST_SUITE_P(Modes, RealNccl, ::testing::Values("off", "observe"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace deft::test
