// SPDX-License-Identifier: Apache-2.0
// The wire formats whose reader needs no completion from the network. LL: every 4 bytes of payload
// travel with a 4-byte flag in one 8-byte word, 16-byte lines of two words. LL128: 120 bytes of
// payload and an 8-byte flag in a line of 128 bytes, which must become visible as a whole, or in
// ascending order; sent is what a whole warp moves, 16 lines. The flag changes with every slice of
// a connection.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace softdev::nccl {

inline size_t ll_wire_bytes(size_t payload) {
    return (payload + 7) / 8 * 16;
}

inline constexpr size_t kLL128Line = 128;
inline constexpr size_t kLL128Payload = 120;
inline constexpr size_t kLL128Lines = 16;  // of a warp

inline size_t ll128_wire_bytes(size_t payload) {
    constexpr size_t kPayload = kLL128Lines * kLL128Payload;
    return (payload + kPayload - 1) / kPayload * kLL128Lines * kLL128Line;
}

inline uint32_t ll_flag(uint64_t sequence) {
    return static_cast<uint32_t>(sequence % 0xfffffffeu) + 1;  // never 0: fresh buffers are zero
}

inline void ll_encode(std::byte* wire, const std::byte* payload, size_t bytes, uint32_t flag) {
    auto* words = reinterpret_cast<uint64_t*>(wire);
    const size_t full = bytes / 4;
    for (size_t i = 0; i < full; ++i) {
        uint32_t data;
        std::memcpy(&data, payload + i * 4, 4);
        words[i] = (static_cast<uint64_t>(flag) << 32) | data;
    }
    for (size_t i = full; i < ll_wire_bytes(bytes) / 8; ++i) {
        uint32_t data = 0;
        if (i * 4 < bytes) {
            std::memcpy(&data, payload + i * 4, bytes - i * 4);
        }
        words[i] = (static_cast<uint64_t>(flag) << 32) | data;
    }
}

// False when some flag has not arrived yet.
inline bool ll_decode(std::byte* wire, std::byte* payload, size_t bytes, uint32_t flag) {
    auto* words = reinterpret_cast<uint64_t*>(wire);
    const size_t count = ll_wire_bytes(bytes) / 8;
    for (size_t i = 0; i < count; ++i) {
        const uint64_t word = std::atomic_ref<uint64_t>(words[i]).load(std::memory_order_relaxed);
        if (static_cast<uint32_t>(word >> 32) != flag) {
            return false;
        }
        const auto data = static_cast<uint32_t>(word);
        if (i * 4 < bytes) {
            std::memcpy(payload + i * 4, &data, bytes - i * 4 < 4 ? bytes - i * 4 : 4);
        }
    }
    return true;
}

inline void ll128_encode(std::byte* wire, const std::byte* payload, size_t bytes, uint64_t flag) {
    for (size_t at = 0; at < bytes; at += kLL128Payload, wire += kLL128Line) {
        const size_t n = bytes - at < kLL128Payload ? bytes - at : kLL128Payload;
        std::memcpy(wire, payload + at, n);
        std::memset(wire + n, 0, kLL128Payload - n);
        std::memcpy(wire + kLL128Payload, &flag, sizeof flag);
    }
}

// False when some line has not arrived yet.
inline bool ll128_decode(std::byte* wire, std::byte* payload, size_t bytes, uint64_t flag) {
    for (size_t at = 0; at < bytes; at += kLL128Payload, wire += kLL128Line) {
        auto& word = *reinterpret_cast<uint64_t*>(wire + kLL128Payload);
        if (std::atomic_ref<uint64_t>(word).load(std::memory_order_acquire) != flag) {
            return false;
        }
        const size_t n = bytes - at < kLL128Payload ? bytes - at : kLL128Payload;
        std::memcpy(payload + at, wire, n);
    }
    return true;
}

}  // namespace softdev::nccl
