// SPDX-License-Identifier: Apache-2.0
// Kernels of the executor. regenerate_ptx.sh turns them into kernels_ptx.inc, which is committed: a
// build of the library needs no nvcc. Compiled without fused multiply-add and without the toolkit's
// half-precision headers, so that old drivers load the PTX and the CPU twins
// (softdev/cuda/executor_kernels.cpp) give the same bits.

typedef unsigned long long u64;
typedef unsigned short u16;

struct F32 {
    typedef float stored;
    typedef float number;
    static __device__ float load(float x) { return x; }
    static __device__ float store(float x) { return x; }
};
struct F64 {
    typedef double stored;
    typedef double number;
    static __device__ double load(double x) { return x; }
    static __device__ double store(double x) { return x; }
};
struct Bf16 {
    typedef u16 stored;
    typedef float number;
    static __device__ float load(u16 x) { return __uint_as_float((unsigned)x << 16); }
    static __device__ u16 store(float x) {
        const unsigned bits = __float_as_uint(x);
        if ((bits & 0x7fffffffU) > 0x7f800000U) {
            return 0x7fff;  // NaN
        }
        return (u16)((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);  // to nearest, ties to even
    }
};
struct F16 {
    typedef u16 stored;
    typedef float number;
    static __device__ float load(u16 x) {
        float result;
        asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x));
        return result;
    }
    static __device__ u16 store(float x) {
        u16 result;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(x));
        return result;
    }
};

// 16 bytes at a time.
template <typename E>
struct alignas(16) Vector {
    static const int kSize = 16 / sizeof(typename E::stored);
    typename E::stored at[kSize];
};

__device__ inline bool aligned(const void* a, const void* b, const void* c, const void* d) {
    return (((u64)a | (u64)b | (u64)c | (u64)d) & 15) == 0;
}
__device__ inline u64 thread_number() {
    return (u64)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ inline u64 thread_count() {
    return (u64)gridDim.x * blockDim.x;
}

template <typename E>
__device__ inline typename E::stored one_accumulate(typename E::stored to, typename E::stored from,
                                                    typename E::number factor) {
    return E::store(factor * E::load(to) + E::load(from));
}

template <typename E>
__device__ inline void accumulate(typename E::stored* to, const typename E::stored* from,
                                  double factor, u64 count) {
    typedef Vector<E> V;
    const typename E::number f = (typename E::number)factor;
    u64 done = 0;
    if (aligned(to, from, 0, 0)) {
        const u64 vectors = count / V::kSize;
        for (u64 i = thread_number(); i < vectors; i += thread_count()) {
            V a = ((V*)to)[i];
            const V b = ((const V*)from)[i];
            for (int k = 0; k < V::kSize; ++k) {
                a.at[k] = one_accumulate<E>(a.at[k], b.at[k], f);
            }
            ((V*)to)[i] = a;
        }
        done = vectors * V::kSize;
    }
    for (u64 i = done + thread_number(); i < count; i += thread_count()) {
        to[i] = one_accumulate<E>(to[i], from[i], f);
    }
}

template <typename E>
struct Factors {
    typename E::number a, b, c;
    bool y, z, add;
    __device__ typename E::stored operator()(typename E::stored to, typename E::stored px,
                                             typename E::stored py, typename E::stored pz) const {
        typename E::number sum = a * E::load(px);
        if (y) {
            sum = sum + b * E::load(py);
        }
        if (z) {
            sum = sum + c * E::load(pz);
        }
        if (add) {
            sum = E::load(to) + sum;
        }
        return E::store(sum);
    }
};

template <typename E>
__device__ inline void combine(typename E::stored* to, const typename E::stored* x,
                               const typename E::stored* y, const typename E::stored* z, double a,
                               double b, double c, u64 count, unsigned add) {
    typedef Vector<E> V;
    typedef typename E::number N;
    const Factors<E> f = {(N)a, (N)b, (N)c, y != 0, z != 0, add != 0};
    u64 done = 0;
    if (aligned(to, x, y, z)) {
        const u64 vectors = count / V::kSize;
        for (u64 i = thread_number(); i < vectors; i += thread_count()) {
            V none = {};
            V vt = f.add ? ((const V*)to)[i] : none;
            const V vx = ((const V*)x)[i];
            const V vy = f.y ? ((const V*)y)[i] : none;
            const V vz = f.z ? ((const V*)z)[i] : none;
            for (int k = 0; k < V::kSize; ++k) {
                vt.at[k] = f(vt.at[k], vx.at[k], vy.at[k], vz.at[k]);
            }
            ((V*)to)[i] = vt;
        }
        done = vectors * V::kSize;
    }
    for (u64 i = done + thread_number(); i < count; i += thread_count()) {
        to[i] = f(f.add ? to[i] : (typename E::stored)0, x[i], f.y ? y[i] : (typename E::stored)0,
                  f.z ? z[i] : (typename E::stored)0);
    }
}

// Adds what all threads have to `out`, number by number.
template <typename T, int kCount>
__device__ inline void add_up(T (&own)[kCount], T* out) {
    __shared__ T warps[kCount][32];
    for (int n = 0; n < kCount; ++n) {
#pragma unroll 1
        for (int step = 16; step > 0; step /= 2) {
            own[n] += __shfl_down_sync(0xffffffffU, own[n], step);
        }
        if (threadIdx.x % 32 == 0) {
            warps[n][threadIdx.x / 32] = own[n];
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int n = 0; n < kCount; ++n) {
#pragma unroll 1
            for (unsigned w = 1; w < blockDim.x / 32; ++w) {
                own[n] += warps[n][w];
            }
            if (own[n] != 0) {
                atomicAdd(out + n, own[n]);
            }
        }
    }
}

template <typename E>
__device__ inline void square(const typename E::stored* x, u64 count, double* sum,
                              u64* not_finite) {
    typedef Vector<E> V;
    double own = 0;
    u64 bad = 0;
    const auto one = [&](typename E::stored value) {
        const double v = (double)E::load(value);
        if (v - v == 0) {
            own = own + v * v;
        } else {
            ++bad;
        }
    };
    u64 done = 0;
    if (aligned(x, 0, 0, 0)) {
        const u64 vectors = count / V::kSize;
        for (u64 i = thread_number(); i < vectors; i += thread_count()) {
            const V v = ((const V*)x)[i];
            for (int k = 0; k < V::kSize; ++k) {
                one(v.at[k]);
            }
        }
        done = vectors * V::kSize;
    }
    for (u64 i = done + thread_number(); i < count; i += thread_count()) {
        one(x[i]);
    }
    double sums[1] = {own};
    u64 bads[1] = {bad};
    add_up(sums, sum);
    add_up(bads, not_finite);
}

template <typename E>
__device__ inline void correlate(const typename E::stored* x, const typename E::stored* y,
                                 const typename E::stored* z, typename E::stored* keep, u64 count,
                                 double* out) {
    double sums[5] = {0, 0, 0, 0, 0};
#pragma unroll 1
    for (u64 i = thread_number(); i < count; i += thread_count()) {
        const typename E::stored value = x[i];
        const double a = (double)E::load(value);
        const double b = y != 0 ? (double)E::load(y[i]) : 0;
        const double c = z != 0 ? (double)E::load(z[i]) : 0;  // before `keep` is written
        sums[0] = sums[0] + a * a;
        sums[1] = sums[1] + a * b;
        sums[2] = sums[2] + b * b;
        sums[3] = sums[3] + a * c;
        sums[4] = sums[4] + c * c;
        keep[i] = value;
    }
    add_up(sums, out);
}

#define DEFT_KERNELS(E, ending)                                                                 \
    extern "C" __global__ void deft_accumulate_##ending(E::stored* to, const E::stored* from,   \
                                                        double factor, u64 count) {             \
        accumulate<E>(to, from, factor, count);                                                 \
    }                                                                                           \
    extern "C" __global__ void deft_combine_##ending(                                           \
        E::stored* to, const E::stored* x, const E::stored* y, const E::stored* z, double a,    \
        double b, double c, u64 count, unsigned add) {                                          \
        combine<E>(to, x, y, z, a, b, c, count, add);                                           \
    }                                                                                           \
    extern "C" __global__ void deft_square_##ending(const E::stored* x, u64 count, double* sum, \
                                                    u64* not_finite) {                          \
        square<E>(x, count, sum, not_finite);                                                   \
    }                                                                                           \
    extern "C" __global__ void deft_correlate_##ending(const E::stored* x, const E::stored* y,  \
                                                       const E::stored* z, E::stored* keep,     \
                                                       u64 count, double* out) {                \
        correlate<E>(x, y, z, keep, count, out);                                                \
    }

DEFT_KERNELS(F32, f32)
DEFT_KERNELS(F64, f64)
DEFT_KERNELS(Bf16, bf16)
DEFT_KERNELS(F16, f16)
