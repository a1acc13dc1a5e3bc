// SPDX-License-Identifier: Apache-2.0
#include "shim/hooks/held_call.h"

#include "shim/hooks/group.h"

namespace deft::held {
namespace {

struct Held {
    Call call;
    deft_nccl_comm_t comm = nullptr;
    deft_cuda_stream_t stream = nullptr;
    const NcclTable* table = nullptr;
    Communicator* entry = nullptr;  // pinned; null: nothing is kept
    bool other = false;             // the group has another call, or this one has been forwarded
};

// Without a destructor, and no pointer to it: that one call is kept must not depend on memory, or
// the ranks would do different things.
thread_local constinit Held t_held;

// Of a call that every rank makes alike. An operation of the job's own may be destroyed before the
// group ends; what NCCL refuses at the call is left to it.
bool fit(const Call& call) {
    return may_carry_gradient(call) && call.op < DEFT_NCCL_NUM_OPS && call.send != nullptr &&
           call.receive != nullptr;
}

int make_now() noexcept {
    CollectiveHook hook(Function::AllReduce, CommunicatorPin(t_held.entry), t_held.comm,
                        t_held.table);
    t_held.entry = nullptr;
    if (hook.communicator()->handle.load(std::memory_order_acquire) != t_held.comm) {
        return DEFT_NCCL_INVALID_ARGUMENT;  // another thread has ended the communicator
    }
    return hook.all_reduce(t_held.call, t_held.stream);
}

}  // namespace

bool keep(CollectiveHook& hook, const Call& call, deft_nccl_comm_t comm,
          deft_cuda_stream_t stream) noexcept {
    if (!hook.watched() || t_held.other || t_held.entry != nullptr || !hook.communicator() ||
        hook.communicator()->director.load(std::memory_order_acquire) == nullptr ||
        hook.table() != group::library() || !fit(call)) {
        return false;
    }
    t_held.call = call;
    t_held.comm = comm;
    t_held.stream = stream;
    t_held.table = hook.table();
    t_held.entry = hook.communicator().release();
    return true;
}

void forward() noexcept {
    if (group::depth() == 0) {
        return;
    }
    t_held.other = true;
    if (t_held.entry != nullptr) {
        make_now();  // NCCL remembers an error until the group ends
    }
}

int make(int result) noexcept {
    t_held.other = false;
    if (t_held.entry == nullptr) {
        return result;
    }
    if (result != DEFT_NCCL_SUCCESS && result != DEFT_NCCL_IN_PROGRESS) {
        CommunicatorPin dropped(t_held.entry);
        t_held.entry = nullptr;
        return result;
    }
    const int own = make_now();
    return own != DEFT_NCCL_SUCCESS ? own : result;
}

}  // namespace deft::held
