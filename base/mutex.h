// SPDX-License-Identifier: Apache-2.0
// The standard mutexes, as locks that clang's thread-safety analysis knows (libstdc++'s own carry
// no annotations). Same size, same cost. base/monitor.h is the mutex that one can wait on.
#pragma once

#include <mutex>

#include "base/thread_annotations.h"

namespace deft {

class DEFT_CAPABILITY("mutex") Mutex {
public:
    constexpr Mutex() = default;
    Mutex(const Mutex&) = delete;
    Mutex& operator=(const Mutex&) = delete;

    void lock() DEFT_ACQUIRE() { mutex_.lock(); }
    void unlock() DEFT_RELEASE() { mutex_.unlock(); }
    bool try_lock() DEFT_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
    // Tells the analysis that the lock is held, where it has another name for it.
    void assert_held() const DEFT_ASSERT_CAPABILITY(this) {}

private:
    std::mutex mutex_;
};

// The thread that holds it may take it again.
class DEFT_CAPABILITY("mutex") RecursiveMutex {
public:
    RecursiveMutex() = default;
    RecursiveMutex(const RecursiveMutex&) = delete;
    RecursiveMutex& operator=(const RecursiveMutex&) = delete;

    void lock() DEFT_ACQUIRE() { mutex_.lock(); }
    void unlock() DEFT_RELEASE() { mutex_.unlock(); }

private:
    std::recursive_mutex mutex_;
};

// Holds a mutex to the end of the block.
template <class M>
class DEFT_SCOPED_CAPABILITY MutexLock {
public:
    explicit MutexLock(M& mutex) DEFT_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
    // Of a mutex that the caller has got by try_lock().
    MutexLock(M& mutex, std::adopt_lock_t /*taken*/) DEFT_REQUIRES(mutex) : mutex_(mutex) {}
    ~MutexLock() DEFT_RELEASE() { mutex_.unlock(); }
    MutexLock(const MutexLock&) = delete;
    MutexLock& operator=(const MutexLock&) = delete;

private:
    M& mutex_;
};

// The same, but the block may give the mutex back and take it again.
class DEFT_SCOPED_CAPABILITY RelockableMutexLock {
public:
    explicit RelockableMutexLock(Mutex& mutex) DEFT_ACQUIRE(mutex) : mutex_(mutex) {
        mutex_.lock();
    }
    ~RelockableMutexLock() DEFT_RELEASE() {
        if (held_) {
            mutex_.unlock();
        }
    }
    RelockableMutexLock(const RelockableMutexLock&) = delete;
    RelockableMutexLock& operator=(const RelockableMutexLock&) = delete;

    void lock() DEFT_ACQUIRE() {
        mutex_.lock();
        held_ = true;
    }
    void unlock() DEFT_RELEASE() {
        held_ = false;
        mutex_.unlock();
    }

private:
    Mutex& mutex_;
    bool held_ = true;
};

}  // namespace deft
