// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl/config.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "softdev/nccl/env.h"
#include "softdev/nccl/error.h"
#include "softdev/nccl/log.h"

namespace softdev::nccl {
namespace {

constexpr unsigned kMagic = 0xcafebeef;

void check_flag(const char* name, int value) {
    if (value != NCCL_CONFIG_UNDEF_INT && value != 0 && value != 1) {
        throw Error(ncclInvalidArgument,
                    format("Invalid config %s attribute value %d", name, value));
    }
}

void check_positive(const char* name, int value) {
    if (value != NCCL_CONFIG_UNDEF_INT && value <= 0) {
        throw Error(ncclInvalidArgument,
                    format("Invalid config %s attribute value %d", name, value));
    }
}

// The application's structure, widened to ours; fields it does not have are undefined.
ncclConfig_t widen(const ncclConfig_t& given) {
    ncclConfig_t wide = NCCL_CONFIG_INITIALIZER;
    size_t size = 0;
    std::memcpy(&size, &given, sizeof size);
    if (size < offsetof(ncclConfig_t, cgaClusterSize) || size > 4096) {
        throw Error(ncclInvalidArgument,
                    "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    }
    std::memcpy(static_cast<void*>(&wide), &given, std::min(size, sizeof wide));
    if (wide.magic != kMagic) {
        throw Error(ncclInvalidArgument,
                    "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    }
    const unsigned version = wide.version;
    const ncclConfig_t undefined = NCCL_CONFIG_INITIALIZER;
    if (version < NCCL_VERSION(2, 14, 0)) {
        wide.blocking = undefined.blocking;
    }
    if (version < NCCL_VERSION(2, 17, 0)) {
        wide.cgaClusterSize = undefined.cgaClusterSize;
        wide.minCTAs = undefined.minCTAs;
        wide.maxCTAs = undefined.maxCTAs;
        wide.netName = undefined.netName;
    }
    if (version < NCCL_VERSION(2, 18, 0)) {
        wide.splitShare = undefined.splitShare;
    }
    if (version < NCCL_VERSION(2, 25, 0)) {  // 2.25: NCCL's own check is one release early
        wide.trafficClass = undefined.trafficClass;
    }
    if (version < NCCL_VERSION(2, 27, 0)) {
        wide.commName = undefined.commName;
        wide.collnetEnable = undefined.collnetEnable;
        wide.CTAPolicy = undefined.CTAPolicy;
        wide.shrinkShare = undefined.shrinkShare;
        wide.nvlsCTAs = undefined.nvlsCTAs;
    }
    if (version < NCCL_VERSION(2, 28, 0)) {
        wide.nChannelsPerNetPeer = undefined.nChannelsPerNetPeer;
        wide.nvlinkCentricSched = undefined.nvlinkCentricSched;
    }
    return wide;
}

void check(const ncclConfig_t& wide) {
    check_flag("blocking", wide.blocking);
    check_flag("splitShare", wide.splitShare);
    check_flag("collnetEnable", wide.collnetEnable);
    check_flag("shrinkShare", wide.shrinkShare);
    check_flag("nvlinkCentricSched", wide.nvlinkCentricSched);
    check_positive("minCTAs", wide.minCTAs);
    check_positive("maxCTAs", wide.maxCTAs);
    check_positive("nvlsCTAs", wide.nvlsCTAs);
    check_positive("nChannelsPerNetPeer", wide.nChannelsPerNetPeer);
    if (wide.cgaClusterSize != NCCL_CONFIG_UNDEF_INT &&
        (wide.cgaClusterSize < 0 || wide.cgaClusterSize > 8)) {
        throw Error(ncclInvalidArgument, format("Invalid config cgaClusterSize attribute value %d",
                                                wide.cgaClusterSize));
    }
    if (wide.minCTAs != NCCL_CONFIG_UNDEF_INT && wide.maxCTAs != NCCL_CONFIG_UNDEF_INT &&
        wide.minCTAs > wide.maxCTAs) {
        throw Error(ncclInvalidArgument,
                    format("Invalid config min/max channels attribute value %d/%d", wide.minCTAs,
                           wide.maxCTAs));
    }
    if (wide.CTAPolicy != NCCL_CONFIG_UNDEF_INT &&
        (wide.CTAPolicy < 0 || wide.CTAPolicy > NCCL_CTA_POLICY_ZERO)) {
        throw Error(ncclInvalidArgument,
                    format("Invalid config policy attribute value %d", wide.CTAPolicy));
    }
}

template <class To>
void take(int value, To& to) {
    if (value != NCCL_CONFIG_UNDEF_INT) {
        to = static_cast<To>(value);
    }
}

}  // namespace

Config read_config(const ncclConfig_t* given, const Config& inherited) {
    Config config = inherited;
    if (given != nullptr) {
        const ncclConfig_t wide = widen(*given);
        check(wide);
        take(wide.blocking, config.blocking);
        take(wide.minCTAs, config.min_ctas);
        take(wide.maxCTAs, config.max_ctas);
        take(wide.splitShare, config.split_share);
        take(wide.shrinkShare, config.shrink_share);
        take(wide.trafficClass, config.traffic_class);
        take(wide.nChannelsPerNetPeer, config.channels_per_net_peer);
        if (wide.netName != nullptr) {
            config.net_name = wide.netName;
        }
        if (wide.commName != nullptr) {
            config.comm_name = wide.commName;
        }
    }
    const auto flag = [](const char* name, bool& value) {
        const int64_t set = env_int(name, -1);
        if (set == 0 || set == 1) {
            value = set == 1;
        }
    };
    flag("NCCL_COMM_BLOCKING", config.blocking);
    flag("NCCL_COMM_SPLIT_SHARE_RESOURCES", config.split_share);
    flag("NCCL_COMM_SHRINK_SHARE_RESOURCES", config.shrink_share);
    config.min_ctas =
        static_cast<int>(std::clamp<int64_t>(env_int("NCCL_MIN_CTAS", config.min_ctas), 1, 64));
    config.max_ctas =
        static_cast<int>(std::clamp<int64_t>(env_int("NCCL_MAX_CTAS", config.max_ctas), 1, 64));
    if (config.min_ctas > config.max_ctas) {
        log_info(kSubsysEnv, "min CTAs %d is above max CTAs %d: both ignored", config.min_ctas,
                 config.max_ctas);
        config.min_ctas = 1;
        config.max_ctas = 64;
    }
    return config;
}

}  // namespace softdev::nccl
