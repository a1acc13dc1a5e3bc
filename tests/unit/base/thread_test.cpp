// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <csignal>
#include <future>
#include <memory>
#include <string>

namespace deft {
namespace {

struct Seen {
    std::promise<void> named;
    std::promise<sigset_t> blocked;
    std::promise<std::string> name;
};

void* look(void* argument) {
    const std::unique_ptr<std::shared_ptr<Seen>> own(static_cast<std::shared_ptr<Seen>*>(argument));
    Seen& seen = **own;
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    seen.blocked.set_value(blocked);
    seen.named.get_future().wait();
    std::array<char, 16> name{};
    pthread_getname_np(pthread_self(), name.data(), name.size());
    seen.name.set_value(name.data());
    return nullptr;
}

TEST(Thread, TakesNoSignalAndHasAName) {
    sigset_t before;
    pthread_sigmask(SIG_SETMASK, nullptr, &before);
    for (const std::size_t stack : {0, 256 * 1024}) {
        const auto seen = std::make_shared<Seen>();
        ASSERT_EQ(start_thread("deft-test", stack, look, new std::shared_ptr<Seen>(seen)), 0);
        seen->named.set_value();
        const sigset_t blocked = seen->blocked.get_future().get();
        for (const int signal : {SIGTERM, SIGINT, SIGCHLD, SIGUSR1, SIGALRM, SIGRTMIN}) {
            EXPECT_EQ(sigismember(&blocked, signal), 1) << signal;
        }
        EXPECT_EQ(seen->name.get_future().get(), "deft-test");
    }
    sigset_t after;
    pthread_sigmask(SIG_SETMASK, nullptr, &after);
    for (int signal = 1; signal < SIGRTMAX; ++signal) {
        EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal)) << signal;
    }
}

}  // namespace
}  // namespace deft
