// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/copy_in_order.h"

#include <atomic>
#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace deft::net {
namespace {

constexpr std::size_t kLine = 128;
constexpr std::size_t kWord = 8;

// A fence before the last word of each line.
void by_fences(std::byte* to, const std::byte* from, std::size_t bytes) {
    while (bytes > 0) {
        const std::size_t left = kLine - reinterpret_cast<std::uintptr_t>(to) % kLine;
        const std::size_t part = left < bytes ? left : bytes;
        const std::size_t data = part == left && part > kWord ? part - kWord : part;
        std::memcpy(to, from, data);
        std::atomic_thread_fence(std::memory_order_release);
        if (data < part) {
            std::memcpy(to + data, from + data, part - data);
            std::atomic_thread_fence(std::memory_order_release);
        }
        to += part;
        from += part;
        bytes -= part;
    }
}

#ifdef __x86_64__

// x86 makes stores visible in the program's order, as long as none is a string operation. The
// compiler may not reorder them, nor make a memcpy() of a loop.
#define DEFT_STORED asm volatile("" ::: "memory")

void by_sse(std::byte* to, const std::byte* from, std::size_t bytes) {
    constexpr std::size_t kStore = sizeof(__m128i);
    for (; bytes >= kStore; to += kStore, from += kStore, bytes -= kStore) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        DEFT_STORED;
    }
    if (bytes >= kWord) {
        std::memcpy(to, from, kWord);
        DEFT_STORED;
        to += kWord;
        from += kWord;
        bytes -= kWord;
    }
    std::memcpy(to, from, bytes);
}

// Half as many stores. Whether all 32 bytes of one are seen at once is not promised, so that the
// last 32 of a line are stored in two.
__attribute__((target("avx"))) void by_avx(std::byte* to, const std::byte* from,
                                           std::size_t bytes) {
    constexpr std::size_t kStore = sizeof(__m256i);
    for (; bytes >= kLine; to += kLine, from += kLine, bytes -= kLine) {
        for (std::size_t at = 0; at < kLine - kStore; at += kStore) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at),
                                _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at)));
            DEFT_STORED;
        }
        for (std::size_t at = kLine - kStore; at < kLine; at += sizeof(__m128i)) {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to + at),
                             _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
            DEFT_STORED;
        }
    }
    by_sse(to, from, bytes);
}

// Not __builtin_cpu_supports: it brings a constructor of the compiler's own into the library.
bool has_avx() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_AVX) == 0 || (c & bit_OSXSAVE) == 0) {
        return false;
    }
    std::uint32_t enabled = 0, high = 0;  // what the system saves: 2 SSE's registers, 4 AVX's
    asm volatile("xgetbv" : "=a"(enabled), "=d"(high) : "c"(0));
    return (enabled & 6U) == 6U;
}

#endif

}  // namespace

bool copy_in_order(OrderedCopy way, std::byte* to, const std::byte* from,
                   std::size_t bytes) noexcept {
    switch (way) {
        case OrderedCopy::Avx:
#ifdef __x86_64__
            if (has_avx()) {
                by_avx(to, from, bytes);
                return true;
            }
#endif
            return false;
        case OrderedCopy::Sse:
#ifdef __x86_64__
            by_sse(to, from, bytes);
            return true;
#else
            return false;
#endif
        case OrderedCopy::Fences:
            by_fences(to, from, bytes);
            return true;
    }
    return false;
}

void copy_in_order(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
#ifdef __x86_64__
    static const bool avx = has_avx();
    if (avx && bytes >= kLine) {
        by_avx(to, from, bytes);
    } else {
        by_sse(to, from, bytes);
    }
#else
    by_fences(to, from, bytes);
#endif
}

}  // namespace deft::net
