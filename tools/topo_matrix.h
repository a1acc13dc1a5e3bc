// SPDX-License-Identifier: Apache-2.0
// GPUs and network cards of a host against each other.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "topology/discovery/machine.h"

namespace deft::tools {

// One row and column of the matrix.
struct MatrixDevice {
    std::string label;  // "GPU0", "NIC0"
    std::string name;   // of a NIC: "mlx5_0", "eth0"
    PciPlace pci;
    std::size_t gpu = 0;  // of a GPU: its number
    bool is_gpu = false;
};

// The GPUs, then each card with a place once, by the name of its RDMA device, else its interface's.
std::vector<MatrixDevice> matrix_devices(const discovery::Machine& machine);
// "X", "NV12", "PIX".
std::string matrix_cell(const discovery::Machine& machine, const MatrixDevice& row,
                        const MatrixDevice& column);

// The whole matrix, or for the overview: cards that are equally far from all GPUs share a column
// where there are many.
std::string matrix_text(const discovery::Machine& machine, bool whole);

}  // namespace deft::tools
