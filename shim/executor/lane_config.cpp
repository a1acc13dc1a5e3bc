// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/lane_config.h"

#include <climits>
#include <cstdint>
#include <cstring>

namespace deft::executor {
namespace {

constexpr std::uint32_t kMagic = 0xcafebeef;
// Offsets.
constexpr std::size_t kMagicAt = 8;
constexpr std::size_t kVersionAt = 12;
constexpr std::size_t kBlocking = 16;
constexpr std::size_t kCgaClusterSize = 20;
constexpr std::size_t kMinCtas = 24;
constexpr std::size_t kMaxCtas = 28;
constexpr std::size_t kNetName = 32;
constexpr std::size_t kSplitShare = 40;
constexpr std::size_t kTrafficClass = 44;
constexpr std::size_t kCommName = 48;
constexpr std::size_t kCollnetEnable = 56;
constexpr std::size_t kCtaPolicy = 60;
constexpr std::size_t kShrinkShare = 64;
constexpr std::size_t kNvlsCtas = 68;
constexpr std::size_t kFirstSize = 20;  // of 2.14: up to `blocking`

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

// NCCL's defaults: every field undefined. Null pointers are; numbers are INT_MIN.
void fill_defaults(int version, ConfigBytes& out) {
    const std::size_t size = size_of(version);
    for (std::size_t at = kBlocking; at + 4 <= size; at += 4) {
        put(out, at, INT_MIN);
    }
    put(out, 0, size);
    put<std::uint32_t>(out, kMagicAt, kMagic);
    put<std::uint32_t>(out, kVersionAt, static_cast<std::uint32_t>(version));
    if (version >= 21700) {
        put<const char*>(out, kNetName, nullptr);
    }
    if (version >= 22700) {
        put<const char*>(out, kCommName, nullptr);
    }
}

template <typename T>
T get(const deft_nccl_config_t* config, std::size_t offset) {
    T value{};
    std::memcpy(&value, reinterpret_cast<const unsigned char*>(config) + offset, sizeof value);
    return value;
}

// As far as the release that the job was built for has the field.
bool has(const deft_nccl_config_t* config, std::size_t end, std::uint32_t since) {
    return get<std::size_t>(config, 0) >= end && get<std::uint32_t>(config, kMagicAt) == kMagic &&
           get<std::uint32_t>(config, kVersionAt) >= since;
}

}  // namespace

bool make_config(int version, const LaneConfig& config, ConfigBytes& out) {
    if (version < 21400) {
        return false;
    }
    fill_defaults(version, out);
    // Blocking: a nonblocking communicator answers every call with "in progress" and enqueues it
    // later, so that no event could be recorded behind it.
    put(out, kBlocking, 1);
    if (version >= 21700) {
        put(out, kCgaClusterSize, config.job.cga_cluster_size);
        put(out, kMinCtas, config.max_ctas > 0 ? 1 : config.job.min_ctas);
        put(out, kMaxCtas, config.max_ctas > 0 ? config.max_ctas : config.job.max_ctas);
        put(out, kNetName, config.net_name);
    }
    if (version >= 22600) {
        put(out, kTrafficClass,
            config.traffic_class >= 0 ? config.traffic_class : config.job.traffic_class);
    }
    if (version >= 22700) {
        put(out, kCollnetEnable, config.job.collnet_enable);
        put(out, kCtaPolicy, config.job.cta_policy);
        put(out, kNvlsCtas, config.job.nvls_ctas);
    }
    return true;
}

ConfigChoices choices_of(const deft_nccl_config_t* config) noexcept {
    ConfigChoices choices;
    if (config == nullptr) {
        return choices;
    }
    const auto take = [config](int& choice, std::size_t offset, std::uint32_t since) {
        choice = has(config, offset + 4, since) ? get<int>(config, offset) : choice;
    };
    take(choices.cga_cluster_size, kCgaClusterSize, 21700);
    take(choices.min_ctas, kMinCtas, 21700);
    take(choices.max_ctas, kMaxCtas, 21700);
    take(choices.traffic_class, kTrafficClass, 22600);
    take(choices.collnet_enable, kCollnetEnable, 22700);
    take(choices.cta_policy, kCtaPolicy, 22700);
    take(choices.nvls_ctas, kNvlsCtas, 22700);
    return choices;
}

const char* network_of(const deft_nccl_config_t* config) noexcept {
    return has(config, kNetName + sizeof(char*), 21700) ? get<const char*>(config, kNetName)
                                                        : nullptr;
}

bool shares(const deft_nccl_config_t* config) noexcept {
    return (has(config, kSplitShare + 4, 21800) && get<int>(config, kSplitShare) == 1) ||
           (has(config, kShrinkShare + 4, 22700) && get<int>(config, kShrinkShare) == 1);
}

bool name_network(const deft_nccl_config_t* config, int version, const char* network,
                  ConfigBytes& out) noexcept {
    if (version < 21700) {
        return false;
    }
    if (config == nullptr) {
        fill_defaults(version, out);
    } else {
        const auto size = get<std::size_t>(config, 0);
        if (size < kFirstSize || size > sizeof(out.bytes) ||
            get<std::uint32_t>(config, kMagicAt) != kMagic) {
            return false;
        }
        std::memcpy(out.bytes, config, size);
        // Built for a release without the field: as one of the first that has it.
        if (get<std::uint32_t>(config, kVersionAt) < 21700) {
            for (std::size_t at = kFirstSize; at + 4 <= size_of(21700); at += 4) {
                put(out, at, INT_MIN);
            }
            put(out, 0, size_of(21700));
            put<std::uint32_t>(out, kVersionAt, 21700);
        } else if (size < kNetName + sizeof(char*)) {
            return false;
        }
    }
    put(out, kNetName, network);
    return true;
}

}  // namespace deft::executor
