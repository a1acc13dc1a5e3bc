// SPDX-License-Identifier: Apache-2.0
// One thread per process that looks after connections NCCL has left alone: it has all it waited for
// there, and may never call again, while the peer still has something to ask. Its last
// acknowledgement was lost with a path and the bytes come once more, or a path wants to be made
// anew.
#pragma once

#include <memory>

#include "plugin/core/connection_end.h"

namespace deft::net {

// Has the end looked after until stop_progress(). It is left to NCCL's thread while that has a
// request of it, or has called in the last quarter of a second (25 ms, where it owes fences). False
// if no thread could be started: the end then goes without. Any thread.
bool progress_when_idle(ConnectionEnd& end);

// The same for one that NCCL has closed while something was still to be brought to the peer, until
// it is over(). Takes it if it returns true. Any thread.
bool see_off(std::unique_ptr<ConnectionEnd>& end);

}  // namespace deft::net
