// SPDX-License-Identifier: Apache-2.0
// What the device's thread is to do later. Under Nic::mutex.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

namespace softdev::verbs {

using Clock = std::chrono::steady_clock;

class Timers {
public:
    /// Returns a number to cancel it by; never 0.
    std::uint64_t at(Clock::time_point when, std::function<void()> action) {
        actions_.emplace(std::pair(when, ++last_), std::move(action));
        return last_;
    }
    void cancel(std::uint64_t id) {
        for (auto entry = actions_.begin(); entry != actions_.end(); ++entry) {
            if (entry->first.second == id) {
                actions_.erase(entry);
                return;
            }
        }
    }
    void run_due() {
        const auto now = Clock::now();
        while (!actions_.empty() && actions_.begin()->first.first <= now) {
            const auto action = std::move(actions_.begin()->second);
            actions_.erase(actions_.begin());
            action();
        }
    }
    /// -1: there is none.
    int milliseconds_to_next() const {
        if (actions_.empty()) {
            return -1;
        }
        const auto wait = std::chrono::ceil<std::chrono::milliseconds>(
            actions_.begin()->first.first - Clock::now());
        return wait.count() < 0 ? 0 : static_cast<int>(wait.count());
    }

private:
    std::map<std::pair<Clock::time_point, std::uint64_t>, std::function<void()>> actions_;
    std::uint64_t last_ = 0;
};

}  // namespace softdev::verbs
