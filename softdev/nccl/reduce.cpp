// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl/reduce.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "softdev/cuda/narrow_float.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace softdev::nccl {
namespace {

constexpr size_t kBlock =
    1024;  // elements; the float copies of a block stay in the first-level cache

// ---- one operation on the arithmetic type
// ---------------------------------------------------------

template <Arithmetic K, class T>
inline T combine(T a, T b) {
    if constexpr (K == Arithmetic::kMax || K == Arithmetic::kMin) {
        const bool take_b = K == Arithmetic::kMax ? b > a : b < a;
        if constexpr (std::is_floating_point_v<T>) {
            return take_b || a != a ? b : a;
        }
        return take_b ? b : a;
    } else if constexpr (std::is_integral_v<T>) {
        // Unsigned, at least 32 bits wide: overflow wraps and is not undefined.
        using Wide = std::conditional_t<(sizeof(T) < 4), uint32_t, std::make_unsigned_t<T>>;
        if constexpr (K == Arithmetic::kProd) {
            return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
        }
        return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
    } else if constexpr (K == Arithmetic::kProd) {
        return a * b;
    } else {
        return a + b;
    }
}

template <Arithmetic K, class T>
void combine_block(T* __restrict out, const T* __restrict a, const T* __restrict b, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        out[i] = combine<K>(a[i], b[i]);
    }
}

// The same where out may be a or b (exactly, not shifted).
template <Arithmetic K, class T>
void combine_over(T* out, const T* a, const T* b, size_t n) {
    if (out != a && out != b) {
        return combine_block<K>(out, a, b, n);
    }
#if !defined(__clang__)
#pragma GCC ivdep
#endif
    for (size_t i = 0; i < n; ++i) {
        out[i] = combine<K>(a[i], b[i]);
    }
}

template <class T>
void combine_kind(Arithmetic kind, T* out, const T* a, const T* b, size_t n) {
    switch (kind) {
        case Arithmetic::kProd:
            return combine_over<Arithmetic::kProd>(out, a, b, n);
        case Arithmetic::kMax:
            return combine_over<Arithmetic::kMax>(out, a, b, n);
        case Arithmetic::kMin:
            return combine_over<Arithmetic::kMin>(out, a, b, n);
        case Arithmetic::kSum:
        case Arithmetic::kPreMulSum:
        case Arithmetic::kSumPostDiv:
            return combine_over<Arithmetic::kSum>(out, a, b, n);
    }
}

template <class T>
T value_of(uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// ---- types that are their own arithmetic type
// -------------------------------------------------------

template <class T>
void reduce_native(const Reduction& op, T* out, T* out2, const T* a, bool pre_a, const T* const* b,
                   int nb, bool post, size_t n) {
    T scaled[kBlock];
    const bool pre = pre_a && op.kind == Arithmetic::kPreMulSum;
    const T scalar = pre ? value_of<T>(op.scalar) : T{};
    for (size_t at = 0; at < n; at += kBlock) {
        const size_t m = std::min(kBlock, n - at);
        const T* left = a + at;
        if (pre) {
            for (size_t i = 0; i < m; ++i) {
                scaled[i] = combine<Arithmetic::kProd>(left[i], scalar);
            }
            left = scaled;
        }
        T* to = out + at;
        for (int k = 0; k < nb; ++k) {
            combine_kind(op.kind, to, left, b[k] + at, m);
            left = to;
        }
        if (left != to) {
            std::memmove(to, left, m * sizeof(T));
        }
        if constexpr (std::is_integral_v<T>) {
            if (post && op.kind == Arithmetic::kSumPostDiv) {
                // Wider than the type: an int8 cannot hold 200 ranks.
                using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
                for (size_t i = 0; i < m; ++i) {
                    to[i] = static_cast<T>(static_cast<Wide>(to[i]) / static_cast<Wide>(op.scalar));
                }
            }
        }
        if (out2 != nullptr) {
            std::memcpy(out2 + at, to, m * sizeof(T));
        }
    }
}

// ---- narrow floating-point types: through float
// ------------------------------------------------------

template <class T>
void widen_block(const T* from, float* to, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        to[i] = widen(from[i]);
    }
}

template <class T>
void narrow_block(const float* from, T* to, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        narrow(from[i], to[i]);
    }
}

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) void widen_f16c(const Half* from, float* to, size_t n) {
    for (size_t i = 0; i < n; i += 8) {
        _mm256_storeu_ps(
            to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
    }
}

__attribute__((target("avx,f16c"))) void narrow_f16c(const float* from, Half* to, size_t n) {
    for (size_t i = 0; i < n; i += 8) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    }
}

bool have_f16c() {
    // clang 14 knows "avx" (which includes that the system saves the registers) but not "f16c".
    static const bool have = [] {
        unsigned a = 0, b = 0, c = 0, d = 0;
        return __builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) != 0 &&
               (c & bit_F16C) != 0;
    }();
    return have;
}

template <>
void widen_block<Half>(const Half* from, float* to, size_t n) {
    const size_t fast = have_f16c() ? n & ~size_t{7} : 0;
    widen_f16c(from, to, fast);
    for (size_t i = fast; i < n; ++i) {
        to[i] = widen(from[i]);
    }
}

template <>
void narrow_block<Half>(const float* from, Half* to, size_t n) {
    const size_t fast = have_f16c() ? n & ~size_t{7} : 0;
    narrow_f16c(from, to, fast);
    for (size_t i = fast; i < n; ++i) {
        narrow(from[i], to[i]);
    }
}
#endif

template <class T>
void reduce_narrow(const Reduction& op, T* out, T* out2, const T* a, bool pre_a, const T* const* b,
                   int nb, size_t n) {
    float left[kBlock];
    float right[kBlock];
    const bool pre = pre_a && op.kind == Arithmetic::kPreMulSum;
    const float scalar = pre ? widen(value_of<T>(op.scalar)) : 0.0f;
    for (size_t at = 0; at < n; at += kBlock) {
        const size_t m = std::min(kBlock, n - at);
        T* to = out + at;
        if (nb == 0 && !pre) {
            std::memmove(to, a + at, m * sizeof(T));
        } else {
            widen_block(a + at, left, m);
            if (pre) {
                for (size_t i = 0; i < m; ++i) {
                    left[i] *= scalar;
                }
                narrow_block(left, to,
                             m);  // the product is rounded to the type before it is summed
            }
            for (int k = 0; k < nb; ++k) {
                if (pre || k > 0) {
                    widen_block(to, left, m);
                }
                widen_block(b[k] + at, right, m);
                combine_kind(op.kind, left, left, right, m);
                narrow_block(left, to, m);
            }
        }
        if (out2 != nullptr) {
            std::memcpy(out2 + at, to, m * sizeof(T));
        }
    }
}

template <class T>
constexpr bool kNarrow = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat> ||
                         std::is_same_v<T, E4m3> || std::is_same_v<T, E5m2>;

template <class T>
void reduce_typed(const Reduction& op, void* out, void* out2, const void* a, bool pre_a,
                  const void* const* b, int nb, bool post, size_t n) {
    const T* inputs[8];
    for (int k = 0; k < nb; ++k) {
        inputs[k] = static_cast<const T*>(b[k]);
    }
    if constexpr (kNarrow<T>) {
        reduce_narrow(op, static_cast<T*>(out), static_cast<T*>(out2), static_cast<const T*>(a),
                      pre_a, inputs, nb, n);
    } else {
        reduce_native(op, static_cast<T*>(out), static_cast<T*>(out2), static_cast<const T*>(a),
                      pre_a, inputs, nb, post, n);
    }
}

template <class T>
uint64_t reciprocal(int nranks) {
    T value;
    if constexpr (kNarrow<T>) {
        narrow(1.0f / static_cast<float>(nranks), value);
    } else {
        value = T(1) / static_cast<T>(nranks);
    }
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}

}  // namespace

size_t type_size(ncclDataType_t type) {
    static const size_t sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < ncclNumTypes ? sizes[type] : 0;
}

const char* type_name(ncclDataType_t type) {
    static const char* const names[ncclNumTypes] = {
        "int8",    "uint8",   "int32",   "uint32",   "int64",      "uint64",
        "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"};
    return type >= 0 && type < ncclNumTypes ? names[type] : "unknown type";
}

const char* op_name(int op) {
    static const char* const names[ncclNumOps] = {"sum", "prod", "max", "min", "avg"};
    return op >= 0 && op < ncclNumOps ? names[op] : "premulsum";
}

Reduction make_reduction(ncclRedOp_t op, ncclDataType_t type, int nranks) {
    Reduction reduction;
    reduction.type = type;
    if (op != ncclAvg) {
        static const Arithmetic kinds[] = {Arithmetic::kSum, Arithmetic::kProd, Arithmetic::kMax,
                                           Arithmetic::kMin};
        reduction.kind = kinds[op];
        return reduction;
    }
    reduction.kind = Arithmetic::kPreMulSum;
    switch (type) {
        case ncclFloat16:
            reduction.scalar = reciprocal<Half>(nranks);
            break;
        case ncclFloat32:
            reduction.scalar = reciprocal<float>(nranks);
            break;
        case ncclFloat64:
            reduction.scalar = reciprocal<double>(nranks);
            break;
        case ncclBfloat16:
            reduction.scalar = reciprocal<Bfloat>(nranks);
            break;
        case ncclFloat8e4m3:
            reduction.scalar = reciprocal<E4m3>(nranks);
            break;
        case ncclFloat8e5m2:
            reduction.scalar = reciprocal<E5m2>(nranks);
            break;
        default:
            reduction.kind = Arithmetic::kSumPostDiv;
            reduction.scalar = static_cast<uint64_t>(nranks);
    }
    return reduction;
}

void reduce(const Reduction& op, void* out, void* out2, const void* a, bool pre_a,
            const void* const* b, int nb, bool post, size_t n) {
    if (a == nullptr) {
        a = b[0];
        ++b;
        --nb;
        pre_a = false;
    }
    switch (op.type) {
        case ncclInt8:
            return reduce_typed<int8_t>(op, out, out2, a, pre_a, b, nb, post, n);
        case ncclUint8:
            return reduce_typed<uint8_t>(op, out, out2, a, pre_a, b, nb, post, n);
        case ncclInt32:
            return reduce_typed<int32_t>(op, out, out2, a, pre_a, b, nb, post, n);
        case ncclUint32:
            return reduce_typed<uint32_t>(op, out, out2, a, pre_a, b, nb, post, n);
        case ncclInt64:
            return reduce_typed<int64_t>(op, out, out2, a, pre_a, b, nb, post, n);
        case ncclUint64:
            return reduce_typed<uint64_t>(op, out, out2, a, pre_a, b, nb, post, n);
        case ncclFloat16:
            return reduce_typed<Half>(op, out, out2, a, pre_a, b, nb, post, n);
        case ncclFloat32:
            return reduce_typed<float>(op, out, out2, a, pre_a, b, nb, post, n);
        case ncclFloat64:
            return reduce_typed<double>(op, out, out2, a, pre_a, b, nb, post, n);
        case ncclBfloat16:
            return reduce_typed<Bfloat>(op, out, out2, a, pre_a, b, nb, post, n);
        case ncclFloat8e4m3:
            return reduce_typed<E4m3>(op, out, out2, a, pre_a, b, nb, post, n);
        case ncclFloat8e5m2:
            return reduce_typed<E5m2>(op, out, out2, a, pre_a, b, nb, post, n);
        case ncclNumTypes:
            break;
    }
}

}  // namespace softdev::nccl
