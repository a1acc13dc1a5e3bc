// SPDX-License-Identifier: Apache-2.0
// A gradient's all-reduce that is alone in its group. Older PyTorch wraps every collective in a
// group of its own. NCCL starts nothing before the outermost ncclGroupEnd, so nobody can tell
// whether it has heard of the call by then: it is kept until the group has ended, and then made as
// if there had been none. All of it is the calling thread's.
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

// After the outermost end, which had this result: makes the call that is kept. Returns its result,
// or `result` if there is none or the group failed.
int make(int result) noexcept;

}  // namespace deft::held
