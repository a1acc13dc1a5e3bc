// SPDX-License-Identifier: Apache-2.0
// Hooks of the calls that move data: collectives, send and receive.
#include "base/hot_path.h"
#include "shim/hooks/collective.h"
#include "shim/hooks/group.h"
#include "shim/hooks/held_call.h"

using deft::CollectiveHook;
using deft::Function;

// Each hook is the same three steps: describe the call, forward it, note its end.
#define DEFT_COLLECTIVE(name, description, arguments)                              \
    CollectiveHook hook(Function::name, comm, DEFT_CALLER);                        \
    if (hook.table() == nullptr || hook.table()->name == nullptr) {                \
        return hook.unavailable();                                                 \
    }                                                                              \
    hook.begin(deft::Call description, stream);                                    \
    const int result = hook.forward([&] { return hook.table()->name arguments; }); \
    hook.end(result);                                                              \
    return result

// Of a call that plans know.
#define DEFT_PLANNED(name, description)                                           \
    CollectiveHook hook(Function::name, comm, DEFT_CALLER);                       \
    if (hook.table() == nullptr || hook.table()->name == nullptr) {               \
        return hook.unavailable();                                                \
    }                                                                             \
    const deft::Call call description;                                            \
    if (deft::group::depth() > 0 && deft::held::keep(hook, call, comm, stream)) { \
        return DEFT_NCCL_SUCCESS;                                                 \
    }                                                                             \
    return hook.make(call, stream)

DEFT_HOOK DEFT_NO_ARRAYS int ncclAllReduce(const void* send, void* receive, size_t count, int type,
                                           int op, deft_nccl_comm_t comm,
                                           deft_cuda_stream_t stream) noexcept {
    DEFT_PLANNED(AllReduce, ({Function::AllReduce, count, type, op, -1, send, receive}));
}

DEFT_HOOK DEFT_NO_ARRAYS int ncclReduceScatter(const void* send, void* receive, size_t count,
                                               int type, int op, deft_nccl_comm_t comm,
                                               deft_cuda_stream_t stream) noexcept {
    DEFT_PLANNED(ReduceScatter, ({Function::ReduceScatter, count, type, op, -1, send, receive}));
}

DEFT_HOOK DEFT_NO_ARRAYS int ncclAllGather(const void* send, void* receive, size_t count, int type,
                                           deft_nccl_comm_t comm,
                                           deft_cuda_stream_t stream) noexcept {
    DEFT_PLANNED(AllGather, ({Function::AllGather, count, type, -1, -1, send, receive}));
}

DEFT_HOOK int ncclBroadcast(const void* send, void* receive, size_t count, int type, int root,
                            deft_nccl_comm_t comm, deft_cuda_stream_t stream) noexcept {
    DEFT_COLLECTIVE(Broadcast, ({Function::Broadcast, count, type, -1, root, send, receive}),
                    (send, receive, count, type, root, comm, stream));
}

DEFT_HOOK int ncclBcast(void* buffer, size_t count, int type, int root, deft_nccl_comm_t comm,
                        deft_cuda_stream_t stream) noexcept {
    DEFT_COLLECTIVE(Bcast, ({Function::Bcast, count, type, -1, root, buffer, buffer}),
                    (buffer, count, type, root, comm, stream));
}

DEFT_HOOK int ncclReduce(const void* send, void* receive, size_t count, int type, int op, int root,
                         deft_nccl_comm_t comm, deft_cuda_stream_t stream) noexcept {
    DEFT_COLLECTIVE(Reduce, ({Function::Reduce, count, type, op, root, send, receive}),
                    (send, receive, count, type, op, root, comm, stream));
}

DEFT_HOOK int ncclSend(const void* send, size_t count, int type, int peer, deft_nccl_comm_t comm,
                       deft_cuda_stream_t stream) noexcept {
    DEFT_COLLECTIVE(Send, ({Function::Send, count, type, -1, peer, send, nullptr}),
                    (send, count, type, peer, comm, stream));
}

DEFT_HOOK int ncclRecv(void* receive, size_t count, int type, int peer, deft_nccl_comm_t comm,
                       deft_cuda_stream_t stream) noexcept {
    DEFT_COLLECTIVE(Recv, ({Function::Recv, count, type, -1, peer, nullptr, receive}),
                    (receive, count, type, peer, comm, stream));
}

DEFT_HOOK int ncclAlltoAll(const void* send, void* receive, size_t count, int type,
                           deft_nccl_comm_t comm, deft_cuda_stream_t stream) noexcept {
    DEFT_COLLECTIVE(AlltoAll, ({Function::AlltoAll, count, type, -1, -1, send, receive}),
                    (send, receive, count, type, comm, stream));
}

DEFT_HOOK int ncclGather(const void* send, void* receive, size_t count, int type, int root,
                         deft_nccl_comm_t comm, deft_cuda_stream_t stream) noexcept {
    DEFT_COLLECTIVE(Gather, ({Function::Gather, count, type, -1, root, send, receive}),
                    (send, receive, count, type, root, comm, stream));
}

DEFT_HOOK int ncclScatter(const void* send, void* receive, size_t count, int type, int root,
                          deft_nccl_comm_t comm, deft_cuda_stream_t stream) noexcept {
    DEFT_COLLECTIVE(Scatter, ({Function::Scatter, count, type, -1, root, send, receive}),
                    (send, receive, count, type, root, comm, stream));
}
