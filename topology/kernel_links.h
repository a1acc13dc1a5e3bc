// SPDX-License-Identifier: Apache-2.0
// What the kernel itself says of the interfaces of this network namespace (rtnetlink(7)). Sysfs
// shows the namespace it was mounted in, which in a container need not be the process's own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "topology/interfaces.h"

namespace deft {

struct KernelLink {
    std::string name;
    unsigned index = 0;
    unsigned flags = 0;   // IFF_UP and the others of netdevice(7)
    unsigned master = 0;  // index of the bridge, bond, team or VRF it belongs to; 0: none
    unsigned lower = 0;   // index of what it goes over, for a veth of its other end; 0: none
    bool lower_elsewhere = false;  // `lower` counts in another network namespace
    int mtu = 0;
    int bond_mode = -1;    // linux/if_bonding.h; -1: no bond
    std::string kind;      // "veth", "bridge", "bond", "vlan"; empty for most hardware
    std::string hardware;  // the permanent hardware address, else the present one, in hex
};

struct KernelAddress {
    unsigned index = 0;  // of the interface
    Address address;
    bool failed = false;     // another host has it (duplicate address detection)
    bool temporary = false;  // replaced after hours (RFC 8981), or deprecated already
};

// In the kernel's order. False if the kernel does not answer.
bool read_kernel_links(std::vector<KernelLink>& links);
bool read_kernel_addresses(std::vector<KernelAddress>& addresses);

}  // namespace deft
