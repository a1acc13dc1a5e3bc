// SPDX-License-Identifier: Apache-2.0
#include "plugin/verbs/blocking_calls.h"

#include <chrono>
#include <utility>

#include "base/fork_guard.h"
#include "base/thread.h"

namespace deft::net {

bool BlockingCalls::run(std::function<void()> call) {
    ForkGuard::process().arm();
    if (ForkGuard::process().in_child()) {
        return false;
    }
    Monitor::Lock lock(monitor_);
    if (!started_) {
        // The system's stack: what runs there is the vendor's.
        started_ = start_thread(name_, 0, main, this) == 0;
    }
    if (started_) {
        calls_.push_back(std::move(call));
        lock.notify();
    }
    return started_;
}

void* BlockingCalls::main(void* self) {
    static_cast<BlockingCalls*>(self)->work();
}

void BlockingCalls::work() {
    for (;;) {
        std::function<void()> call;
        {
            Monitor::Lock lock(monitor_);
            while (calls_.empty()) {
                lock.wait_until(std::chrono::steady_clock::now() + std::chrono::hours(1));
            }
            call = std::move(calls_.front());
            calls_.pop_front();
        }
        call();
    }
}

BlockingCalls& calls_that_connect() {
    static auto* const calls = new BlockingCalls("deft-rdma-dial");
    return *calls;
}

BlockingCalls& calls_that_end() {
    static auto* const calls = new BlockingCalls("deft-rdma-end");
    return *calls;
}

}  // namespace deft::net
