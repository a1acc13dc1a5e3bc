// SPDX-License-Identifier: Apache-2.0
// Of the connections that share their links, one at a time tries to do without a path.
#pragma once

#include <atomic>

#include "plugin/core/clock.h"

namespace deft::net {

// What one connection leaves to the others while it is without a link they use, so that it misses
// nothing itself; were two to find that out at once, nobody would use the link any more. Any
// thread; never waits.
class ProbeToken {
public:
    // True: it is `who`'s, until given, or wanted by another and not asked for by it for
    // kForgotten.
    bool take(const void* who, Nanos now) {
        const void* holder = holder_.load(std::memory_order_relaxed);
        if (holder != who) {
            if (holder != nullptr && now - asked_.load(std::memory_order_relaxed) < kForgotten) {
                return false;
            }
            asked_.store(now, std::memory_order_relaxed);  // before anybody sees a new holder
            return holder_.compare_exchange_strong(holder, who, std::memory_order_relaxed);
        }
        asked_.store(now, std::memory_order_relaxed);
        return true;
    }
    bool has(const void* who) const { return holder_.load(std::memory_order_relaxed) == who; }
    void give(const void* who) {
        holder_.compare_exchange_strong(who, nullptr, std::memory_order_relaxed);
    }

private:
    // Its job computes, or it is a forked child's parent.
    static constexpr Nanos kForgotten = 10 * kSecond;

    std::atomic<const void*> holder_{nullptr};
    std::atomic<Nanos> asked_{0};
};

}  // namespace deft::net
