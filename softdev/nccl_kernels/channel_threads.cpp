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

// Throws std::system_error where no thread can be started; the task is dropped then.
void hand_out(std::function<void()> task) {
    Pool& p = pool();
    const std::lock_guard<std::mutex> lock(p.mutex);
    p.tasks.push_back(std::move(task));
    if (p.tasks.size() <= p.idle) {
        p.wake.notify_one();
        return;
    }
    try {
        std::thread(serve).detach();
    } catch (...) {
        p.tasks.pop_back();
        throw;
    }
}

// The calls of one run_together.
class Running {
public:
    Running(std::size_t count, const Report& report) : report_(report), left_(count) {}

    /// To be called while the exception is being handled.
    void note_failure() {
        const std::exception_ptr failure = std::current_exception();
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (failure_ != nullptr) {
                return;
            }
            failure_ = failure;
        }
        try {
            std::rethrow_exception(failure);
        } catch (const std::exception& error) {
            report_(error.what());
        } catch (...) {
            report_("an unknown exception");
        }
    }
    void end(std::size_t count) {
        const std::lock_guard<std::mutex> lock(mutex_);
        left_ -= count;
        if (left_ == 0) {
            over_.notify_one();
        }
    }
    void wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        over_.wait(lock, [&] { return left_ == 0; });
        if (failure_ != nullptr) {
            std::rethrow_exception(failure_);
        }
    }

private:
    const Report& report_;
    std::mutex mutex_;
    std::condition_variable over_;
    std::size_t left_;
    std::exception_ptr failure_;
};

}  // namespace

void run_together(std::size_t count, const std::function<void(std::size_t)>& body,
                  const Report& report) {
    Running running(count, report);
    const auto run_one = [&](std::size_t i) {
        try {
            body(i);
        } catch (...) {
            running.note_failure();
        }
        running.end(1);
    };
    std::size_t begun = 1;
    try {
        for (; begun < count; ++begun) {
            hand_out([&run_one, i = begun] { run_one(i); });
        }
        run_one(0);
    } catch (...) {
        // Those that were handed out still use this frame.
        running.note_failure();
        running.end(count - begun + 1);
    }
    running.wait();
}

}  // namespace softdev::nccl_kernels
