// SPDX-License-Identifier: Apache-2.0
// What one side of `deft doctor --peer` tells the other about itself. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/config.h"
#include "topology/interfaces.h"

namespace deft::tools::doctor {

inline constexpr std::size_t kMostPeerText = 1 << 16;

struct PeerInfo {
    struct Link {
        std::string name;
        std::vector<Address> addresses;
        int mtu = 0;                  // 0: not said
        std::int64_t speed_mbps = 0;  // 0: unknown
    };
    std::string host, version;
    double time = 0;  // seconds since 1970
    int port = 0;     // that answers echoes
    std::map<std::string, std::string> settings;
    std::vector<Link> links;
};

std::string peer_info_text(const PeerInfo& info);
// False if the text is none.
bool parse_peer_info(const std::string& text, PeerInfo& info);

// The settings that every rank needs equal (docs/agreement.md), by name.
std::map<std::string, std::string> settings_to_compare(const Config& config);

}  // namespace deft::tools::doctor
