// SPDX-License-Identifier: Apache-2.0
// What the tuner tables of all versions do. NCCL asks before each collective, on each rank by
// itself; the answer is the shim's, which has settled it with the other ranks (docs/tuner.md).
// Without the shim, or for a call that it has no wish for, NCCL's own choice stands.
#pragma once

#include <cstddef>

#include "deft/abi/tuner.h"

namespace deft::tuner {

inline constexpr const char* kName = "deft";

// What a call is done with: the cost table of v3 and later.
struct Request {
    const void* context = nullptr;  // as init() made it
    float* costs = nullptr;         // [algorithms][protocols]
    int algorithms = 0;
    int protocols = 0;
    bool registered = false;  // the call's buffers are registered with NCCL
    int* channels = nullptr;
};

// Any thread; never fails. Neither allocates nor waits.
int init(std::size_t nodes, void** context) noexcept;
int choose(const Request& request) noexcept;
int finish(void* context) noexcept;

}  // namespace deft::tuner
