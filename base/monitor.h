// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <time.h>
#include <chrono>

#include "base/thread_annotations.h"

namespace deft {

// A mutex with a condition on the steady clock. Not std::condition_variable: its timed wait needs a
// newer C library than the product may ask for.
class DEFT_CAPABILITY("monitor") Monitor {
public:
    Monitor() {
        pthread_condattr_t attributes;
        ::pthread_condattr_init(&attributes);
        ::pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        ::pthread_cond_init(&condition_, &attributes);
        ::pthread_condattr_destroy(&attributes);
    }
    Monitor(const Monitor&) = delete;
    ~Monitor() {
        ::pthread_cond_destroy(&condition_);
        ::pthread_mutex_destroy(&mutex_);
    }

    class DEFT_SCOPED_CAPABILITY Lock {
    public:
        explicit Lock(Monitor& monitor) DEFT_ACQUIRE(monitor) : monitor_(monitor) {
            ::pthread_mutex_lock(&monitor_.mutex_);
        }
        ~Lock() DEFT_RELEASE() { ::pthread_mutex_unlock(&monitor_.mutex_); }
        Lock(const Lock&) = delete;
        // False once the deadline has passed.
        bool wait_until(std::chrono::steady_clock::time_point deadline) {
            const auto since = deadline.time_since_epoch();
            const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
            timespec when{};
            when.tv_sec = static_cast<time_t>(seconds.count());
            when.tv_nsec = static_cast<long>(
                std::chrono::duration_cast<std::chrono::nanoseconds>(since - seconds).count());
            return ::pthread_cond_timedwait(&monitor_.condition_, &monitor_.mutex_, &when) == 0;
        }
        void notify() { ::pthread_cond_broadcast(&monitor_.condition_); }

    private:
        Monitor& monitor_;
    };

private:
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition_;
};

}  // namespace deft
