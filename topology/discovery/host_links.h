// SPDX-License-Identifier: Apache-2.0
// What can carry bytes to other hosts, of what kind, and who would drive it. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "topology/discovery/machine.h"

namespace deft::discovery {

enum class Driver { Nobody, Deft, Nccl };
const char* to_string(Driver driver);

struct HostLink {
    std::string name;  // "eth0"; of an RDMA port "mlx5_0:1"; the PCI address of a card without name
    std::string kind;  // "tcp", "ib", "roce", "rdma" (either of the two), "efa", "ucx", "other"
    PciPlace pci;
    std::int64_t speed_mbps = 0;  // 0: not known
    std::string state;            // "up", "down", "unknown"
    std::vector<std::string> addresses;
    std::string card;  // of an RDMA port: equal on all ports of one card
    Driver driver = Driver::Nobody;
    std::string reason;             // why nobody drives it
    std::string transports;         // of UCX's, by which it may drive a link of kind "ucx"
    bool virtual_function = false;  // it shares the wire of a physical function
    std::string physical;           // that one's RDMA device, where it is known
};

// By place; what has none comes last.
std::vector<HostLink> host_links(const Machine& machine);

}  // namespace deft::discovery
