// SPDX-License-Identifier: Apache-2.0
// CPU twins of the library's own kernels (shim/executor/kernels.cu), known to every process that
// uses the software device: the library finds them when it loads its module.
#pragma once

#include <memory>
#include <vector>

#include "softdev/cuda/kernels.h"

namespace softdev {

std::vector<std::shared_ptr<Kernel>> executor_kernels();

}  // namespace softdev
