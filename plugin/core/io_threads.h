// SPDX-License-Identifier: Apache-2.0
// Helper threads that drive connections beside NCCL's own (DEFT_IO_THREADS), for links that one
// core cannot fill.
#pragma once

#include <cstddef>

#include "plugin/core/endpoint.h"

namespace deft::net {

// Lets one of `threads` helpers drive the endpoint until let_go(). False if no thread could be
// started: the endpoint then goes without. Any thread.
bool help(Endpoint& endpoint, std::size_t threads);

// There is something new to do. Takes a system call only if the helper sleeps.
void wake(IoHelper& helper);

}  // namespace deft::net
