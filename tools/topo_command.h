// SPDX-License-Identifier: Apache-2.0
// `deft topo`: what links a host has, how near they are to its GPUs, and what deft would use.
#pragma once

#include <string>

#include "topology/discovery/machine.h"

namespace deft::tools {

using discovery::Machine;

struct TopoOptions {
    std::string input;     // an XML file; empty: this host
    std::size_t host = 1;  // of a file that holds several
    bool json = false;
};

int topo(const TopoOptions& options);

// Reads one host, counted from 1, of a file: hwloc's XML or NCCL's. False and one line in
// `problem`.
bool read_machine_file(const std::string& path, std::size_t host, Machine& machine,
                       std::string& problem);

std::string topo_text(const Machine& machine);
std::string topo_json(const Machine& machine);

}  // namespace deft::tools
