// SPDX-License-Identifier: Apache-2.0
// Which devices and ports there are: SOFTDEV_VERBS.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace softdev::verbs {

struct PortSettings {
    std::string netdev;
    bool infiniband = false;  ///< else RoCE
    std::string address;      ///< one of the netdev's; empty: its first
    unsigned gbit = 100;
    unsigned mtu = 4096;
};

struct DeviceSettings {
    std::string name;
    std::uint64_t guid = 0;  ///< of the node; 0: made from the first port's netdev
    std::uint32_t ece = 0;   ///< the vendor's extensions that it has; 0: none
    std::vector<PortSettings> ports;
};

/// Each line, or each piece up to a semicolon, is one port: "DEVICE NETDEV [ib|roce]
/// [KEY=VALUE]...". A device that is named again gets another port. What is wrong with the text is
/// put into `error`.
std::optional<std::vector<DeviceSettings>> parse_devices(const std::string& text,
                                                         std::string& error);

/// Of the environment. SOFTDEV_VERBS is that text or, with a slash in front, the file that holds
/// it.
std::optional<std::vector<DeviceSettings>> devices_of_environment(std::string& error);

}  // namespace softdev::verbs
