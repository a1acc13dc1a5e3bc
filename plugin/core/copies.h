// SPDX-License-Identifier: Apache-2.0
// Where a sender with one path keeps messages that NCCL was told are sent, until they are
// acknowledged.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "plugin/core/request.h"

namespace deft::net {

class Copies {
public:
    static constexpr std::size_t kLone = 512 * 1024;  // for messages of more than kEagerBytes

    explicit Copies(bool any)  // pages that are never used cost nothing
        : bytes_(any ? new std::byte[kSlots * kEagerBytes + kLone] : nullptr) {}

    bool any() const { return bytes_ != nullptr; }
    // Room that this message of up to kEagerBytes always has.
    std::byte* small(std::uint64_t message) const {
        return bytes_.get() + message % kSlots * kEagerBytes;
    }
    // Room for a larger one, or NULL. `oldest`: all older messages are acknowledged, and their room
    // is free. Messages ask in the order of their numbers.
    std::byte* lone(std::uint64_t message, std::size_t size, std::uint64_t oldest) {
        while (first_ != next_ && places_[first_ % kSlots].message < oldest) {
            ++first_;
        }
        std::size_t begin = head_;
        if (first_ == next_) {
            begin = 0;  // what was used last is in the caches
        } else {
            const std::size_t tail = places_[first_ % kSlots].begin;
            if (head_ > tail && head_ + size > kLone) {
                begin = 0;
            }
            if (next_ - first_ == kSlots || (begin <= tail && begin + size > tail)) {
                return nullptr;
            }
        }
        places_[next_++ % kSlots] = {message, begin};
        head_ = begin + size;
        return bytes_.get() + kSlots * kEagerBytes + begin;
    }

private:
    struct Place {
        std::uint64_t message;
        std::size_t begin;
    };
    std::unique_ptr<std::byte[]> bytes_;
    // A ring: places are given and become free in order.
    std::array<Place, kSlots> places_{};
    std::uint64_t first_ = 0;
    std::uint64_t next_ = 0;
    std::size_t head_ = 0;
};

}  // namespace deft::net
