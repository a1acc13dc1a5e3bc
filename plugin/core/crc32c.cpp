// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace deft::net {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // reflected
// The instruction has a latency of three cycles and one may start in each: three stretches of this
// many bytes are summed side by side, then joined.
constexpr std::size_t kStretch = 2048;

struct Tables {
    std::array<std::array<std::uint32_t, 256>, 8> slice;  // a byte, with 0..7 bytes behind it
    std::array<std::array<std::uint32_t, 256>, 4> shift;  // a byte of a sum, kStretch zeros on

    Tables() {
        for (std::uint32_t i = 0; i < 256; ++i) {
            std::uint32_t sum = i;
            for (int bit = 0; bit < 8; ++bit) {
                sum = sum >> 1 ^ ((sum & 1) != 0 ? kPolynomial : 0);
            }
            slice[0][i] = sum;
        }
        for (std::uint32_t i = 0; i < 256; ++i) {
            for (std::size_t k = 1; k < 8; ++k) {
                slice[k][i] = slice[k - 1][i] >> 8 ^ slice[0][slice[k - 1][i] & 0xff];
            }
        }
        // Sums are linear: it is enough to push each single bit through the zeros.
        std::array<std::uint32_t, 32> bits;
        for (std::size_t bit = 0; bit < 32; ++bit) {
            std::uint32_t sum = std::uint32_t{1} << bit;
            for (std::size_t i = 0; i < kStretch; ++i) {
                sum = sum >> 8 ^ slice[0][sum & 0xff];
            }
            bits[bit] = sum;
        }
        for (std::size_t k = 0; k < 4; ++k) {
            for (std::size_t i = 0; i < 256; ++i) {
                std::uint32_t sum = 0;
                for (std::size_t bit = 0; bit < 8; ++bit) {
                    sum ^= (i >> bit & 1) != 0 ? bits[8 * k + bit] : 0;
                }
                shift[k][i] = sum;
            }
        }
    }
};

const Tables& tables() {
    static const Tables made;
    return made;
}

std::uint64_t load(const unsigned char* from) {
    std::uint64_t value;
    std::memcpy(&value, from, sizeof(value));
    return value;
}

std::uint32_t by_table(std::uint32_t sum, const unsigned char* data, std::size_t size) {
    const auto& slice = tables().slice;
    for (; size >= 8; size -= 8, data += 8) {
        const std::uint64_t word = load(data) ^ sum;  // little-endian, as the wire is
        sum = 0;
        for (std::size_t k = 0; k < 8; ++k) {
            sum ^= slice[7 - k][word >> (8 * k) & 0xff];
        }
    }
    for (; size > 0; --size, ++data) {
        sum = sum >> 8 ^ slice[0][(sum ^ *data) & 0xff];
    }
    return sum;
}

#if defined(__x86_64__) || defined(__aarch64__)

#if defined(__x86_64__)
// clang 22 counts the instruction as a feature of its own.
#define DEFT_CRC_TARGET __attribute__((target("sse4.2,crc32")))
DEFT_CRC_TARGET inline std::uint32_t step8(std::uint32_t sum, std::uint64_t word) {
    return static_cast<std::uint32_t>(_mm_crc32_u64(sum, word));
}
DEFT_CRC_TARGET inline std::uint32_t step1(std::uint32_t sum, unsigned char byte) {
    return _mm_crc32_u8(sum, byte);
}
// Not __builtin_cpu_supports: it brings a constructor of the compiler's own into the library.
bool has_instruction() {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_SSE4_2) != 0;
}
#else
#define DEFT_CRC_TARGET __attribute__((target("+crc")))
DEFT_CRC_TARGET inline std::uint32_t step8(std::uint32_t sum, std::uint64_t word) {
    return __crc32cd(sum, word);
}
DEFT_CRC_TARGET inline std::uint32_t step1(std::uint32_t sum, unsigned char byte) {
    return __crc32cb(sum, byte);
}
bool has_instruction() {
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}
#endif

std::uint32_t past_stretch(const Tables& made, std::uint32_t sum) {
    return made.shift[0][sum & 0xff] ^ made.shift[1][sum >> 8 & 0xff] ^
           made.shift[2][sum >> 16 & 0xff] ^ made.shift[3][sum >> 24];
}

DEFT_CRC_TARGET inline std::uint32_t in_a_row(std::uint32_t sum, const unsigned char* data,
                                              std::size_t size) {
    for (; size >= 8; size -= 8, data += 8) {
        sum = step8(sum, load(data));
    }
    for (; size > 0; --size, ++data) {
        sum = step1(sum, *data);
    }
    return sum;
}

DEFT_CRC_TARGET std::uint32_t by_instruction(std::uint32_t sum, const unsigned char* data,
                                             std::size_t size) {
    if (size < 3 * kStretch) {  // headers: the tables are neither made nor asked for
        return in_a_row(sum, data, size);
    }
    const Tables& made = tables();
    for (; size >= 3 * kStretch; size -= 3 * kStretch, data += 3 * kStretch) {
        std::uint32_t second = 0;
        std::uint32_t third = 0;
        for (std::size_t i = 0; i < kStretch; i += 8) {
            sum = step8(sum, load(data + i));
            second = step8(second, load(data + kStretch + i));
            third = step8(third, load(data + 2 * kStretch + i));
        }
        sum = past_stretch(made, past_stretch(made, sum) ^ second) ^ third;
    }
    return in_a_row(sum, data, size);
}
#endif

}  // namespace

std::uint32_t crc32c_by_table(std::uint32_t before, const void* data, std::size_t size) {
    return ~by_table(~before, static_cast<const unsigned char*>(data), size);
}

std::uint32_t crc32c(std::uint32_t before, const void* data, std::size_t size) {
#if defined(__x86_64__) || defined(__aarch64__)
    static const bool instruction = has_instruction();
    if (instruction) {
        return ~by_instruction(~before, static_cast<const unsigned char*>(data), size);
    }
#endif
    return crc32c_by_table(before, data, size);
}

}  // namespace deft::net
