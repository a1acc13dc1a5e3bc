// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>

namespace softdev::nccl {

size_t type_size(ncclDataType_t type);  // 0: unknown type
const char* type_name(ncclDataType_t type);
const char* op_name(int op);  // of an ncclRedOp_t; user operations are "premulsum"

// What a reduction does, after ncclAvg and user operations were resolved.
// Rounding: fp16, bf16 and fp8 are widened to float, one operation is done there, and the result is
// rounded to nearest even in the type, once per operation (fp8 saturates at its largest finite
// value); float and double are rounded by their own addition. Integers wrap. ncclAvg multiplies
// every rank's input by 1/nranks (rounded to the type) before summing, for integers it divides the
// sum, towards zero. max and min of a NaN and a number are the number.
enum class Arithmetic : uint8_t { kSum, kProd, kMax, kMin, kPreMulSum, kSumPostDiv };

struct Reduction {
    Arithmetic kind = Arithmetic::kSum;
    ncclDataType_t type = ncclFloat32;
    uint64_t scalar = 0;  // kPreMulSum: bits of a value of `type`; kSumPostDiv: the divisor
    const void* device_scalar =
        nullptr;  // kPreMulSum: read when the operation runs, overrides scalar
};

// The built-in operations for a communicator of nranks.
Reduction make_reduction(ncclRedOp_t op, ncclDataType_t type, int nranks);

// out[i] = post(pre(a[i]) op b[0][i] op b[1][i] ...) for n elements. `pre` (the multiplication of
// kPreMulSum) is applied to `a` if pre_a, `post` (the division of kSumPostDiv) if post. out2 (or
// NULL) gets the same values. `a` may be NULL (then b[0] takes its place). out may be equal to any
// input.
void reduce(const Reduction& op, void* out, void* out2, const void* a, bool pre_a,
            const void* const* b, int nb, bool post, size_t n);

}  // namespace softdev::nccl
