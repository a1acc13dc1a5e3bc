// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace deft::net {

// The receiver's permission to write one message straight into its posted buffer, for one path. The
// same message may be granted any number of times, with the same values on one path.
struct Grant {
    std::uint64_t message = 0;
    std::uint64_t address = 0;   // at the receiver, of the message's first byte
    std::uint64_t capacity = 0;  // bytes from there on
    std::uint32_t key = 0;       // of that memory in the path's protection domain at the receiver
};

}  // namespace deft::net
