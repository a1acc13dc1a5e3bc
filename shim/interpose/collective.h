// SPDX-License-Identifier: Apache-2.0
// The hook of a call that moves data.
#pragma once

#include "shim/interpose/hook.h"

namespace deft {

// begin() before the call is forwarded, end() after it returned. Both are cheap and never block;
// neither touches the call.
class CollectiveHook : public Hook {
public:
    CollectiveHook(Function function, deft_nccl_comm_t comm, const void* caller) noexcept
        : Hook(function, comm, caller) {}

    void begin(const Call& call, deft_cuda_stream_t stream) noexcept;
    void end(int result) noexcept;
};

}  // namespace deft
