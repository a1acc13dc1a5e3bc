// SPDX-License-Identifier: Apache-2.0
// The narrow floating-point types of NCCL as bit patterns, with conversions from and to float:
// round to nearest even; fp16 and bf16 overflow to infinity, fp8 saturates.
#pragma once

#include <bit>
#include <cstdint>

namespace softdev::nccl {

struct Half {
    uint16_t bits;
};
struct Bfloat {
    uint16_t bits;
};
struct E4m3 {
    uint8_t bits;
};  // no infinity, 0x7f is NaN, largest 448
struct E5m2 {
    uint8_t bits;
};  // as a half without its low byte, largest finite 57344

// Any format with E exponent bits and M mantissa bits, bias 2^(E-1)-1, subnormals, to float.
template <int E, int M>
inline float widen_bits(uint32_t bits) {
    constexpr uint32_t kBias = (1u << (E - 1)) - 1;
    const uint32_t sign = (bits >> (E + M)) << 31;
    const uint32_t exponent = (bits >> M) & ((1u << E) - 1);
    const uint32_t mantissa = bits & ((1u << M) - 1);
    if (exponent == 0) {
        // Exact: mantissa * 2^(1 - bias - M).
        const float scale = std::bit_cast<float>((127 + 1 - kBias - M) << 23);
        const float value = static_cast<float>(mantissa) * scale;
        return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
    }
    return std::bit_cast<float>(sign | ((exponent + 127 - kBias) << 23) | (mantissa << (23 - M)));
}

// Magnitude bits of the rounded value, for a finite float; may come out above the largest finite
// value.
template <int E, int M>
inline uint32_t narrow_magnitude(uint32_t magnitude) {
    constexpr int kBias = (1 << (E - 1)) - 1;
    const int exponent = static_cast<int>(magnitude >> 23) - 127;
    if (exponent < 1 - kBias) {  // subnormal in the target: the unit is 2^(1 - bias - M)
        // Adding 2^(23 + unit) makes the float addition round at the unit, to nearest even.
        const float magic =
            std::bit_cast<float>(static_cast<uint32_t>(127 + 23 + 1 - kBias - M) << 23);
        const float rounded = std::bit_cast<float>(magnitude) + magic;
        return std::bit_cast<uint32_t>(rounded) - std::bit_cast<uint32_t>(magic);
    }
    constexpr int kShift = 23 - M;
    const uint32_t odd = (magnitude >> kShift) & 1;
    const uint32_t rounded = magnitude + ((1u << (kShift - 1)) - 1) + odd;
    return (rounded >> kShift) - (static_cast<uint32_t>(127 - kBias) << M);
}

inline float widen(Half x) {
    if ((x.bits & 0x7c00) == 0x7c00) {
        const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
        return std::bit_cast<float>(sign | 0x7f800000u |
                                    (static_cast<uint32_t>(x.bits & 0x3ff) << 13));
    }
    return widen_bits<5, 10>(x.bits);
}

inline float widen(Bfloat x) {
    return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

inline float widen(E4m3 x) {
    if ((x.bits & 0x7f) == 0x7f) {
        return std::bit_cast<float>(0x7fc00000u | (static_cast<uint32_t>(x.bits & 0x80) << 24));
    }
    return widen_bits<4, 3>(x.bits);
}

inline float widen(E5m2 x) {
    return widen(Half{static_cast<uint16_t>(x.bits << 8)});
}

inline void narrow(float value, Half& out) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 16) & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    uint32_t narrow_bits = 0x7c00;
    if (magnitude > 0x7f800000) {
        narrow_bits = 0x7fff;
    } else if (magnitude < 0x47800000) {  // below 65536
        narrow_bits = narrow_magnitude<5, 10>(magnitude);
    }
    out.bits = static_cast<uint16_t>(sign | narrow_bits);
}

inline void narrow(float value, Bfloat& out) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    out.bits = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : rounded);
}

inline void narrow(float value, E4m3& out) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 24) & 0x80;
    const uint32_t magnitude = bits & 0x7fffffff;
    uint32_t narrow_bits = 0x7e;  // 448
    if (magnitude > 0x7f800000) {
        narrow_bits = 0x7f;
    } else if (magnitude < 0x43e00000) {  // below 448
        narrow_bits = narrow_magnitude<4, 3>(magnitude);
    }
    out.bits = static_cast<uint8_t>(sign | narrow_bits);
}

inline void narrow(float value, E5m2& out) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 24) & 0x80;
    const uint32_t magnitude = bits & 0x7fffffff;
    uint32_t narrow_bits = 0x7b;  // 57344
    if (magnitude > 0x7f800000) {
        narrow_bits = 0x7f;
    } else if (magnitude < 0x47600000) {  // below 57344
        narrow_bits = narrow_magnitude<5, 2>(magnitude);
    }
    out.bits = static_cast<uint8_t>(sign | narrow_bits);
}

}  // namespace softdev::nccl
