// SPDX-License-Identifier: Apache-2.0
#include "softdev/cuda/bulk.h"

#include <cstdint>
#include <cstring>

// Sanitizers see no streaming stores; they see memcpy.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if defined(__has_feature)
#if !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)
#define SOFTDEV_STREAMING 1
#endif
#else
#define SOFTDEV_STREAMING 1
#endif
#endif

#if defined(SOFTDEV_STREAMING)
#include <immintrin.h>
#endif

namespace softdev {

#if defined(SOFTDEV_STREAMING)
namespace {

constexpr std::size_t kLine = 64;

__attribute__((target("avx2"))) void stream(std::byte* to, const std::byte* from,
                                            std::size_t lines) {
    for (std::size_t at = 0; at < lines * kLine; at += kLine) {
        const auto* source = reinterpret_cast<const __m256i*>(from + at);
        auto* target = reinterpret_cast<__m256i*>(to + at);
        const __m256i first = _mm256_loadu_si256(source);
        const __m256i second = _mm256_loadu_si256(source + 1);
        _mm256_stream_si256(target, first);
        _mm256_stream_si256(target + 1, second);
    }
}

bool have_avx2() {
    static const bool have = __builtin_cpu_supports("avx2");
    return have;
}

}  // namespace

void bulk_piece(void* to, const void* from, std::size_t bytes) {
    if (!have_avx2()) {
        std::memcpy(to, from, bytes);
        return;
    }
    auto* target = static_cast<std::byte*>(to);
    const auto* source = static_cast<const std::byte*>(from);
    const std::size_t behind = reinterpret_cast<std::uintptr_t>(to) % kLine;
    const std::size_t head = behind == 0 ? 0 : kLine - behind;
    if (bytes < head + kLine) {
        std::memcpy(to, from, bytes);
        return;
    }
    const std::size_t lines = (bytes - head) / kLine;
    const std::size_t tail = head + lines * kLine;
    std::memcpy(target, source, head);
    stream(target + head, source + head, lines);
    std::memcpy(target + tail, source + tail, bytes - tail);
}

void bulk_done() {
    _mm_sfence();
}
#else
void bulk_piece(void* to, const void* from, std::size_t bytes) {
    std::memcpy(to, from, bytes);
}

void bulk_done() {}
#endif

void bulk_copy(void* to, const void* from, std::size_t bytes) {
    const auto a = reinterpret_cast<std::uintptr_t>(to);
    const auto b = reinterpret_cast<std::uintptr_t>(from);
    const bool apart = a > b ? a - b >= bytes : b - a >= bytes;
    if (bytes < kBulk || !apart) {
        std::memmove(to, from, bytes);
        return;
    }
    bulk_piece(to, from, bytes);
    bulk_done();
}

}  // namespace softdev
