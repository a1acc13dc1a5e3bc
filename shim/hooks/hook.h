// SPDX-License-Identifier: Apache-2.0
// What every hook does first: find the library the call belongs to, and notice NCCL's own calls.
#pragma once

#include <utility>

#include "shim/nccl/call.h"
#include "shim/nccl/nccl_libraries.h"
#include "shim/nccl/registry.h"

// A function of ours that takes the place of NCCL's.
#define DEFT_HOOK extern "C" __attribute__((visibility("default")))
// The code that called the hook; only meaningful in the hook itself.
#define DEFT_CALLER __builtin_return_address(0)

namespace deft {

// One call in progress. Some of NCCL's own calls go through the PLT and meet the hooks again
// (ncclBcast calls ncclBroadcast, every enqueue calls ncclCommGetAsyncError): those are nested and
// must pass untouched.
class Hook {
public:
    // A call belongs to the library that the loader would have bound it to.
    Hook(Function function, const void* caller) noexcept;
    // So does one on a communicator: made by another library, it is not this one's. Where the
    // caller's own library is not certain the call goes to the communicator's.
    Hook(Function function, deft_nccl_comm_t comm, const void* caller) noexcept;
    // A watched call of the job's that is made later than in its own hook.
    Hook(Function function, CommunicatorPin&& communicator, const NcclTable* table) noexcept;
    ~Hook();
    Hook(const Hook&) = delete;
    Hook& operator=(const Hook&) = delete;

    const NcclTable* table() const { return table_; }
    CommunicatorPin& communicator() { return communicator_; }
    void adopt(CommunicatorPin&& communicator) { communicator_ = std::move(communicator); }
    // True if several libraries are there and nothing tells which of them the call is for.
    bool undecided() const { return undecided_; }
    // A group that waits for a call that tells is table()'s then.
    void decide() noexcept;
    // True if the job itself made this call and the shim may look at it: not nested, not off, not
    // in a forked child.
    bool watched() const { return watched_; }

    // What a hook returns when it cannot forward: says why, once for each function.
    int unavailable() const noexcept;

private:
    void find_library(const void* caller) noexcept;
    void enter() noexcept;
    void claim(deft_nccl_comm_t comm) noexcept;

    Function function_;
    const NcclTable* table_ = nullptr;
    CommunicatorPin communicator_;
    bool watched_ = false;
    bool undecided_ = false;
};

}  // namespace deft
