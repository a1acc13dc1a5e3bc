// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/lane_config.h"

#include <climits>
#include <cstdint>
#include <cstring>

namespace deft::executor {
namespace {

template <typename T>
void put(ConfigBytes& out, std::size_t offset, T value) {
    std::memcpy(out.bytes + offset, &value, sizeof value);
}

// sizeof(ncclConfig_t) by release: NCCL copies as much as it knows and wants the rest absent.
std::size_t size_of(int version) {
    return version >= 22800   ? 80
           : version >= 22700 ? 72
           : version >= 21800 ? 48
           : version >= 21700 ? 40
                              : 24;
}

}  // namespace

bool make_config(int version, const LaneConfig& config, ConfigBytes& out) {
    if (version < 21400) {
        return false;
    }
    const std::size_t size = size_of(version);
    for (std::size_t at = 16; at + 4 <= size; at += 4) {
        put(out, at, INT_MIN);  // "undefined"; the pointers are cleared below
    }
    put(out, 0, size);
    put<std::uint32_t>(out, 8, 0xcafebeef);
    put<std::uint32_t>(out, 12, static_cast<std::uint32_t>(version));
    // Blocking: a nonblocking communicator answers every call with "in progress" and enqueues it
    // later, so that no event could be recorded behind it.
    put(out, 16, 1);
    if (version >= 21700) {
        if (config.max_ctas > 0) {
            put(out, 24, 1);
            put(out, 28, config.max_ctas);
        }
        put(out, 32, config.net_name);
    }
    if (version >= 22600 && config.traffic_class >= 0) {
        put(out, 44, config.traffic_class);
    }
    if (version >= 22700) {
        put<const char*>(out, 48, nullptr);
    }
    return true;
}

}  // namespace deft::executor
