// SPDX-License-Identifier: Apache-2.0
// DEFT_PROBE as a process meets it. Each case is a process of its own, started by meson with
// another file; without one the tests are skipped.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/config.h"
#include "plugin/tcp/probed_rates.h"
#include "tests/component/plugin/tcp_pair.h"

namespace deft::net::testing {
namespace {

bool named(const char* file) {
    return Config::process().text(Key::Probe).ends_with(file);
}

TEST(Probed, APathStartsAtTheRateThatWasMeasured) {
    if (!named("probed.json")) {
        GTEST_SKIP() << "DEFT_PROBE does not name probed.json";
    }
    TcpPair pair(1);
    ASSERT_TRUE(pair.establish());
    // Not that of an unknown speed, 10 Gbit/s. A first piece that met a crowd may have lowered it.
    EXPECT_LE(pair.sender->rate(0).bytes_per_second(), 3e9 / 8);
    EXPECT_FALSE(pair.sender->rate(0).measured());
}

TEST(Probed, AFileThatCannotBeUsedChangesNothing) {
    if (named("probed.json") || Config::process().text(Key::Probe).empty()) {
        GTEST_SKIP() << "DEFT_PROBE names no bad file";
    }
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(ProbedRates::process().size(), 0U);
    EXPECT_EQ(&ProbedRates::process(), &ProbedRates::process());
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
    EXPECT_NE(said.find("WARN DEFT_PROBE=" + Config::process().text(Key::Probe)), said.npos)
        << said;
    EXPECT_NE(said.find("rates are learned from traffic"), said.npos) << said;
    TcpPair pair(1);
    EXPECT_TRUE(pair.establish());
}

}  // namespace
}  // namespace deft::net::testing
