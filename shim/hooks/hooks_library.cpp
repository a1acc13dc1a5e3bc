// SPDX-License-Identifier: Apache-2.0
// Hooks of the calls about the library itself: version, unique id, error strings.
#include "shim/hooks/communicator.h"
#include "shim/hooks/hook.h"
#include "shim/hooks/rendezvous.h"

using deft::Function;
using deft::Hook;

DEFT_HOOK int ncclGetVersion(int* version) noexcept {
    const Hook hook(Function::GetVersion, DEFT_CALLER);
    if (hook.table() == nullptr || hook.table()->GetVersion == nullptr) {
        return hook.unavailable();
    }
    deft::communicator::counted(hook, Function::GetVersion);
    return hook.table()->GetVersion(version);
}

DEFT_HOOK int ncclGetUniqueId(deft_nccl_unique_id_t* id) noexcept {
    const Hook hook(Function::GetUniqueId, DEFT_CALLER);
    if (hook.table() == nullptr || hook.table()->GetUniqueId == nullptr) {
        return hook.unavailable();
    }
    deft::communicator::counted(hook, Function::GetUniqueId);
    const int result = hook.table()->GetUniqueId(id);
    deft::rendezvous::issued(hook, id, result);
    return result;
}

DEFT_HOOK const char* ncclGetErrorString(int result) noexcept {
    const Hook hook(Function::GetErrorString, DEFT_CALLER);
    if (hook.table() != nullptr && hook.table()->GetErrorString != nullptr) {
        return hook.table()->GetErrorString(result);
    }
    // Somebody is about to print why there is no NCCL.
    switch (result) {
        case DEFT_NCCL_SUCCESS:
            return "no error";
        case DEFT_NCCL_UNHANDLED_CUDA_ERROR:
            return "unhandled CUDA error";
        case DEFT_NCCL_SYSTEM_ERROR:
            return "unhandled system error (deft found no NCCL library to forward to)";
        case DEFT_NCCL_INTERNAL_ERROR:
            return "internal error";
        case DEFT_NCCL_INVALID_ARGUMENT:
            return "invalid argument";
        case DEFT_NCCL_INVALID_USAGE:
            return "invalid usage";
        case DEFT_NCCL_REMOTE_ERROR:
            return "remote process exited or there was a network error";
        case DEFT_NCCL_IN_PROGRESS:
            return "NCCL operation in progress";
        default:
            return "unknown result code";
    }
}

DEFT_HOOK const char* ncclGetLastError(deft_nccl_comm_t comm) noexcept {
    const Hook hook(Function::GetLastError, comm, DEFT_CALLER);
    if (hook.table() == nullptr || hook.table()->GetLastError == nullptr) {
        return "";
    }
    deft::communicator::counted(hook, Function::GetLastError);
    return hook.table()->GetLastError(comm);
}
