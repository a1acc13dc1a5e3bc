// SPDX-License-Identifier: Apache-2.0
// Hooks of the calls that are passed on as they come: reductions of the job's own, its memory and
// windows, one-sided transfers, what device code needs. A plan sums the same bytes wherever a
// gradient lies, so nothing depends on what the job registers; no plan carries out a transfer into
// a window.
#include "shim/hooks/communicator.h"
#include "shim/hooks/hook.h"

using deft::Function;
using deft::Hook;
namespace communicator = deft::communicator;

// `count` notes the call: communicator::passing() where it must not overtake one that the shim
// holds in the group, else communicator::counted().
#define DEFT_PASS_ON(count, name, arguments)                        \
    if (hook.table() == nullptr || hook.table()->name == nullptr) { \
        return hook.unavailable();                                  \
    }                                                               \
    communicator::count(hook, Function::name);                      \
    return hook.table()->name arguments

// What only asks, of a communicator or of none.
#define DEFT_ASK(name, arguments)                 \
    const Hook hook(Function::name, DEFT_CALLER); \
    DEFT_PASS_ON(counted, name, arguments)
#define DEFT_ASK_COMM(name, arguments)                  \
    const Hook hook(Function::name, comm, DEFT_CALLER); \
    DEFT_PASS_ON(counted, name, arguments)

// What NCCL does in the order of the job's calls.
#define DEFT_IN_ORDER(name, arguments)                  \
    const Hook hook(Function::name, comm, DEFT_CALLER); \
    DEFT_PASS_ON(passing, name, arguments)

DEFT_HOOK int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence,
                                       deft_nccl_comm_t comm) noexcept {
    DEFT_ASK_COMM(RedOpCreatePreMulSum, (op, scalar, type, residence, comm));
}

DEFT_HOOK int ncclRedOpDestroy(int op, deft_nccl_comm_t comm) noexcept {
    DEFT_ASK_COMM(RedOpDestroy, (op, comm));
}

DEFT_HOOK int ncclMemAlloc(void** pointer, size_t bytes) noexcept {
    DEFT_ASK(MemAlloc, (pointer, bytes));
}

DEFT_HOOK int ncclMemFree(void* pointer) noexcept {
    DEFT_ASK(MemFree, (pointer));
}

DEFT_HOOK int ncclCommRegister(deft_nccl_comm_t comm, void* buffer, size_t bytes,
                               void** handle) noexcept {
    DEFT_IN_ORDER(CommRegister, (comm, buffer, bytes, handle));
}

DEFT_HOOK int ncclCommDeregister(deft_nccl_comm_t comm, void* handle) noexcept {
    DEFT_IN_ORDER(CommDeregister, (comm, handle));
}

DEFT_HOOK int ncclCommWindowRegister(deft_nccl_comm_t comm, void* buffer, size_t bytes,
                                     deft_nccl_window_t* window, int flags) noexcept {
    DEFT_IN_ORDER(CommWindowRegister, (comm, buffer, bytes, window, flags));
}

DEFT_HOOK int ncclCommWindowDeregister(deft_nccl_comm_t comm, deft_nccl_window_t window) noexcept {
    DEFT_IN_ORDER(CommWindowDeregister, (comm, window));
}

DEFT_HOOK int ncclWinGetUserPtr(deft_nccl_comm_t comm, deft_nccl_window_t window,
                                void** pointer) noexcept {
    DEFT_ASK_COMM(WinGetUserPtr, (comm, window, pointer));
}

DEFT_HOOK int ncclGetPeerDevicePointer(deft_nccl_window_t window, size_t offset, int peer,
                                       void** pointer) noexcept {
    DEFT_ASK(GetPeerDevicePointer, (window, offset, peer, pointer));
}

DEFT_HOOK int ncclGetLsaMultimemDevicePointer(deft_nccl_window_t window, size_t offset,
                                              void** pointer) noexcept {
    DEFT_ASK(GetLsaMultimemDevicePointer, (window, offset, pointer));
}

DEFT_HOOK int ncclDevCommCreate(deft_nccl_comm_t comm, const deft_nccl_dev_requirements_t* wanted,
                                deft_nccl_dev_comm_t* made) noexcept {
    DEFT_IN_ORDER(DevCommCreate, (comm, wanted, made));
}

DEFT_HOOK int ncclDevCommDestroy(deft_nccl_comm_t comm, const deft_nccl_dev_comm_t* made) noexcept {
    DEFT_IN_ORDER(DevCommDestroy, (comm, made));
}

DEFT_HOOK int ncclCommMemStats(deft_nccl_comm_t comm, int which, uint64_t* value) noexcept {
    DEFT_ASK_COMM(CommMemStats, (comm, which, value));
}

DEFT_HOOK int ncclPutSignal(const void* send, size_t count, int type, int peer,
                            deft_nccl_window_t window, size_t offset, int signal, int context,
                            unsigned int flags, deft_nccl_comm_t comm,
                            deft_cuda_stream_t stream) noexcept {
    DEFT_IN_ORDER(PutSignal,
                  (send, count, type, peer, window, offset, signal, context, flags, comm, stream));
}

DEFT_HOOK int ncclSignal(int peer, int signal, int context, unsigned int flags,
                         deft_nccl_comm_t comm, deft_cuda_stream_t stream) noexcept {
    DEFT_IN_ORDER(Signal, (peer, signal, context, flags, comm, stream));
}

DEFT_HOOK int ncclWaitSignal(int count, deft_nccl_wait_signal_t* awaited, deft_nccl_comm_t comm,
                             deft_cuda_stream_t stream) noexcept {
    DEFT_IN_ORDER(WaitSignal, (count, awaited, comm, stream));
}
