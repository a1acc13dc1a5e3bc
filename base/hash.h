// SPDX-License-Identifier: Apache-2.0
// FNV-1a (draft-eastlake-fnv): names and checksums, no protection against intent. Each step is
// one-to-one in the hash so far: one byte that differs is always found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace deft {

inline constexpr std::uint32_t kFnv32Basis = 0x811c9dc5u;
inline constexpr std::uint64_t kFnv64Basis = 0xcbf29ce484222325u;

// `hash`: of what comes before.
inline std::uint32_t fnv32(std::span<const std::byte> data, std::uint32_t hash = kFnv32Basis) {
    for (const std::byte byte : data) {
        hash = (hash ^ std::to_integer<std::uint32_t>(byte)) * 0x01000193u;
    }
    return hash;
}
inline std::uint64_t fnv64(std::span<const std::byte> data, std::uint64_t hash = kFnv64Basis) {
    for (const std::byte byte : data) {
        hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3u;
    }
    return hash;
}
inline std::uint64_t fnv64(const void* data, std::size_t size, std::uint64_t hash = kFnv64Basis) {
    return fnv64({static_cast<const std::byte*>(data), size}, hash);
}
// With a number's eight bytes behind what comes before.
inline std::uint64_t fnv64_mix(std::uint64_t hash, std::uint64_t value) {
    return fnv64(&value, sizeof(value), hash);
}

}  // namespace deft
