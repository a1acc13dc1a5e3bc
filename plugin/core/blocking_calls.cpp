// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/blocking_calls.h"

#include <chrono>
#include <map>
#include <utility>

#include "base/fork_guard.h"
#include "base/mutex.h"
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

namespace {

class OfDevices {
public:
    explicit OfDevices(const char* name) : name_(name) {}
    BlockingCalls& of(const std::string& device) {
        const MutexLock lock(mutex_);
        BlockingCalls*& calls = calls_[device];
        if (calls == nullptr) {
            calls = new BlockingCalls(name_);
        }
        return *calls;
    }

private:
    const char* const name_;
    Mutex mutex_;
    std::map<std::string, BlockingCalls*> calls_ DEFT_GUARDED_BY(mutex_);
};

}  // namespace

BlockingCalls& calls_that_connect(const std::string& device) {
    static auto* const calls = new OfDevices("deft-rdma-dial");
    return calls->of(device);
}

BlockingCalls& calls_that_end(const std::string& device) {
    static auto* const calls = new OfDevices("deft-rdma-end");
    return calls->of(device);
}

}  // namespace deft::net
