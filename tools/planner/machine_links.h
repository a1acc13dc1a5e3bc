// SPDX-License-Identifier: Apache-2.0
// The fabric of a job on hosts like one that `deft topo` knows: NVLink or PCI inside a node, NICs
// between nodes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/model/fabric.h"
#include "topology/discovery/machine.h"

namespace deft::tools {

// Links of one kind and one driver, which a node has to others.
struct Uplink {
    std::string kind;       // "tcp", "ib", "roce", "rdma", "ucx"
    std::size_t count = 0;  // wires
    std::int64_t mbps = 0;  // of all of them, nominal
    bool told = true;       // false: the rate of one of them at least is guessed
};

// A host, or all hosts of an NVLink domain: what reaches each other without a NIC.
struct Node {
    std::string source;
    std::uint32_t gpus = 0;
    std::size_t hosts = 1;
    double inside = 0;  // GB/s that each GPU of a ring inside sends while it receives
    bool nvlink = false;
    std::vector<Uplink> uplinks;  // RDMA first: NCCL's, if it has any
};

// "topo" (this host), an XML file as of `deft topo --input`, or a folder with a copy of a sysfs.
bool names_machine(const std::string& what);
// Throws InputError.
Node read_node(const std::string& what);
// `hosts`: at least one, with GPUs. Pure but for what it throws: InputError.
Node node_of(const std::vector<discovery::Machine>& hosts);

// An all-reduce over `ranks` GPUs, each node full: one link for each kind; all of them use the same
// NVLinks inside. On one node it is these alone. Throws InputError.
planner::Fabric fabric_of(const Node& node, std::uint32_t ranks);

}  // namespace deft::tools
