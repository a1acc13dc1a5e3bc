// SPDX-License-Identifier: Apache-2.0
// Where an iteration begins, by the calls that came last.
#include <gtest/gtest.h>

#include "shim/control/recent_calls.h"

namespace deft::director {
namespace {

TEST(RecentCalls, AnIterationBeginsBehindAnother) {
    const std::vector<executor::Shape> gradients{{9, 7, 0}, {9, 7, 0}, {9, 7, 0}, {5, 7, 0}};
    RecentCalls calls;
    EXPECT_TRUE(calls.iteration_before(0, gradients, 0)) << "nothing is known";
    EXPECT_TRUE(calls.iteration_before(1000, gradients, 900)) << "nothing is known";
    std::uint64_t ordinal = 2;
    calls.note(ordinal++, gradients[3]);
    EXPECT_TRUE(calls.iteration_before(ordinal, gradients, ordinal)) << "nothing says otherwise";
    for (int i = 0; i < 200; ++i) {
        for (std::size_t place = 0; place < gradients.size(); ++place) {
            EXPECT_EQ(calls.iteration_before(ordinal, gradients, ordinal), place == 0) << ordinal;
            calls.note(ordinal++, gradients[place]);
        }
    }
    executor::Shape other = gradients[3];
    other.in_place = false;
    calls.note(ordinal++, other);
    EXPECT_FALSE(calls.iteration_before(ordinal, gradients, ordinal));
    for (const executor::Shape& gradient : gradients) {
        calls.note(ordinal++, gradient);
    }
    EXPECT_TRUE(calls.iteration_before(ordinal, gradients, ordinal));
}

// A metric that has come since the call was named moves the calls behind it to others' places.
TEST(RecentCalls, AllCallsSinceTheSwitchWasNamedAreLookedAt) {
    const executor::Shape one{9, 7, 0};
    const executor::Shape other{5, 7, 0};
    const std::vector<executor::Shape> alike{one, one};
    RecentCalls calls;
    std::uint64_t ordinal = 0;
    for (int i = 0; i < 4; ++i) {
        calls.note(ordinal++, one);
    }
    const std::uint64_t named = ordinal;
    calls.note(ordinal++, other);
    for (int i = 0; i < 5; ++i) {
        calls.note(ordinal++, one);
    }
    EXPECT_TRUE(calls.iteration_before(ordinal, alike, ordinal)) << "the last two are alike";
    EXPECT_FALSE(calls.iteration_before(ordinal, alike, named));
    EXPECT_TRUE(calls.iteration_before(ordinal, alike, named + 2)) << "it was there already";
    EXPECT_TRUE(calls.iteration_before(named, alike, 0));
    const std::vector<executor::Shape> two{other, one};
    EXPECT_TRUE(calls.iteration_before(named + 2, two, 0)) << "nothing else looks like these";
    // So far back nothing is known any more.
    for (std::size_t i = 0; i < RecentCalls::kKept; ++i) {
        calls.note(ordinal++, one);
    }
    EXPECT_TRUE(calls.iteration_before(ordinal, alike, named));
}

TEST(RecentCalls, OfALongIterationTheLastAreLookedAt) {
    std::vector<executor::Shape> gradients(RecentCalls::kKept + 10, {9, 7, 0});
    gradients.back().count = 5;
    RecentCalls calls;
    for (std::uint64_t ordinal = 0; ordinal < gradients.size(); ++ordinal) {
        calls.note(ordinal, gradients[ordinal]);
    }
    EXPECT_TRUE(calls.iteration_before(gradients.size(), gradients, 0));
    EXPECT_FALSE(calls.iteration_before(gradients.size() - 1, gradients, 0));
}

}  // namespace
}  // namespace deft::director
