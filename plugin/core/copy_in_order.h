// SPDX-License-Identifier: Apache-2.0
// Copies into buffers that NCCL's GPUs may be reading already.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace deft::net {

// NCCL's GPUs poll receive buffers of the protocols LL and LL128 for flags, and take a flag for the
// word that what stands before it has come: LL has one in each 8 bytes, LL128 one in the last 8 of
// each 128 (src/device/prims_ll128.h). memcpy() promises no order; glibc's stores the first 64
// bytes last. Both functions store ascending, words whole; `to` is aligned as NCCL's buffers are.

// On any processor: a fence before the last word of each line.
inline void copy_by_lines(std::byte* to, const std::byte* from, std::size_t bytes) {
    constexpr std::size_t kLine = 128;
    constexpr std::size_t kWord = 8;
    while (bytes > 0) {
        const std::size_t left = kLine - reinterpret_cast<std::uintptr_t>(to) % kLine;
        const std::size_t part = left < bytes ? left : bytes;
        const std::size_t data = part == left && part > kWord ? part - kWord : part;
        std::memcpy(to, from, data);
        if (data < part) {
            std::atomic_thread_fence(std::memory_order_release);
            std::memcpy(to + data, from + data, part - data);
        }
        std::atomic_thread_fence(std::memory_order_release);
        to += part;
        from += part;
        bytes -= part;
    }
}

#ifdef __SSE2__
// x86 makes stores visible in the program's order, as long as none is a string operation.
inline void copy_in_order(std::byte* to, const std::byte* from, std::size_t bytes) {
    constexpr std::size_t kStore = sizeof(__m128i);
    for (; bytes >= kStore; to += kStore, from += kStore, bytes -= kStore) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        asm volatile("" ::: "memory");  // else the compiler may make a memcpy() of the loop
    }
    if (bytes >= 8) {
        std::memcpy(to, from, 8);
        asm volatile("" ::: "memory");
        to += 8;
        from += 8;
        bytes -= 8;
    }
    std::memcpy(to, from, bytes);
}
#else
inline void copy_in_order(std::byte* to, const std::byte* from, std::size_t bytes) {
    copy_by_lines(to, from, bytes);
}
#endif

}  // namespace deft::net
