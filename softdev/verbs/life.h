// SPDX-License-Identifier: Apache-2.0
// Objects that a program destroys stay in memory, marked as dead: so use after destroy is seen.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

#include "base/mutex.h"
#include "softdev/verbs/report.h"

namespace softdev::verbs {

class Life {
public:
    bool alive() const { return mark_.load(std::memory_order_relaxed) == kAlive; }
    /// False, and a report, if the object is dead.
    bool check(const char* call, const char* what) const {
        if (!alive()) {
            report("%s: this %s has been destroyed", call, what);
            return false;
        }
        return true;
    }
    void end() { mark_.store(kDead); }

private:
    static constexpr std::uint32_t kAlive = 0x616c6976;
    static constexpr std::uint32_t kDead = 0x64656164;
    std::atomic<std::uint32_t> mark_{kAlive};
};

/// Takes a destroyed object. The oldest are freed: a program may destroy many in its life.
template <class T>
void bury(std::unique_ptr<T> object) {
    static deft::Mutex mutex;
    static auto* const dead = new std::deque<std::unique_ptr<T>>;
    constexpr std::size_t kept = 1024;
    const deft::MutexLock lock(mutex);
    dead->push_back(std::move(object));
    if (dead->size() > kept) {
        dead->pop_front();
    }
}

}  // namespace softdev::verbs
