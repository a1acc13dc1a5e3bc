// SPDX-License-Identifier: Apache-2.0
// NCCL's element types, with inputs whose reductions over eight ranks are small.
#pragma once

#include <nccl.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "softdev/cuda/narrow_float.h"

namespace deft::test {

struct Number {
    ncclDataType_t type;
    std::size_t bytes;
    bool integer;
    double tolerance;  ///< relative
    double (*load)(const char* from);
    void (*store)(char* to, double value);

    /// What a rank gives for element i. Products of eight stay within 8 bits.
    double input(int rank, std::size_t i) const {
        const std::size_t mixed = (i + static_cast<std::size_t>(rank) * 5) % 11;
        return mixed < 2 ? 2.0 : 1.0;
    }
};

namespace numbers_detail {

template <class T>
double load_plain(const char* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return static_cast<double>(value);
}
template <class T>
void store_plain(char* to, double value) {
    const T narrow = static_cast<T>(value);
    std::memcpy(to, &narrow, sizeof narrow);
}
template <class T>
double load_narrow(const char* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return softdev::nccl::widen(value);
}
template <class T>
void store_narrow(char* to, double value) {
    T narrow;
    softdev::nccl::narrow(static_cast<float>(value), narrow);
    std::memcpy(to, &narrow, sizeof narrow);
}
template <class T>
Number plain(ncclDataType_t type, bool integer, double tolerance) {
    return {type, sizeof(T), integer, tolerance, load_plain<T>, store_plain<T>};
}
template <class T>
Number narrow(ncclDataType_t type, double tolerance) {
    return {type, sizeof(T), false, tolerance, load_narrow<T>, store_narrow<T>};
}

}  // namespace numbers_detail

inline const std::vector<Number>& numbers() {
    using namespace numbers_detail;
    static const std::vector<Number> all = {
        plain<std::int8_t>(ncclInt8, true, 0),
        plain<std::uint8_t>(ncclUint8, true, 0),
        plain<std::int32_t>(ncclInt32, true, 0),
        plain<std::uint32_t>(ncclUint32, true, 0),
        plain<std::int64_t>(ncclInt64, true, 0),
        plain<std::uint64_t>(ncclUint64, true, 0),
        plain<float>(ncclFloat32, false, 1e-6),
        plain<double>(ncclFloat64, false, 1e-14),
        narrow<softdev::nccl::Half>(ncclFloat16, 4e-3),
        narrow<softdev::nccl::Bfloat>(ncclBfloat16, 3e-2),
    };
    return all;
}

}  // namespace deft::test
