// SPDX-License-Identifier: Apache-2.0
// RoCE ports of the software verbs device, opened as the plugin opens a host's.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "plugin/verbs/ports.h"

namespace deft::net::testing {

// As topology/ would find it; `host`: of its address 127.0.0.x.
inline RdmaPort soft_port(const std::string& device, int host, std::int64_t mbps = 100000) {
    char gid[40];
    std::snprintf(gid, sizeof(gid), "0000:0000:0000:0000:0000:ffff:7f00:%04x", host);
    RdmaPort port;
    port.device = device;
    port.number = 1;
    port.layer = "Ethernet";
    port.state = "ACTIVE";
    port.speed_mbps = mbps;
    port.gids.push_back({3, gid, "RoCE v2", "lo", true});
    return port;
}

// Those that can be opened; with `problem`, if not all.
inline VerbsPorts open_soft_ports(const std::vector<RdmaPort>& ports, std::string& problem) {
    const VerbsLibrary* const library = process_verbs_library(problem);
    if (library == nullptr) {
        return {};
    }
    std::vector<std::string> problems;
    const NcclSetting none = [](const char*) { return std::nullopt; };
    VerbsPorts made = open_verbs_ports(*library, ports, none, {}, problems);
    problem = problems.empty() ? "" : problems.front();
    return made;
}

}  // namespace deft::net::testing
