// SPDX-License-Identifier: Apache-2.0
// A communicator's life after its making, questions to it, registration, user reductions.
#include <cstring>
#include <thread>

#include "softdev/cuda/softdev.h"
#include "softdev/nccl/api.h"
#include "softdev/nccl/env.h"

using namespace softdev::nccl;

// Handles of ncclCommRegister and ncclCommWindowRegister.
struct ncclWindow_vidmem {
    ncclComm_t communicator;
    void* buffer;
    size_t bytes;
};

namespace softdev::nccl {
namespace {

std::mutex g_windows_mutex;
std::map<ncclWindow_vidmem*, std::unique_ptr<ncclWindow_vidmem>>& windows() {
    static auto* const all = new std::map<ncclWindow_vidmem*, std::unique_ptr<ncclWindow_vidmem>>;
    return *all;
}

ncclWindow_vidmem* add_window(ncclComm_t comm, void* buffer, size_t bytes) {
    auto window = std::make_unique<ncclWindow_vidmem>(ncclWindow_vidmem{comm, buffer, bytes});
    ncclWindow_vidmem* raw = window.get();
    std::lock_guard lock(g_windows_mutex);
    windows()[raw] = std::move(window);
    return raw;
}

ncclResult_t remove_window(const char* call, ncclComm_t comm, void* handle) {
    return api(call, [&] {
        find_communicator(comm, call);
        if (handle == nullptr) {
            return ncclSuccess;
        }
        std::lock_guard lock(g_windows_mutex);
        const auto found = windows().find(static_cast<ncclWindow_vidmem*>(handle));
        if (found == windows().end() || found->second->communicator != comm) {
            throw Error(ncclInvalidArgument,
                        format("%s : %p was not registered with this communicator", call, handle));
        }
        windows().erase(found);
        return ncclSuccess;
    });
}

// Ends the communicator on a thread of its own, where NCCL calls a plugin's finalize.
void end(const std::shared_ptr<Communicator>& comm, Communicator::End how) {
    std::thread([&] { comm->shut_down(how); }).join();
}

void end_in_background(std::shared_ptr<Communicator> comm) {
    std::thread([comm = std::move(comm)]() mutable {
        comm->shut_down(Communicator::End::kDestroy);
    }).detach();
}

void refuse_inside_group(const Communicator& comm, const char* call) {
    if (group_depth() > 0 && group_queued(&comm) > 0) {
        const std::string text =
            format("%s inside a group that has %zu calls for this communicator", call,
                   group_queued(&comm));
        softdevReportOn(comm.device, "nccl: %s: %s", comm.name().c_str(), text.c_str());
        group_note_error(ncclInvalidUsage);
        throw Error(ncclInvalidUsage, text);
    }
}

}  // namespace
}  // namespace softdev::nccl

SOFTNCCL_API ncclResult_t pncclCommFinalize(ncclComm_t handle) {
    return api("CommFinalize", [&] {
        if (handle == nullptr) {
            return ncclSuccess;
        }
        const auto comm = find_communicator(handle, "CommFinalize");
        if (comm->finalized()) {
            throw Error(ncclInvalidArgument, "CommFinalize : communicator was finalized before");
        }
        if (comm->revoked()) {
            throw Error(ncclInvalidUsage, "CommFinalize : communicator was revoked");
        }
        require_ready(*comm, "CommFinalize");
        refuse_inside_group(*comm, "ncclCommFinalize");
        return implicit_group([&] { group_add(Job{comm, [comm] { comm->finalize(); }}); });
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommFinalize, (ncclComm_t))

SOFTNCCL_API ncclResult_t pncclCommDestroy(ncclComm_t handle) {
    return api("CommDestroy", [&] {
        if (handle == nullptr) {
            return ncclSuccess;
        }
        const auto comm = find_communicator(handle, "CommDestroy");
        refuse_inside_group(*comm, "ncclCommDestroy");
        if (comm->async_result() == ncclInProgress) {
            throw Error(ncclInvalidArgument,
                        "CommDestroy : Attempt to use communicator before the previous operation "
                        "returned ncclSuccess");
        }
        forget_communicator(handle);
        // A failed communicator has nothing to wait for.
        const bool good = comm->async_result() == ncclSuccess;
        if (!comm->config.blocking && good) {
            end_in_background(comm);
        } else {
            end(comm, good ? Communicator::End::kDestroy : Communicator::End::kAbort);
        }
        return ncclSuccess;
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommDestroy, (ncclComm_t))

SOFTNCCL_API ncclResult_t pncclCommAbort(ncclComm_t handle) {
    return api("CommAbort", [&] {
        if (handle == nullptr) {
            return ncclSuccess;
        }
        const auto comm = find_communicator(handle, "CommAbort");
        forget_communicator(handle);
        comm->abort();
        if (group_depth() > 0) {
            group_add_abort(comm);  // what follows of it comes when the group ends
            return ncclSuccess;
        }
        std::thread([&] { comm->reclaim(); }).join();
        return ncclSuccess;
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommAbort, (ncclComm_t))

SOFTNCCL_API ncclResult_t pncclCommRevoke(ncclComm_t handle, int flags) {
    return api("CommRevoke", [&] {
        const auto comm = find_communicator(handle, "CommRevoke");
        if (flags != NCCL_REVOKE_DEFAULT) {
            throw Error(ncclInvalidArgument, format("CommRevoke : invalid flags %d", flags));
        }
        if (comm->finalized()) {
            throw Error(ncclInvalidArgument, "CommRevoke : communicator was finalized");
        }
        if (comm->revoked()) {
            throw Error(ncclInvalidArgument, "CommRevoke : communicator was revoked before");
        }
        return implicit_group([&] { group_add(Job{comm, [comm] { comm->revoke(); }}); });
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommRevoke, (ncclComm_t, int))

SOFTNCCL_API ncclResult_t pncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* result) {
    return api("CommGetAsyncError", [&] {
        const auto comm = find_communicator(handle, "ncclGetAsyncError");
        require_pointer(result, "ncclGetAsyncError", "asyncError");
        *result = comm->async_result();
        return ncclSuccess;
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t, ncclResult_t*))

namespace {

ncclResult_t ask(ncclComm_t handle, const char* call, int* out,
                 int (*answer)(const Communicator&)) {
    return api(call, [&] {
        const auto comm = find_communicator(handle, call);
        require_pointer(out, call, "result");
        if (comm->async_result() == ncclInProgress) {
            throw Error(
                ncclInvalidArgument,
                "Attempt to use communicator before the previous operation returned ncclSuccess");
        }
        *out = answer(*comm);
        return ncclSuccess;
    });
}

}  // namespace

SOFTNCCL_API ncclResult_t pncclCommCount(const ncclComm_t comm, int* count) {
    return ask(comm, "CommCount", count, [](const Communicator& c) { return c.nranks; });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommCount, (const ncclComm_t, int*))

SOFTNCCL_API ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int* device) {
    return ask(comm, "CommCuDevice", device, [](const Communicator& c) { return c.device; });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommCuDevice, (const ncclComm_t, int*))

SOFTNCCL_API ncclResult_t pncclCommUserRank(const ncclComm_t comm, int* rank) {
    return ask(comm, "CommUserRank", rank, [](const Communicator& c) { return c.rank; });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommUserRank, (const ncclComm_t, int*))

SOFTNCCL_API ncclResult_t pncclCommRegister(const ncclComm_t handle, void* buffer, size_t bytes,
                                            void** out) {
    return api("CommRegister", [&] {
        find_communicator(handle, "CommRegister");
        require_pointer(out, "CommRegister", "handle");
        *out = nullptr;
        if (buffer == nullptr || bytes == 0) {
            throw Error(ncclInvalidArgument, "CommRegister : buffer is NULL or size is 0");
        }
        if (softdevCheckRange(buffer, bytes, "ncclCommRegister") != CUDA_SUCCESS) {
            throw Error(
                ncclInvalidArgument,
                format("CommRegister : %p is not %zu bytes of device memory", buffer, bytes));
        }
        *out = add_window(handle, buffer, bytes);
        return ncclSuccess;
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommRegister, (const ncclComm_t, void*, size_t, void**))

SOFTNCCL_API ncclResult_t pncclCommDeregister(const ncclComm_t comm, void* handle) {
    return remove_window("CommDeregister", comm, handle);
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommDeregister, (const ncclComm_t, void*))

SOFTNCCL_API ncclResult_t pncclCommWindowRegister(ncclComm_t handle, void* buffer, size_t bytes,
                                                  ncclWindow_t* out, int flags) {
    return api("CommWindowRegister", [&] {
        find_communicator(handle, "CommWindowRegister");
        require_pointer(out, "CommWindowRegister", "win");
        *out = nullptr;
        if (buffer == nullptr || bytes == 0 || (flags & ~NCCL_WIN_COLL_SYMMETRIC) != 0) {
            throw Error(ncclInvalidArgument,
                        "CommWindowRegister : buffer is NULL, size is 0 or flags are unknown");
        }
        if (reinterpret_cast<uintptr_t>(buffer) % NCCL_WIN_REQUIRED_ALIGNMENT != 0) {
            throw Error(ncclInvalidArgument,
                        format("CommWindowRegister : %p is not aligned to %d bytes", buffer,
                               NCCL_WIN_REQUIRED_ALIGNMENT));
        }
        if (softdevCheckRange(buffer, bytes, "ncclCommWindowRegister") != CUDA_SUCCESS) {
            throw Error(
                ncclInvalidArgument,
                format("CommWindowRegister : %p is not %zu bytes of device memory", buffer, bytes));
        }
        *out = add_window(handle, buffer, bytes);
        return ncclSuccess;
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommWindowRegister,
               (ncclComm_t, void*, size_t, ncclWindow_t*, int))

SOFTNCCL_API ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
    return remove_window("CommWindowDeregister", comm, window);
}
SOFTNCCL_ALIAS(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t, ncclWindow_t))

SOFTNCCL_API ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar,
                                                    ncclDataType_t type,
                                                    ncclScalarResidence_t residence,
                                                    ncclComm_t handle) {
    return api("RedOpCreatePreMulSum", [&] {
        const auto comm = find_communicator(handle, "RedOpCreatePreMulSum");
        require_ready(*comm, "RedOpCreatePreMulSum");
        require_pointer(op, "RedOpCreatePreMulSum", "op");
        require_pointer(scalar, "RedOpCreatePreMulSum", "scalar");
        const size_t bytes = type_size(type);
        if (bytes == 0 || (residence != ncclScalarDevice && residence != ncclScalarHostImmediate)) {
            throw Error(
                ncclInvalidArgument,
                format("RedOpCreatePreMulSum : invalid type %d or residence %d", type, residence));
        }
        Reduction reduction;
        reduction.kind = Arithmetic::kPreMulSum;
        reduction.type = type;
        if (residence == ncclScalarHostImmediate) {
            std::memcpy(&reduction.scalar, scalar, bytes);
        } else {
            reduction.device_scalar = scalar;
        }
        std::lock_guard lock(comm->operations_mutex);
        // Numbers depend on the communicator, so that one of another communicator is recognised.
        const int base = ncclNumOps + static_cast<int>(comm->hash % 100000) * 16;
        comm->next_operation = std::max(comm->next_operation, base) + 1;
        comm->operations[comm->next_operation] = reduction;
        *op = static_cast<ncclRedOp_t>(comm->next_operation);
        return ncclSuccess;
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclRedOpCreatePreMulSum,
               (ncclRedOp_t*, void*, ncclDataType_t, ncclScalarResidence_t, ncclComm_t))

SOFTNCCL_API ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t handle) {
    return api("RedOpDestroy", [&] {
        if (op >= 0 && op < ncclNumOps) {
            throw Error(ncclInvalidArgument, "ncclRedOpDestroy : operator is a NCCL builtin.");
        }
        const auto comm = find_communicator(handle, "RedOpDestroy");
        std::lock_guard lock(comm->operations_mutex);
        if (comm->operations.erase(op) == 0) {
            throw Error(ncclInvalidArgument,
                        format("ncclRedOpDestroy : operator %d unknown to this communicator.", op));
        }
        return ncclSuccess;
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t, ncclComm_t))
