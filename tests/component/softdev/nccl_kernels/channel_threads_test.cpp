// SPDX-License-Identifier: Apache-2.0
// Channels that run together, and fail.
#include "softdev/nccl_kernels/channel_threads.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <barrier>
#include <future>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include "tests/sanitizers.h"

namespace softdev::nccl_kernels::test {
namespace {

TEST(ChannelThreads, AreAllThereAtTheSameTime) {
    for (const std::size_t count : {1, 2, 40}) {
        std::barrier<> together(static_cast<std::ptrdiff_t>(count));
        std::atomic<std::size_t> sum = 0;
        run_together(
            count,
            [&](std::size_t i) {
                together.arrive_and_wait();
                sum += i;
            },
            [](const char* why) { ADD_FAILURE() << why; });
        EXPECT_EQ(sum, count * (count - 1) / 2);
    }
}

// The others wait for what the report brings about.
TEST(ChannelThreads, SayWhatFailsWhileOthersStillWait) {
    std::promise<std::string> said;
    std::shared_future<std::string> heard = said.get_future().share();
    try {
        run_together(
            3,
            [&](std::size_t i) {
                if (i == 1) {
                    throw std::runtime_error("the first");
                }
                EXPECT_EQ(heard.get(), "the first");
                throw std::runtime_error("a later one");
            },
            [&](const char* why) { said.set_value(why); });
        FAIL() << "nothing is thrown";
    } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "the first");
    }
}

#if !defined(TEST_ADDRESS_SANITIZER) && !defined(TEST_THREAD_SANITIZER)
// No room for another thread's stack: the kernel fails, and those that began end first.
TEST(ChannelThreads, UnwindWhereOneCannotBeStarted) {
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
    const rlimit tight{1, before.rlim_max};
    constexpr std::size_t kMoreThanIdle = 200;
    std::atomic<std::size_t> begun = 0;
    std::atomic<std::size_t> over = 0;
    std::atomic<bool> refused = false;
    std::string said;
    const auto body = [&](std::size_t) {
        ++begun;
        while (!refused) {
            std::this_thread::yield();
        }
        ++over;
    };
    const auto report = [&](const char* why) {
        EXPECT_EQ(setrlimit(RLIMIT_AS, &before), 0);
        said = why;
        refused = true;
    };
    ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
    EXPECT_THROW(run_together(kMoreThanIdle, body, report), std::system_error);
    EXPECT_EQ(setrlimit(RLIMIT_AS, &before), 0);
    EXPECT_NE(said.find("Resource temporarily unavailable"), std::string::npos) << said;
    EXPECT_EQ(begun, over);
    EXPECT_LT(begun, kMoreThanIdle);
}
#endif

}  // namespace
}  // namespace softdev::nccl_kernels::test
