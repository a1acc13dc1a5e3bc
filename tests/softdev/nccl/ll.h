// SPDX-License-Identifier: Apache-2.0
// The LL wire format: every 4 bytes of payload travel with a 4-byte flag in one 8-byte word, so
// that the reader needs no completion from the network. 16-byte lines of two words; the flag
// changes with every slice of a connection.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace softdev::nccl {

inline size_t ll_wire_bytes(size_t payload) {
    return (payload + 7) / 8 * 16;
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

}  // namespace softdev::nccl
