// SPDX-License-Identifier: Apache-2.0
// `deft topo`: how GPUs and links to other hosts hang together, and who would drive what.
#pragma once

#include <string>

#include "topology/discovery/machine.h"

namespace deft::tools {

using discovery::Machine;

struct TopoOptions {
    std::string input;     // an XML file, or a copy of a sysfs; empty: this host
    std::size_t host = 1;  // of a file that holds several
    bool json = false;
    bool matrix = false;  // nothing else
};

int topo(const TopoOptions& options);

// Reads one host, counted from 1, of a file (hwloc's XML or NCCL's) or of a folder (a copy of a
// host's sysfs). False and one line in `problem`.
bool read_machine_file(const std::string& path, std::size_t host, Machine& machine,
                       std::string& problem);

std::string topo_text(const Machine& machine);
std::string topo_json(const Machine& machine);
// GPUs and NICs against each other, as `nvidia-smi topo -m` prints them, with a legend.
std::string topo_matrix(const Machine& machine);

// In words: who carries a job of this host.
std::string carrier_of(const Machine& machine);

}  // namespace deft::tools
