// SPDX-License-Identifier: Apache-2.0
#include "tests/softdev/cuda/history.h"

namespace softdev {

void forget_history(std::uintptr_t, std::size_t) {}

}  // namespace softdev
