// SPDX-License-Identifier: Apache-2.0
#include "softdev/cuda/executor_kernels.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "softdev/cuda/bulk.h"
#include "softdev/cuda/narrow_float.h"

namespace softdev {
namespace {

struct F32 {
    using Stored = float;
    using Number = float;
    static float load(float x) { return x; }
    static float store(float x) { return x; }
};
struct F64 {
    using Stored = double;
    using Number = double;
    static double load(double x) { return x; }
    static double store(double x) { return x; }
};
template <typename Narrow>
struct Half16 {
    using Stored = Narrow;
    using Number = float;
    static float load(Narrow x) { return nccl::widen(x); }
    static Narrow store(float x) {
        Narrow out;
        nccl::narrow(x, out);
        return out;
    }
};
using Bf16 = Half16<nccl::Bfloat>;
using F16 = Half16<nccl::Half>;

template <typename T>
T argument(void** args, int i) {
    T value;
    std::memcpy(&value, args[i], sizeof value);
    return value;
}

// A GPU does these at the speed of its memory. Here they run on the cores that also carry the
// bytes, so they are written to be vectorised, with AVX2 where the machine has it. That changes no
// bit: no multiply-add is fused (-ffp-contract=off, and AVX2 brings none along).
#if defined(__x86_64__)
#define SOFTDEV_INLINE __attribute__((always_inline))
template <typename Loop>
__attribute__((target("avx2"))) void run_wide(const Loop& loop) {
    loop();
}
template <typename Loop>
void run(const Loop& loop) {
    static const bool have = __builtin_cpu_supports("avx2");
    have ? run_wide(loop) : loop();
}
#else
#define SOFTDEV_INLINE
template <typename Loop>
void run(const Loop& loop) {
    loop();
}
#endif

constexpr unsigned long long kPiece = 1024;  // elements on their way to memory

template <typename E>
void accumulate(const unsigned*, const unsigned*, void** args) {
    using Stored = typename E::Stored;
    auto* to = argument<Stored*>(args, 0);
    const auto* from = argument<const Stored*>(args, 1);
    const auto factor = static_cast<typename E::Number>(argument<double>(args, 2));
    const auto count = argument<unsigned long long>(args, 3);
    run([=]() SOFTDEV_INLINE {
        for (unsigned long long i = 0; i < count; ++i) {
            to[i] = E::store(factor * E::load(to[i]) + E::load(from[i]));
        }
    });
}

template <typename E>
struct Combination {
    using Stored = typename E::Stored;
    using Number = typename E::Number;
    const Stored *to, *x, *y, *z;
    Number a, b, c;
    bool add;

    // Elements [begin, begin + n) of it.
    SOFTDEV_INLINE void write(Stored* out, unsigned long long begin, unsigned long long n) const {
        for (unsigned long long i = 0; i < n; ++i) {
            Number sum = a * E::load(x[begin + i]);
            if (y != nullptr) {
                sum = sum + b * E::load(y[begin + i]);
            }
            if (z != nullptr) {
                sum = sum + c * E::load(z[begin + i]);
            }
            if (add) {
                sum = E::load(to[begin + i]) + sum;
            }
            out[i] = E::store(sum);
        }
    }
};

template <typename E>
void combine(const unsigned*, const unsigned*, void** args) {
    using Stored = typename E::Stored;
    using Number = typename E::Number;
    auto* to = argument<Stored*>(args, 0);
    const auto* x = argument<const Stored*>(args, 1);
    const auto* y = argument<const Stored*>(args, 2);
    const auto* z = argument<const Stored*>(args, 3);
    const auto a = static_cast<Number>(argument<double>(args, 4));
    const auto b = static_cast<Number>(argument<double>(args, 5));
    const auto c = static_cast<Number>(argument<double>(args, 6));
    const auto count = argument<unsigned long long>(args, 7);
    const bool add = argument<unsigned>(args, 8) != 0;
    const Combination<E> sums{to, x, y, z, a, b, c, add};
    if (add || count * sizeof(Stored) < kBulk) {
        run([=]() SOFTDEV_INLINE { sums.write(to, 0, count); });
        return;
    }
    run([=]() SOFTDEV_INLINE {
        alignas(64) Stored block[kPiece];
        for (unsigned long long begin = 0; begin < count; begin += kPiece) {
            const unsigned long long n = std::min(kPiece, count - begin);
            sums.write(block, begin, n);
            bulk_piece(to + begin, block, n * sizeof(Stored));
        }
    });
    bulk_done();
}

// Many sums side by side, as the threads of a GPU have theirs: one would be a chain of additions
// that each wait for the one before. GCC's vector types, which clang knows too: neither compiler
// makes them of a loop.
using Doubles = double __attribute__((vector_size(32)));
using Masks = long long __attribute__((vector_size(32)));
constexpr unsigned long long kBlock = 512;  // elements; stays in the first-level cache
constexpr unsigned kWidth = 4;
constexpr unsigned kSums = 4;  // vectors

struct Squares {
    double sum = 0;
    unsigned long long not_finite = 0;
};

template <typename E>
SOFTDEV_INLINE inline void add_squares(const typename E::Stored* x, unsigned long long count,
                                       Squares& squares) {
    Doubles sums[kSums] = {};
    Masks bad[kSums] = {};
    alignas(64) double wide[kBlock];
    for (unsigned long long begin = 0; begin < count; begin += kBlock) {
        const unsigned long long n = std::min(kBlock, count - begin);
        for (unsigned long long i = 0; i < n; ++i) {
            wide[i] = E::load(x[begin + i]);
        }
        std::fill(wide + n, wide + kBlock, 0.0);
        for (unsigned i = 0; i < kBlock; i += kWidth * kSums) {
            for (unsigned k = 0; k < kSums; ++k) {
                Doubles value;
                std::memcpy(&value, wide + i + k * kWidth, sizeof value);
                const Masks finite = value - value == 0;  // all bits or none
                sums[k] += (Doubles)((Masks)(value * value) & finite);
                bad[k] += finite + 1;
            }
        }
    }
    for (unsigned k = 0; k < kSums; ++k) {
        for (unsigned i = 0; i < kWidth; ++i) {
            squares.sum += sums[k][i];
            squares.not_finite += static_cast<unsigned long long>(bad[k][i]);
        }
    }
}

template <typename E>
void square(const unsigned*, const unsigned*, void** args) {
    const auto* x = argument<const typename E::Stored*>(args, 0);
    const auto count = argument<unsigned long long>(args, 1);
    Squares squares;
    run([x, count, &squares]() SOFTDEV_INLINE { add_squares<E>(x, count, squares); });
    if (squares.sum != 0) {
        *argument<double*>(args, 2) += squares.sum;
    }
    if (squares.not_finite != 0) {
        *argument<unsigned long long*>(args, 3) += squares.not_finite;
    }
}

template <typename E>
void correlate(const unsigned*, const unsigned*, void** args) {
    using Stored = typename E::Stored;
    const auto* x = argument<const Stored*>(args, 0);
    const auto* y = argument<const Stored*>(args, 1);
    const auto* z = argument<const Stored*>(args, 2);
    auto* keep = argument<Stored*>(args, 3);
    const auto count = argument<unsigned long long>(args, 4);
    double sums[5] = {};
    for (unsigned long long i = 0; i < count; ++i) {
        const double a = E::load(x[i]);
        const double b = y != nullptr ? static_cast<double>(E::load(y[i])) : 0;
        const double c = z != nullptr ? static_cast<double>(E::load(z[i])) : 0;
        sums[0] += a * a;
        sums[1] += a * b;
        sums[2] += b * b;
        sums[3] += a * c;
        sums[4] += c * c;
        keep[i] = x[i];
    }
    for (int n = 0; n < 5 && count > 0; ++n) {
        argument<double*>(args, 5)[n] += sums[n];
    }
}

template <typename E>
std::size_t bytes(void** args, int i) {
    return argument<unsigned long long>(args, i) * sizeof(typename E::Stored);
}

template <typename E>
std::size_t accumulate_accesses(const unsigned*, const unsigned*, void** args,
                                softdev_access_t* out, std::size_t max) {
    if (max < 2 || bytes<E>(args, 3) == 0) {
        return 0;
    }
    out[0] = {argument<void*>(args, 0), bytes<E>(args, 3), 1};
    out[1] = {argument<void*>(args, 1), bytes<E>(args, 3), 0};
    return 2;
}

// Four arrays of `count` elements, any of which may be null; the kernel writes one.
template <typename E>
std::size_t array_accesses(void** args, int count, int written, softdev_access_t* out,
                           std::size_t max) {
    std::size_t n = 0;
    for (int i = 0; i < 4 && n < max; ++i) {
        void* const pointer = argument<void*>(args, i);
        if (pointer != nullptr && bytes<E>(args, count) != 0) {
            out[n++] = {pointer, bytes<E>(args, count), i == written};
        }
    }
    return n;
}

template <typename E>
std::size_t combine_accesses(const unsigned*, const unsigned*, void** args, softdev_access_t* out,
                             std::size_t max) {
    return array_accesses<E>(args, 7, 0, out, max);
}

template <typename E>
std::size_t square_accesses(const unsigned*, const unsigned*, void** args, softdev_access_t* out,
                            std::size_t max) {
    if (max < 3 || bytes<E>(args, 1) == 0) {
        return 0;
    }
    out[0] = {argument<void*>(args, 0), bytes<E>(args, 1), 0};
    out[1] = {argument<void*>(args, 2), sizeof(double), 1};
    out[2] = {argument<void*>(args, 3), sizeof(unsigned long long), 1};
    return 3;
}

template <typename E>
std::size_t correlate_accesses(const unsigned*, const unsigned*, void** args, softdev_access_t* out,
                               std::size_t max) {
    std::size_t n = array_accesses<E>(args, 4, 3, out, max);
    if (n > 0 && n < max) {
        out[n++] = {argument<void*>(args, 5), 5 * sizeof(double), 1};
    }
    return n;
}

template <typename E>
void add(std::vector<std::shared_ptr<Kernel>>& all, const std::string& ending) {
    const auto one = [&all, &ending](const char* name, softdev_kernel_t fn,
                                     softdev_kernel_accesses_t accesses,
                                     std::vector<std::size_t> sizes) {
        auto kernel = std::make_shared<Kernel>();
        kernel->name = name + ending;
        kernel->fn = fn;
        kernel->accesses = accesses;
        kernel->sizes = std::move(sizes);
        all.push_back(std::move(kernel));
    };
    one("deft_accumulate_", accumulate<E>, accumulate_accesses<E>, {8, 8, 8, 8});
    one("deft_combine_", combine<E>, combine_accesses<E>, {8, 8, 8, 8, 8, 8, 8, 8, 4});
    one("deft_square_", square<E>, square_accesses<E>, {8, 8, 8, 8});
    one("deft_correlate_", correlate<E>, correlate_accesses<E>, {8, 8, 8, 8, 8, 8});
}

}  // namespace

std::vector<std::shared_ptr<Kernel>> executor_kernels() {
    std::vector<std::shared_ptr<Kernel>> all;
    add<F32>(all, "f32");
    add<F64>(all, "f64");
    add<Bf16>(all, "bf16");
    add<F16>(all, "f16");
    return all;
}

}  // namespace softdev
