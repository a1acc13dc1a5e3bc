// SPDX-License-Identifier: Apache-2.0
// One end of a connection, as those see it who drive it: NCCL's thread, the idle thread
// (core/idle_progress.h) or, where the operator wants them, helper threads (core/io_threads.h).
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/thread_annotations.h"
#include "plugin/core/clock.h"
#include "plugin/core/region.h"

namespace deft::net {

// Who is inside an end. Whoever does not get it comes again; only deregMr does so at once.
class DEFT_CAPABILITY("endpoint lock") EndpointLock {
public:
    // NCCL's thread; having been refused, it gets the lock next.
    bool try_lock() DEFT_TRY_ACQUIRE(true) {
        if (state_.exchange(kTaken, std::memory_order_acquire) == kTaken) {
            wanted_.store(true, std::memory_order_relaxed);
            return false;
        }
        wanted_.store(false, std::memory_order_relaxed);
        return true;
    }
    void unlock() DEFT_RELEASE() { state_.store(kCalled, std::memory_order_release); }
    // A thread of the plugin's.
    bool try_lock_spare() DEFT_TRY_ACQUIRE(true) {
        return state_.load(std::memory_order_relaxed) != kTaken &&
               state_.exchange(kTaken, std::memory_order_acquire) != kTaken;
    }
    void unlock_spare() DEFT_RELEASE() { state_.store(kFree, std::memory_order_release); }
    bool wanted() const { return wanted_.load(std::memory_order_relaxed); }
    void forget() { wanted_.store(false, std::memory_order_relaxed); }
    // No call of NCCL's since this was last asked.
    bool left_alone() {
        State called = kCalled;
        return !state_.compare_exchange_strong(called, kFree, std::memory_order_relaxed) &&
               called == kFree;
    }

private:
    enum State : std::uint8_t { kFree, kTaken, kCalled };  // kCalled: free, and NCCL was here
    std::atomic<State> state_{kFree};
    std::atomic<bool> wanted_{false};
};

class ProgressThread;
class IoHelper;

// All but `lock`, `thread` and `helper` only for who holds the lock, where there is a thread.
class ConnectionEnd {
public:
    virtual ~ConnectionEnd() = default;
    virtual void progress(Nanos now) = 0;
    virtual bool busy() const = 0;  // something is on its way
    virtual bool held() const = 0;  // NCCL has a request, and will ask for it
    // A peer may wait for a fence of it, and a job for that peer. Constant; any thread.
    virtual bool fences() const { return false; }
    virtual std::uint64_t moved() const = 0;  // another number whenever something came through
    // The job takes this memory back (deregMr): ends the connection if a message is on its way from
    // or to there, and does not touch it any more.
    virtual void release(const void* /*data*/, std::size_t /*size*/) {}
    // Where memory has to be registered for its paths (Region); any thread, without the lock.
    virtual std::vector<std::shared_ptr<Domain>> domains() const { return {}; }
    // For one that NCCL has closed: there is nothing left to drive it for.
    virtual bool over() const { return true; }

    EndpointLock lock;
    // By the process that this one was forked from: its sockets are not ours, and whoever was
    // inside is not here to give it back.
    bool inherited() const { return made_by_ != ::getpid(); }

    // Set before the first request, constant from then on: the thread that drives it too, and the
    // same once more if calls have to wake it.
    ProgressThread* thread = nullptr;
    IoHelper* helper = nullptr;

private:
    const pid_t made_by_ = ::getpid();
};

// A call of NCCL's into an end: false if a thread is inside, and the call has to come again.
// Not analysed: in a forked child it goes in without the lock.
class Call {
public:
    explicit Call(ConnectionEnd& end) DEFT_NO_THREAD_SAFETY_ANALYSIS
        : end_(end),
          inside_(end.lock.try_lock() || end.inherited()) {}
    ~Call() DEFT_NO_THREAD_SAFETY_ANALYSIS {
        if (inside_) {
            end_.lock.unlock();
        }
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    explicit operator bool() const { return inside_; }

private:
    ConnectionEnd& end_;
    bool inside_;
};

}  // namespace deft::net
