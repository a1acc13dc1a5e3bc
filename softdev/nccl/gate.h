// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace softdev::nccl {

// An event counter one can sleep on. The waiter reads seen(), looks at the state it is interested
// in, and sleeps only while nobody has called ring() since. ring() costs one atomic add when nobody
// sleeps.
class Gate {
public:
    uint64_t seen() const { return epoch_.load(); }

    void ring() {
        epoch_.fetch_add(1);
        if (sleepers_.load() > 0) {
            std::lock_guard lock(mutex_);
            changed_.notify_all();
        }
    }

    // True when the gate was rung after `seen`, false when the time ran out.
    bool sleep(uint64_t seen, std::chrono::microseconds limit) {
        std::unique_lock lock(mutex_);
        sleepers_.fetch_add(1);
        const bool rung = changed_.wait_until(lock, std::chrono::system_clock::now() + limit,
                                              [&] { return epoch_.load() != seen; });
        sleepers_.fetch_sub(1);
        return rung;
    }

private:
    std::atomic<uint64_t> epoch_{0};
    std::atomic<int> sleepers_{0};
    std::mutex mutex_;
    std::condition_variable changed_;
};

}  // namespace softdev::nccl
