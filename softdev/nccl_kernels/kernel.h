// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "softdev/nccl_kernels/channel_threads.h"
#include "softdev/nccl_kernels/function.h"
#include "softdev/nccl_kernels/layout.h"

namespace softdev::nccl_kernels {

/// A library's release: its layouts and its list of functions.
struct Release {
    const Layout* layout = nullptr;
    std::vector<Function> functions;
};

/// Runs one launch: all channels of its mask, each from its first batch to its last. Returns when
/// all works are done or the communicator is aborted. Throws std::runtime_error for what is not
/// emulated; `report` hears of it at once, while other channels may still wait for their peers.
void run_kernel(const Release& release, std::byte* arguments, const Report& report);

}  // namespace softdev::nccl_kernels
