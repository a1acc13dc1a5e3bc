// SPDX-License-Identifier: Apache-2.0
// Calls that plans know and that stand in a group: one that is alone there (older PyTorch wraps
// every collective in a group of its own), or several reduce-scatters and all-gathers (PyTorch's
// coalescing managers). NCCL starts nothing before the outermost ncclGroupEnd, so nobody can tell
// whether it has heard of a call by then: they are kept until the group has ended, and then made as
// if there had been none, where a plan takes them, and in another group where none does. A plan may
// so begin or end between two of them, and what the ranks ask each other for that is no part of the
// job's group. All of it is the calling thread's.
#pragma once

#include "shim/hooks/collective.h"

namespace deft::held {

// Inside a group. True: the call is kept, and the hook returns ncclSuccess. What would be wrong
// with it is told by ncclGroupEnd, as NCCL does.
bool keep(CollectiveHook& hook, const Call& call, deft_nccl_comm_t comm,
          deft_cuda_stream_t stream) noexcept;

// Before anything else that the job does in the group: what is kept is forwarded first, and no call
// of this group is kept any more.
void forward() noexcept;

// After the outermost end, which had this result: makes the calls that are kept. Returns the first
// result of theirs that is no success, or `result` if there are none or the group failed.
int make(int result) noexcept;

}  // namespace deft::held
