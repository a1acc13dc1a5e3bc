// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl_kernels/operation.h"

namespace softdev::nccl_kernels {
namespace {

ncclDataType_t type_of(Type type) {
    switch (type) {
        case Type::none:
        case Type::u8:
            return ncclUint8;
        case Type::i8:
            return ncclInt8;
        case Type::i32:
            return ncclInt32;
        case Type::u32:
            return ncclUint32;
        case Type::i64:
            return ncclInt64;
        case Type::u64:
            return ncclUint64;
        case Type::f16:
            return ncclFloat16;
        case Type::bf16:
            return ncclBfloat16;
        case Type::f32:
            return ncclFloat32;
        case Type::f64:
            return ncclFloat64;
        case Type::f8e4m3:
            return ncclFloat8e4m3;
        case Type::f8e5m2:
            return ncclFloat8e5m2;
    }
    return ncclUint8;
}

ncclDataType_t with_sign(ncclDataType_t type) {
    return type == ncclUint8    ? ncclInt8
           : type == ncclUint32 ? ncclInt32
           : type == ncclUint64 ? ncclInt64
                                : type;
}

}  // namespace

nccl::Reduction reduction_of(const Function& function, std::uint64_t argument) {
    nccl::Reduction r;
    r.type = type_of(function.type);
    r.scalar = argument;
    switch (function.operation) {
        case Operation::none:
        case Operation::sum:
            r.kind = nccl::Arithmetic::kSum;
            break;
        case Operation::product:
            r.kind = nccl::Arithmetic::kProd;
            break;
        case Operation::pre_mul_sum:
            r.kind = nccl::Arithmetic::kPreMulSum;
            break;
        case Operation::sum_post_div:
            // The divisor, and in the lowest bit whether the integers have a sign.
            r.kind = nccl::Arithmetic::kSumPostDiv;
            r.scalar = argument >> 1;
            r.type = (argument & 1) != 0 ? with_sign(r.type) : r.type;
            break;
        case Operation::min_max: {
            // A mask that makes both questions "which is the smaller unsigned integer": all bits
            // for the greatest, and the highest one again for integers with a sign.
            const std::uint64_t sign = std::uint64_t{1} << (8 * nccl::type_size(r.type) - 1);
            const bool greatest = (argument & 1) != 0;
            // Not as a comparison of two bits: gcc 12 drops one of them (-O2).
            const std::uint64_t mask = greatest ? ~argument : argument;
            r.kind = greatest ? nccl::Arithmetic::kMax : nccl::Arithmetic::kMin;
            if ((mask & sign) != 0) {
                r.type = with_sign(r.type);
            }
            break;
        }
    }
    return r;
}

}  // namespace softdev::nccl_kernels
