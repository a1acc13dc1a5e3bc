// SPDX-License-Identifier: Apache-2.0
// RDMA ports as the kernel shows them in sysfs: no library is asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "topology/pci.h"

namespace deft {

// An address of a port. Entries that are empty are not kept.
struct RdmaGid {
    int index = 0;          // in the port's table
    std::string gid;        // "0000:0000:0000:0000:0000:ffff:c000:0201"
    std::string type;       // "RoCE v2", "IB/RoCE v1"; empty: the kernel does not say
    std::string interface;  // of RoCE: the network interface it belongs to; may be empty
    bool here = true;       // that interface is one of this network namespace
};

struct RdmaPort {
    std::string device;                   // "mlx5_0"
    int number = 0;                       // from 1; 0: not known, of files that name no ports
    std::string layer;                    // "InfiniBand", "Ethernet", another; empty: not known
    std::string state;                    // "ACTIVE", "DOWN", ...; empty: not known
    std::int64_t speed_mbps = 0;          // 0: unknown
    std::vector<RdmaGid> gids;            // in the order of their indices
    std::vector<std::string> interfaces;  // network interfaces of this host that share its wire
    std::string card;                     // sys_image_guid: equal on all ports of one card
    bool virtual_function = false;        // SR-IOV: its wire is that of a physical function
    std::string physical;                 // that function's device, if this host has it
    PciPlace pci;
    std::string obstacle;  // why NCCL's IB has no use for it; empty: it has

    bool usable() const { return obstacle.empty(); }
    bool ethernet() const { return layer == "Ethernet"; }
    std::string name() const {
        return number == 0 ? device : device + ":" + std::to_string(number);
    }
    // "ib", "roce"; "rdma" if it is not known which; "other", as EFA's.
    const char* kind() const;
};

// Whose interfaces a tree tells of.
enum class SysfsOf {
    ThisHost,  // those of the calling process count, and those that the tree shows
    Another    // a copy of another host's tree: only those that the tree shows count
};

// The obstacle of a port by which an NVLink switch is managed.
extern const char* const kManagesSwitch;
// That of a port whose link is down, which may come up later.
extern const char* const kNotActive;

// All ports, two of one card as two. `sysfs`: where sysfs is mounted. `nodes`: where the device
// nodes of libibverbs are ("/dev/infiniband"); empty: they are not looked at.
std::vector<RdmaPort> list_rdma_ports(const std::string& sysfs, const std::string& nodes,
                                      SysfsOf of = SysfsOf::ThisHost);

// Whether a port's link is up now. Reads one file.
bool rdma_port_active(const std::string& sysfs, const std::string& device, int number);

// "400 Gb/sec (4X NDR)" in Mbit/s; 0 if it is no rate. Pure.
std::int64_t rdma_rate(const std::string& text);

}  // namespace deft
