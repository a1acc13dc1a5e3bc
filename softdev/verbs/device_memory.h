// SPDX-License-Identifier: Apache-2.0
// Memory that stands for a GPU's: the device reads and writes it, a CPU that touches it faults.
#pragma once

#include <cstddef>
#include <memory>

namespace softdev::verbs {

/// Pages that no CPU may touch; nullptr: there is no memory.
void* allocate_device_memory(std::size_t bytes);
/// False: it is none.
bool free_device_memory(void* at);

/// Where the device itself finds these bytes; nullptr: they are ordinary memory. `outside` says
/// that the range begins in device memory and leaves it.
char* device_alias(const void* at, std::size_t bytes, bool& outside);

}  // namespace softdev::verbs
