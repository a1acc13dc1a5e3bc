// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/quiet_warning.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/hash.h"

namespace deft::net {
namespace {

constexpr std::size_t kPlaces = 512;
constexpr Nanos kStep = 100 * kMillisecond;  // of the times in the table

}  // namespace

bool may_warn(const char* about, Nanos now, Nanos pause) {
    // What it is about (its hash, above) and the step from which on it may be said again.
    static std::array<std::atomic<std::uint64_t>, kPlaces> table{};
    const std::uint32_t subject = fnv32(std::as_bytes(std::span(about, std::strlen(about))));
    const auto step = static_cast<std::uint32_t>(now / kStep);
    const std::uint64_t entry =
        std::uint64_t{subject} << 32 | static_cast<std::uint32_t>((now + pause) / kStep);
    for (;;) {
        std::atomic<std::uint64_t>* place = nullptr;  // its the first that is free
        std::uint64_t seen = 0;
        for (std::atomic<std::uint64_t>& each : table) {
            std::uint64_t value = each.load(std::memory_order_relaxed);
            const bool due = static_cast<std::uint32_t>(value) <= step;
            if (value >> 32 == subject && !due) {
                return false;
            }
            if (due && place == nullptr) {
                place = &each;
                seen = value;
            }
        }
        if (place == nullptr) {
            return false;
        }
        if (place->compare_exchange_strong(seen, entry, std::memory_order_relaxed)) {
            return true;
        }
    }
}

}  // namespace deft::net
