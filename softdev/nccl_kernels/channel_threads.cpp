// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl_kernels/channel_threads.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace softdev::nccl_kernels {
namespace {

struct Pool {
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<std::function<void()>> tasks;
    std::size_t idle = 0;
};

// Its threads may outlive main().
Pool& pool() {
    static auto* const value = new Pool;
    return *value;
}

void serve() {
    Pool& p = pool();
    std::unique_lock<std::mutex> lock(p.mutex);
    for (;;) {
        ++p.idle;
        p.wake.wait(lock, [&] { return !p.tasks.empty(); });
        --p.idle;
        const auto task = std::move(p.tasks.front());
        p.tasks.pop_front();
        lock.unlock();
        task();
        lock.lock();
    }
}

void hand_out(std::function<void()> task) {
    Pool& p = pool();
    const std::lock_guard<std::mutex> lock(p.mutex);
    p.tasks.push_back(std::move(task));
    if (p.tasks.size() > p.idle) {
        std::thread(serve).detach();
    } else {
        p.wake.notify_one();
    }
}

struct Running {
    std::mutex mutex;
    std::condition_variable over;
    std::size_t left = 0;
    std::exception_ptr failure;
};

}  // namespace

void run_together(std::size_t count, const std::function<void(std::size_t)>& body) {
    Running running;
    running.left = count;
    const auto run_one = [&](std::size_t i) {
        std::exception_ptr failure;
        try {
            body(i);
        } catch (...) {
            failure = std::current_exception();
        }
        const std::lock_guard<std::mutex> lock(running.mutex);
        if (failure != nullptr) {
            running.failure = failure;
        }
        if (--running.left == 0) {
            running.over.notify_one();
        }
    };
    for (std::size_t i = 1; i < count; ++i) {
        hand_out([&run_one, i] { run_one(i); });
    }
    run_one(0);
    std::unique_lock<std::mutex> lock(running.mutex);
    running.over.wait(lock, [&] { return running.left == 0; });
    if (running.failure != nullptr) {
        std::rethrow_exception(running.failure);
    }
}

}  // namespace softdev::nccl_kernels
