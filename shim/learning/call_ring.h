// SPDX-License-Identifier: Apache-2.0
// The calls on their way from the hooks to the background thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shim/nccl/call_record.h"

namespace deft {

// Bounded queue, many producers, one consumer, no lock and no allocation. When it is full a call is
// lost and counted: the job never waits for its background.
class CallRing {
public:
    static constexpr std::size_t kCapacity = 8192;  // a power of two

    CallRing() {
        for (std::size_t i = 0; i < kCapacity; ++i) {
            cells_[i].sequence.store(i, std::memory_order_relaxed);
        }
    }

    bool push(const CallRecord& record) noexcept {
        std::uint64_t place = tail_.load(std::memory_order_relaxed);
        for (;;) {
            Cell& cell = cells_[place % kCapacity];
            const std::uint64_t sequence = cell.sequence.load(std::memory_order_acquire);
            if (sequence == place) {
                if (tail_.compare_exchange_weak(place, place + 1, std::memory_order_relaxed)) {
                    cell.record = record;
                    cell.sequence.store(place + 1, std::memory_order_release);
                    return true;
                }
            } else if (sequence < place) {
                lost_.fetch_add(1, std::memory_order_relaxed);
                return false;
            } else {
                place = tail_.load(std::memory_order_relaxed);
            }
        }
    }

    bool pop(CallRecord& record) noexcept {
        Cell& cell = cells_[head_ % kCapacity];
        if (cell.sequence.load(std::memory_order_acquire) != head_ + 1) {
            return false;
        }
        record = cell.record;
        cell.sequence.store(head_ + kCapacity, std::memory_order_release);
        ++head_;
        return true;
    }

    std::uint64_t lost() const noexcept { return lost_.load(std::memory_order_relaxed); }

private:
    struct Cell {
        std::atomic<std::uint64_t> sequence{0};
        CallRecord record;
    };
    std::array<Cell, kCapacity> cells_;
    std::atomic<std::uint64_t> tail_{0};
    std::atomic<std::uint64_t> lost_{0};
    std::uint64_t head_ = 0;
};

}  // namespace deft
