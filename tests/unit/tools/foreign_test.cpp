// SPDX-License-Identifier: Apache-2.0
// Questions to something foreign end, whatever that does.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>
#include <cstdlib>

#include "tools/doctor/supervised.h"
#include "tools/foreign.h"

namespace deft::tools::doctor {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr auto kShort = 50ms;
constexpr auto kLong = 60s;

TEST(Probe, AnswersAreTaken) {
    EXPECT_EQ(answer_in_time([] { return std::string("yes"); }, kLong), "yes");
    EXPECT_EQ(answer_in_time([] { return std::string(1 << 20, 'x'); }, kLong),
              std::string(1 << 20, 'x'));
    EXPECT_EQ(output_in_time({"/bin/sh", "-c", "echo out; echo error >&2; cat"}, kLong), "out\n");
}

TEST(Probe, WhatEndsBadlyHasAnsweredNothing) {
    EXPECT_EQ(answer_in_time([]() -> std::string { std::abort(); }, kLong), "");
    EXPECT_EQ(answer_in_time([]() -> std::string { throw 1; }, kLong), "");
    EXPECT_EQ(output_in_time({"/no/such/program"}, kLong), "");
}

TEST(Probe, WhatHangsIsEndedWithAllThatItHasStarted) {
    EXPECT_EQ(answer_in_time(
                  []() -> std::string {
                      (void)::signal(SIGTERM, SIG_IGN);
                      for (;;) {
                          ::pause();
                      }
                  },
                  kShort),
              std::nullopt);
    // The shell ends at once; what it has started holds the pipe.
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    EXPECT_EQ(output_in_time({"/bin/sh", "-c", "echo begun; sleep 1000 & exit 0"}, 500ms),
              std::nullopt);
    ASSERT_EQ(::close(ends[1]), 0);
    char byte = 0;
    EXPECT_EQ(::read(ends[0], &byte, 1), 0);  // nobody lives who has inherited the other end
    ASSERT_EQ(::close(ends[0]), 0);
}

TEST(Probe, EachStepHasTheTime) {
    std::string step;
    EXPECT_EQ(answer_in_steps(
                  [] {
                      for (int i = 0; i < 20; ++i) {
                          looking_at("step " + std::to_string(i));
                          (void)::usleep(20000);
                      }
                      return std::string("done");
                  },
                  300ms, step),
              "done");
    EXPECT_EQ(answer_in_steps(
                  []() -> std::string {
                      looking_at("the first");
                      looking_at("/dead/file server");
                      for (;;) {
                          ::pause();
                      }
                  },
                  kShort, step),
              std::nullopt);
    EXPECT_EQ(step, "/dead/file server");
    looking_at("nobody asks");
}

TEST(Probe, ACrashIsTold) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(supervised("doctor",
                         []() -> Outcome {
                             looking_at("a broken file");
                             std::abort();
                         }),
              3);
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr("doctor: it crashed while it looked at a broken file"));
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    EXPECT_EQ(supervised("doctor", [] { return Outcome{"text\n", "complaint", 1}; }), 1);
    EXPECT_EQ(testing::internal::GetCapturedStdout(), "text\n");
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("complaint"));
}

}  // namespace
}  // namespace deft::tools::doctor
