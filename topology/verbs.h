// SPDX-License-Identifier: Apache-2.0
// Which RDMA devices libibverbs can drive. sysfs shows all that the kernel knows; a container often
// lacks the vendor's part of the library (libmlx5), and NCCL's IB then finds none.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace deft {

struct VerbsDevice {
    std::string name;    // "mlx5_0"
    bool opens = false;  // in this process
};

// Asks the library that NCCL will open: the file `named` (NCCL_IBVERBS_LIB; empty: none), else the
// system's. Nothing: there is no such library, or NCCL could not use it. The library stays loaded.
std::optional<std::vector<VerbsDevice>> list_verbs_devices(const std::string& named);

}  // namespace deft
