// SPDX-License-Identifier: Apache-2.0
// Of the communicators that a process has on a device one at a time is tried or compared: each
// would take the other's slow calls for its own. A turn decides about answers to the leader alone,
// never about how a call is carried out, so it may go by this process's clock.
#pragma once

#include <cstdint>

#include "base/mutex.h"

namespace deft::tuning {

// Any thread; waits for nobody. `who` is only compared. Times are of one clock, in nanoseconds.
class Turn {
public:
    static Turn& of(int device);

    bool free_for(const void* who, std::int64_t now_ns) const noexcept {
        const MutexLock lock(mutex_);
        return open_to(who, now_ns);
    }
    // Until it is left. A job may stop to make calls in the middle of a trial: not longer than
    // this.
    bool take(const void* who, std::int64_t now_ns) noexcept {
        const MutexLock lock(mutex_);
        if (!open_to(who, now_ns)) {
            return false;
        }
        holder_ = who;
        until_ns_ = now_ns + kLongest;
        return true;
    }
    // The leader may go on with the next order, which follows soon.
    void pause(const void* who, std::int64_t now_ns) noexcept {
        const MutexLock lock(mutex_);
        if (holder_ == who) {
            until_ns_ = now_ns + kPause;
        }
    }
    void leave(const void* who) noexcept {
        const MutexLock lock(mutex_);
        if (holder_ == who) {
            holder_ = nullptr;
        }
    }

    static constexpr std::int64_t kPause = 5'000'000'000;
    static constexpr std::int64_t kLongest = 600'000'000'000;

private:
    bool open_to(const void* who, std::int64_t now_ns) const noexcept DEFT_REQUIRES(mutex_) {
        return holder_ == nullptr || holder_ == who || now_ns >= until_ns_;
    }

    mutable Mutex mutex_;
    const void* holder_ DEFT_GUARDED_BY(mutex_) = nullptr;
    std::int64_t until_ns_ DEFT_GUARDED_BY(mutex_) = 0;
};

}  // namespace deft::tuning
