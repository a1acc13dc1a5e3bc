// SPDX-License-Identifier: Apache-2.0
// Events behind a descriptor that can be polled, as a program waits for those of the kernel.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <deque>

#include "base/mutex.h"
#include "base/unique_fd.h"

namespace softdev::verbs {

template <class Event>
class EventQueue {
public:
    EventQueue() : fd_(::eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC)) {}
    int fd() const { return fd_.get(); }

    void push(const Event& event) {
        {
            const deft::MutexLock lock(mutex_);
            events_.push_back(event);
        }
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto written = ::write(fd_.get(), &one, sizeof one);
    }

    /// Waits unless the program has made the descriptor non-blocking. False: errno says why.
    bool pop(Event& event) {
        for (std::uint64_t one = 0; ::read(fd_.get(), &one, sizeof one) == sizeof one;) {
            const deft::MutexLock lock(mutex_);
            if (!events_.empty()) {  // its object may have been destroyed meanwhile
                event = events_.front();
                events_.pop_front();
                return true;
            }
        }
        return false;
    }

    /// Events of an object that goes: nobody must get them any more.
    template <class Predicate>
    void drop(Predicate of_object) {
        const deft::MutexLock lock(mutex_);
        events_.erase(std::remove_if(events_.begin(), events_.end(), of_object), events_.end());
    }

private:
    deft::UniqueFd fd_;
    deft::Mutex mutex_;
    std::deque<Event> events_ DEFT_GUARDED_BY(mutex_);
};

}  // namespace softdev::verbs
