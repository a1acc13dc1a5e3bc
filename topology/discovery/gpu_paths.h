// SPDX-License-Identifier: Apache-2.0
// How the GPUs of a host reach each other. Pure.
#pragma once

#include <cstddef>
#include <string>

#include "topology/discovery/machine.h"

namespace deft::discovery {

struct GpuPath {
    Distance distance = Distance::Unknown;  // by PCI
    int nvlinks = 0;                        // that a transfer between the two can use; 0: none
    double gbytes = 0;                      // of these, one direction, GB/s; 0: not known
    bool by_switch = false;                 // through NVSwitch; else the two are wired directly

    // As `nvidia-smi topo -m` has it: "NV12", else the distance by PCI.
    std::string text() const;
};
GpuPath gpu_path(const Machine& machine, std::size_t from, std::size_t to);

// What a ring over all GPUs inside the host can expect.
struct InsideRate {
    double gbytes = 0;  // each GPU sends while it receives, GB/s
    bool nvlink = false;
    std::string how;  // for people: where the figure is from
};
InsideRate inside_rate(const Machine& machine);

}  // namespace deft::discovery
