// SPDX-License-Identifier: Apache-2.0
// Who touched which bytes last, to find accesses that no stream order, event or synchronisation
// puts in order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace softdev {

/// The bytes begin a new life: what was done to them before is over.
void forget_history(std::uintptr_t base, std::size_t bytes);

}  // namespace softdev
