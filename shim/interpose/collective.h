// SPDX-License-Identifier: Apache-2.0
// The hook of a call that moves data.
#pragma once

#include "shim/interpose/hook.h"
#include "shim/iteration/observer.h"

namespace deft {

// begin() before the call is forwarded, end() after it returned. Both are cheap and never block;
// neither touches the call.
class CollectiveHook : public Hook {
public:
    CollectiveHook(Function function, deft_nccl_comm_t comm, const void* caller) noexcept
        : Hook(function, comm, caller), comm_(comm) {}

    void begin(const Call& call, deft_cuda_stream_t stream) noexcept;
    // Between begin() and end(), for an all-reduce: true if a plan dealt with the call, and
    // `result` is what the hook returns; false if it is to be forwarded.
    bool carry_out(const Call& call, deft_cuda_stream_t stream, int& result) noexcept;
    void end(int result) noexcept;

private:
    deft_nccl_comm_t comm_;
    Observer* observer_ = nullptr;  // null: this call is not observed
    cuda::EventPool* pool_ = nullptr;
    CallRecord record_;
};

// A group's work starts when its outermost end returns, so that is where its calls' end is noted. A
// group that failed or was only simulated made no calls.
void observe_group_end(bool launched) noexcept;

}  // namespace deft
