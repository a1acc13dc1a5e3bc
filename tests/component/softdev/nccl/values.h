// SPDX-License-Identifier: Apache-2.0
// Values of every NCCL data type through double, with the toolkit's own conversions: a reference
// that shares no code with the software device.
#pragma once

#include <nccl.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace softdev::test {

inline const std::vector<ncclDataType_t>& all_types() {
    static const std::vector<ncclDataType_t> types{
        ncclInt8,    ncclUint8,   ncclInt32,   ncclUint32,   ncclInt64,      ncclUint64,
        ncclFloat16, ncclFloat32, ncclFloat64, ncclBfloat16, ncclFloat8e4m3, ncclFloat8e5m2};
    return types;
}

inline size_t size_of(ncclDataType_t type) {
    switch (type) {
        case ncclInt8:
        case ncclUint8:
        case ncclFloat8e4m3:
        case ncclFloat8e5m2:
            return 1;
        case ncclFloat16:
        case ncclBfloat16:
            return 2;
        case ncclInt32:
        case ncclUint32:
        case ncclFloat32:
            return 4;
        default:
            return 8;
    }
}

inline bool is_integer(ncclDataType_t type) {
    return type <= ncclUint64;
}

template <class T>
void put_as(std::byte* at, double value) {
    const T typed = static_cast<T>(value);
    std::memcpy(at, &typed, sizeof typed);
}

template <class T>
double get_as(const std::byte* at) {
    T typed;
    std::memcpy(static_cast<void*>(&typed), at, sizeof typed);
    return static_cast<double>(typed);
}

inline void put(ncclDataType_t type, std::byte* at, double value) {
    switch (type) {
        case ncclInt8:
            return put_as<int8_t>(at, value);
        case ncclUint8:
            return put_as<uint8_t>(at, value);
        case ncclInt32:
            return put_as<int32_t>(at, value);
        case ncclUint32:
            return put_as<uint32_t>(at, value);
        case ncclInt64:
            return put_as<int64_t>(at, value);
        case ncclUint64:
            return put_as<uint64_t>(at, value);
        case ncclFloat16:
            return put_as<__half>(at, value);
        case ncclFloat32:
            return put_as<float>(at, value);
        case ncclFloat64:
            return put_as<double>(at, value);
        case ncclBfloat16:
            return put_as<__nv_bfloat16>(at, value);
        case ncclFloat8e4m3:
            return put_as<__nv_fp8_e4m3>(at, value);
        case ncclFloat8e5m2:
            return put_as<__nv_fp8_e5m2>(at, value);
        default:
            return;
    }
}

inline double get(ncclDataType_t type, const std::byte* at) {
    switch (type) {
        case ncclInt8:
            return get_as<int8_t>(at);
        case ncclUint8:
            return get_as<uint8_t>(at);
        case ncclInt32:
            return get_as<int32_t>(at);
        case ncclUint32:
            return get_as<uint32_t>(at);
        case ncclInt64:
            return get_as<int64_t>(at);
        case ncclUint64:
            return get_as<uint64_t>(at);
        case ncclFloat16: {
            __half value;
            std::memcpy(static_cast<void*>(&value), at, sizeof value);
            return __half2float(value);
        }
        case ncclFloat32:
            return get_as<float>(at);
        case ncclFloat64:
            return get_as<double>(at);
        case ncclBfloat16: {
            __nv_bfloat16 value;
            std::memcpy(static_cast<void*>(&value), at, sizeof value);
            return __bfloat162float(value);
        }
        case ncclFloat8e4m3: {
            __nv_fp8_e4m3 value;
            std::memcpy(static_cast<void*>(&value), at, sizeof value);
            return static_cast<float>(value);
        }
        case ncclFloat8e5m2: {
            __nv_fp8_e5m2 value;
            std::memcpy(static_cast<void*>(&value), at, sizeof value);
            return static_cast<float>(value);
        }
        default:
            return 0;
    }
}

// Half the distance between 1 and the next value, relative.
inline double unit_roundoff(ncclDataType_t type) {
    switch (type) {
        case ncclFloat16:
            return std::ldexp(1, -11);
        case ncclFloat32:
            return std::ldexp(1, -24);
        case ncclFloat64:
            return std::ldexp(1, -53);
        case ncclBfloat16:
            return std::ldexp(1, -8);
        case ncclFloat8e4m3:
            return std::ldexp(1, -4);
        case ncclFloat8e5m2:
            return std::ldexp(1, -3);
        default:
            return 0;
    }
}

}  // namespace softdev::test
