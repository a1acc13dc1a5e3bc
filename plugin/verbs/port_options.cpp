// SPDX-License-Identifier: Apache-2.0
#include "plugin/verbs/port_options.h"

#include <cstdlib>

#include "plugin/verbs/gid.h"

namespace deft::net {
namespace {

constexpr long kMostIndex = 255;  // ibv_global_route::sgid_index has eight bits

// In any base that strtol(3) knows by its prefix, as NCCL reads it.
long number_of(const NcclSetting& setting, const char* name, long low, long high, long otherwise) {
    const std::optional<std::string> text = setting(name);
    if (!text || text->empty()) {
        return otherwise;
    }
    char* end = nullptr;
    const long value = std::strtol(text->c_str(), &end, 0);
    return *end == '\0' && value >= low && value <= high ? value : otherwise;
}

}  // namespace

std::optional<VerbsQueuePair::Options> options_of(const RdmaPort& port, const NcclSetting& setting,
                                                  std::string& problem) {
    const long wanted = number_of(setting, "NCCL_IB_GID_INDEX", -1, kMostIndex, -1);
    const RdmaGid* const gid = choose_gid(port, static_cast<int>(wanted));
    if (gid == nullptr || gid->index > kMostIndex) {
        problem = port.name() +
                  (wanted < 0
                       ? std::string(" has no GID that leads to other hosts from here")
                       : " has no GID of index " + std::to_string(wanted) + " (NCCL_IB_GID_INDEX)");
        return std::nullopt;
    }
    VerbsQueuePair::Options options;
    options.port = port.number;
    options.gid_index = gid->index;
    options.traffic_class =
        static_cast<std::uint8_t>(number_of(setting, "NCCL_IB_TC", 0, 255, options.traffic_class));
    options.service_level =
        static_cast<std::uint8_t>(number_of(setting, "NCCL_IB_SL", 0, 15, options.service_level));
    options.pkey_index = static_cast<std::uint16_t>(
        number_of(setting, "NCCL_IB_PKEY", 0, 65535, options.pkey_index));
    return options;
}

}  // namespace deft::net
