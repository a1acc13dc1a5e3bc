// SPDX-License-Identifier: Apache-2.0
#include "base/nearest.h"

#include <gtest/gtest.h>
#include <string>

namespace deft {
namespace {

constexpr std::string_view kWords[] = {"run", "env", "report", "observe", "DEFT_MODE", "DEFT_LOG"};

TEST(Nearest, FindsTheTypingMistakesPeopleMake) {
    EXPECT_EQ(nearest("rnu", kWords), "run");  // swapped neighbours
    EXPECT_EQ(nearest("reprot", kWords), "report");
    EXPECT_EQ(nearest("obsrve", kWords), "observe");       // missing letter
    EXPECT_EQ(nearest("oobserve", kWords), "observe");     // doubled letter
    EXPECT_EQ(nearest("deft_mode", kWords), "DEFT_MODE");  // case
}

TEST(Nearest, SaysNothingWhenNothingIsNear) {
    EXPECT_EQ(nearest("", kWords), "");
    EXPECT_EQ(nearest("install", kWords), "");
    EXPECT_EQ(nearest("x", kWords), "");
    EXPECT_EQ(nearest("run", {}), "");
    EXPECT_EQ(nearest(std::string(100000, 'r'), kWords), "");
}

TEST(Nearest, AsPartOfAComplaint) {
    EXPECT_EQ(did_you_mean("rnu", kWords), "; did you mean run?");
    EXPECT_EQ(did_you_mean("install", kWords), "");
}

}  // namespace
}  // namespace deft
