// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace deft::agreement {

// A random number that no other process has, not even a child of this one. Not 0.
std::uint64_t process_number();

}  // namespace deft::agreement
