// SPDX-License-Identifier: Apache-2.0
// Helper threads that drive connections beside NCCL's own (DEFT_IO_THREADS), for links that one
// core cannot fill.
#pragma once

#include <cstddef>

#include "plugin/core/connection_end.h"

namespace deft::net {

// Lets one of `threads` helpers drive the end until stop_progress(). False if no thread could be
// started: the end then goes without. Any thread.
bool help(ConnectionEnd& end, std::size_t threads);

// There is something new to do. Takes a system call only if the helper sleeps.
void wake(IoHelper& helper);

}  // namespace deft::net
