// SPDX-License-Identifier: Apache-2.0
// What a communicator's calls have been, in one number: ranks that have made the same calls in the
// same order and in the same way have the same. Nothing is tuned before all ranks have compared
// theirs, because a rank that has missed a call would change its way at another call than all
// (docs/tuner.md).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/hash.h"
#include "shim/tuning/table.h"

namespace deft::tuning {

// A call, and all that were before.
struct Counted {
    std::uint64_t ordinal = 0;  // of the communicator's calls that may be tuned
    std::uint64_t history = 0;  // with this call
};

// How the job has made a call. NCCL chooses for calls in groups and for those that a graph keeps,
// so ranks that make the same call in different ways would carry it out differently.
enum class Made : std::uint8_t { Alone, Grouped, Captured };

// `history`: of the calls before; 0 of none.
inline std::uint64_t history_with(std::uint64_t history, const Key& key,
                                  Made made = Made::Alone) noexcept {
    const auto kind =
        static_cast<std::uint64_t>(made) << 48 | static_cast<std::uint64_t>(key.function) << 40 |
        static_cast<std::uint64_t>(key.type) << 32 | static_cast<std::uint32_t>(key.op);
    return fnv64_mix(fnv64_mix(history, kind), key.count);
}

// Histories of some of the latest calls, for who asks later. The thread of the communicator's calls
// notes them; any thread reads. Neither waits.
class CallHistory {
public:
    static constexpr std::uint64_t kStride = 32;  // one call of so many is kept
    static constexpr std::size_t kMarks = 64;
    static constexpr std::uint64_t kCalls = kStride * kMarks;  // so far back

    // The newest call that is kept among those before this one.
    static std::uint64_t mark_before(std::uint64_t ordinal) { return ordinal / kStride * kStride; }

    void note(const Counted& call) noexcept {
        if (call.ordinal % kStride != 0) {
            return;
        }
        Mark& mark = at(call.ordinal);
        mark.ordinal.store(kNone, std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_release);
        mark.history.store(call.history, std::memory_order_relaxed);
        mark.ordinal.store(call.ordinal, std::memory_order_release);
    }
    // False: that call has not been made yet, is not kept, or not any more.
    bool find(std::uint64_t ordinal, std::uint64_t& history) const noexcept {
        const Mark& mark = at(ordinal);
        const bool before = mark.ordinal.load(std::memory_order_acquire) == ordinal;
        history = mark.history.load(std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_acquire);
        return before && mark.ordinal.load(std::memory_order_relaxed) == ordinal;
    }

private:
    static constexpr std::uint64_t kNone = ~std::uint64_t{0};
    struct Mark {
        std::atomic<std::uint64_t> ordinal{kNone};
        std::atomic<std::uint64_t> history{0};
    };
    Mark& at(std::uint64_t ordinal) { return marks_[ordinal / kStride % kMarks]; }
    const Mark& at(std::uint64_t ordinal) const { return marks_[ordinal / kStride % kMarks]; }

    std::array<Mark, kMarks> marks_;
};

}  // namespace deft::tuning
