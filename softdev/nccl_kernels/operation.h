// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "softdev/nccl/reduce.h"
#include "softdev/nccl_kernels/function.h"

namespace softdev::nccl_kernels {

/// What the arithmetic of ../nccl calls a function's operation with its argument.
nccl::Reduction reduction_of(const Function& function, std::uint64_t argument);

}  // namespace softdev::nccl_kernels
