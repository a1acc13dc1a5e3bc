// SPDX-License-Identifier: Apache-2.0
// A process that may have no further threads: the plugin works without its idle thread, and says
// so.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <regex>
#include <string>

#include "plugin/core/idle_progress.h"
#include "plugin/core/io_threads.h"
#include "plugin/core/progress_thread.h"
#include "tests/component/plugin/core/nccl_scene.h"

namespace {
std::atomic<bool> refusing{false};
std::atomic<int> refused{0};
}  // namespace

// Replaced for the whole test program.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*main)(void*), void* argument) noexcept {
    if (refusing) {
        ++refused;
        return EAGAIN;
    }
    static const auto next =
        reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
    return next(thread, attributes, main, argument);
}

namespace deft::net::testing {
namespace {

struct NoThreads {
    NoThreads() { refusing = true; }
    ~NoThreads() { refusing = false; }
};

bool transfers(Scene& scene) {
    std::vector<std::byte> data = bytes_of(3'000'000, 4);
    std::vector<std::byte> buffer(data.size());
    void* const receive = scene.irecv(buffer);
    void* const send = scene.isend(data);
    bool sent = false;
    return wait_for(
               [&] { return scene.done(receive) || ((sent = sent || scene.done(send)), false); }) &&
           wait_for([&] { return sent || scene.done(send); }) && buffer == data;
}

TEST(NoThread, ConnectionsGoOnWithoutTheIdleThread) {
    ::testing::internal::CaptureStderr();
    {
        const NoThreads no_threads;
        for (int i = 0; i < 3; ++i) {
            Scene scene(2, 0);
            EXPECT_TRUE(transfers(scene));
            EXPECT_EQ(threads_named("deft-care"), 0U);
        }
    }
    EXPECT_EQ(refused, 6) << "each end asked for it";
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
    EXPECT_TRUE(std::regex_search(said, std::regex("WARN no thread deft-care could be started "
                                                   "\\(Resource temporarily unavailable\\): "
                                                   "connections go on only when NCCL calls")))
        << said;
    // It was not for ever.
    Scene scene(2, 0);
    EXPECT_TRUE(wait_for([] { return threads_named("deft-care") == 1; }));
    EXPECT_TRUE(transfers(scene));
}

struct Quiet final : ConnectionEnd {
    void progress(Nanos) override {}
    bool busy() const override { return false; }
    bool held() const override { return false; }
    std::uint64_t moved() const override { return 0; }
};

TEST(NoThread, AnEndpointWithoutOneIsTheCallersAlone) {
    Quiet end;
    {
        const NoThreads no_threads;
        EXPECT_FALSE(progress_when_idle(end));
        EXPECT_FALSE(help(end, 2));
    }
    EXPECT_EQ(end.thread, nullptr);
    EXPECT_EQ(end.helper, nullptr);
    const Call call(end);
    EXPECT_TRUE(call);
    stop_progress(end);
}

}  // namespace
}  // namespace deft::net::testing
