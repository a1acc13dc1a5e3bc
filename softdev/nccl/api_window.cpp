// SPDX-License-Identifier: Apache-2.0
// Registered memory: buffers and windows; what reaches a peer's window past the peer.
#include "softdev/cuda/softdev.h"
#include "softdev/nccl/api.h"

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

// A window is given without its communicator.
ncclResult_t ask_window(const char* call, ncclWindow_t handle, void** out,
                        void* (*answer)(const Communicator&, const ncclWindow_vidmem&, size_t, int),
                        size_t offset, int peer) {
    return api(call, [&] {
        require_pointer(handle, call, "window");
        require_pointer(out, call, "outPtr");
        std::lock_guard lock(g_windows_mutex);
        const auto found = windows().find(handle);
        if (found == windows().end()) {
            throw Error(ncclInvalidArgument,
                        format("%s : %p is not a window", call, static_cast<void*>(handle)));
        }
        const auto comm = find_communicator(found->second->communicator, call);
        if (peer < 0 || peer >= comm->nranks) {
            throw Error(ncclInvalidArgument,
                        format("%s : there is no rank %d of %d", call, peer, comm->nranks));
        }
        *out = answer(*comm, *found->second, offset, peer);
        return ncclSuccess;
    });
}

// As NCCL says it where the network cannot write into a peer's memory by itself.
ncclResult_t no_one_sided(const char* call, ncclComm_t handle) {
    return api(call, [&]() -> ncclResult_t {
        const auto comm = find_communicator(handle, call);
        require_ready(*comm, call);
        throw Error(ncclInvalidUsage, format("%s : one-sided transfers are not supported", call));
    });
}

}  // namespace
}  // namespace softdev::nccl

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

// Of nccl.h 2.29 and nccl_device.h 2.28: the headers here may not have them yet.
SOFTNCCL_API ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void** out) {
    const ncclResult_t result = api("WinGetUserPtr", [&] {
        find_communicator(comm, "WinGetUserPtr");
        return ncclSuccess;
    });
    return result != ncclSuccess ? result
                                 : ask_window(
                                       "WinGetUserPtr", window, out,
                                       [](const Communicator&, const ncclWindow_vidmem& found,
                                          size_t, int) { return found.buffer; },
                                       0, 0);
}
SOFTNCCL_ALIAS(ncclResult_t, ncclWinGetUserPtr, (ncclComm_t, ncclWindow_t, void**))

// No other rank's memory is in this one's address space.
SOFTNCCL_API ncclResult_t pncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer,
                                                    void** out) {
    return ask_window(
        "GetPeerDevicePointer", window, out,
        [](const Communicator& comm, const ncclWindow_vidmem& found, size_t at, int rank) -> void* {
            return rank == comm.rank ? static_cast<char*>(found.buffer) + at : nullptr;
        },
        offset, peer);
}
SOFTNCCL_ALIAS(ncclResult_t, ncclGetPeerDevicePointer, (ncclWindow_t, size_t, int, void**))

SOFTNCCL_API ncclResult_t pncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset,
                                                           void** out) {
    return ask_window(
        "GetLsaMultimemDevicePointer", window, out,
        [](const Communicator&, const ncclWindow_vidmem&, size_t, int) -> void* { return nullptr; },
        offset, 0);
}
SOFTNCCL_ALIAS(ncclResult_t, ncclGetLsaMultimemDevicePointer, (ncclWindow_t, size_t, void**))

SOFTNCCL_API ncclResult_t pncclPutSignal(const void*, size_t, ncclDataType_t, int, ncclWindow_t,
                                         size_t, int, int, unsigned int, ncclComm_t comm,
                                         cudaStream_t) {
    return no_one_sided("PutSignal", comm);
}
SOFTNCCL_ALIAS(ncclResult_t, ncclPutSignal,
               (const void*, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int,
                unsigned int, ncclComm_t, cudaStream_t))

SOFTNCCL_API ncclResult_t pncclSignal(int, int, int, unsigned int, ncclComm_t comm, cudaStream_t) {
    return no_one_sided("Signal", comm);
}
SOFTNCCL_ALIAS(ncclResult_t, ncclSignal, (int, int, int, unsigned int, ncclComm_t, cudaStream_t))

SOFTNCCL_API ncclResult_t pncclWaitSignal(int, WaitSignal*, ncclComm_t comm, cudaStream_t) {
    return no_one_sided("WaitSignal", comm);
}
SOFTNCCL_ALIAS(ncclResult_t, ncclWaitSignal, (int, WaitSignal*, ncclComm_t, cudaStream_t))

// Kernels that communicate by themselves do not run on the software device.
SOFTNCCL_API ncclResult_t pncclDevCommCreate(ncclComm_t handle, const void*, void*) {
    return api("DevCommCreate", [&]() -> ncclResult_t {
        require_ready(*find_communicator(handle, "DevCommCreate"), "DevCommCreate");
        throw Error(ncclInvalidUsage, "DevCommCreate : device communicators are not supported");
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclDevCommCreate, (ncclComm_t, const void*, void*))

SOFTNCCL_API ncclResult_t pncclDevCommDestroy(ncclComm_t handle, const void*) {
    return api("DevCommDestroy", [&] {
        find_communicator(handle, "DevCommDestroy");
        return ncclSuccess;
    });
}
SOFTNCCL_ALIAS(ncclResult_t, ncclDevCommDestroy, (ncclComm_t, const void*))
