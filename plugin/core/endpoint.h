// SPDX-License-Identifier: Apache-2.0
// One end of a connection, as those see it who drive it: NCCL's thread and, where the operator
// wants them, helper threads (core/io_threads.h).
#pragma once

#include <atomic>
#include <cstdint>

#include "plugin/core/clock.h"

namespace deft::net {

// Who is inside an endpoint. Nobody ever waits for it: whoever does not get it comes again.
class Turn {
public:
    // NCCL's thread; having been refused, it gets the next turn.
    bool take() {
        if (taken_.exchange(true, std::memory_order_acquire)) {
            wanted_.store(true, std::memory_order_relaxed);
            return false;
        }
        wanted_.store(false, std::memory_order_relaxed);
        return true;
    }
    // A helper.
    bool take_spare() {
        return !taken_.load(std::memory_order_relaxed) &&
               !taken_.exchange(true, std::memory_order_acquire);
    }
    void give() { taken_.store(false, std::memory_order_release); }
    bool wanted() const { return wanted_.load(std::memory_order_relaxed); }
    void forget() { wanted_.store(false, std::memory_order_relaxed); }

private:
    std::atomic<bool> taken_{false};
    std::atomic<bool> wanted_{false};
};

class IoHelper;

// All but `turn` and `helper` only for who has the turn, where there is a helper.
class Endpoint {
public:
    virtual void progress(Nanos now) = 0;
    virtual bool busy() const = 0;            // something is on its way
    virtual std::uint64_t moved() const = 0;  // another number whenever something came through

    Turn turn;
    IoHelper* helper = nullptr;  // set before the first request, constant from then on

protected:
    ~Endpoint() = default;
};

}  // namespace deft::net
