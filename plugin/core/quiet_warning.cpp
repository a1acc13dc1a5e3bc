// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/quiet_warning.h"

#include <array>
#include <atomic>
#include <cstdint>

namespace deft::net {
namespace {

constexpr std::size_t kPlaces = 256;

}  // namespace

bool may_warn(const char* about, Nanos now, Nanos pause) {
    static std::array<std::atomic<Nanos>, kPlaces> next{};
    std::uint64_t hash = 14695981039346656037U;  // FNV-1a
    for (; *about != '\0'; ++about) {
        hash = (hash ^ static_cast<unsigned char>(*about)) * 1099511628211U;
    }
    std::atomic<Nanos>& place = next[hash % kPlaces];
    Nanos due = place.load(std::memory_order_relaxed);
    return now >= due && place.compare_exchange_strong(due, now + pause);
}

}  // namespace deft::net
