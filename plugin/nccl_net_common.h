// SPDX-License-Identifier: Apache-2.0
// What the version adapters share: filling whichever properties struct a version has.
#pragma once

#include "plugin/net_api.h"

#define DEFT_EXPORT extern "C" __attribute__((visibility("default")))

namespace deft::net {

// NCCL passes an uninitialised struct: every field of the version is set.
template <class Props>
int fill_properties(int device, Props* out) noexcept {
    api::Properties known;
    const int result = api::properties(device, known);
    if (result != DEFT_NET_SUCCESS) {
        return result;
    }
    *out = Props{};
    out->name = known.name;
    out->pciPath = known.pci_path;
    out->guid = known.guid;
    out->ptrSupport = known.pointer_support;
    out->speed = known.speed_mbps;
    out->port = known.port;
    out->latency = known.latency;
    out->maxComms = known.max_comms;
    out->maxRecvs = known.max_receives;
    if constexpr (requires { out->regIsGlobal; }) {
        out->regIsGlobal = 0;
    }
    if constexpr (requires { out->forceFlush; }) {
        out->forceFlush = 0;
    }
    if constexpr (requires { out->netDeviceType; }) {
        out->netDeviceType = DEFT_NET_DEVICE_HOST;
        out->netDeviceVersion = DEFT_NET_DEVICE_HOST_VERSION;
    }
    if constexpr (requires { out->vProps; }) {
        out->vProps.ndevs = 1;
        out->vProps.devs[0] = device;
        out->maxP2pBytes = known.max_bytes;
        out->maxCollBytes = known.max_bytes;
    }
    if constexpr (requires { out->maxMultiRequestSize; }) {
        out->maxMultiRequestSize = 1;
    }
    if constexpr (requires { out->railId; }) {
        out->railId = -1;
        out->planeId = -1;
    }
    return DEFT_NET_SUCCESS;
}

// Versions whose sizes are ints.
inline int irecv_int(void* comm, int count, void** data, const int* sizes, void** memories,
                     void** request) noexcept {
    if (count != 1 || sizes[0] < 0) {
        return api::irecv(comm, 0, data, nullptr, memories, request);
    }
    const auto size = static_cast<std::size_t>(sizes[0]);
    return api::irecv(comm, count, data, &size, memories, request);
}

inline int isend_int(void* comm, void* data, int size, void* memory, void** request) noexcept {
    // A negative size becomes one that is refused.
    return api::isend(comm, data, static_cast<std::size_t>(size), memory, request);
}

inline int reg_mr_int(void* comm, void* data, int size, int type, void** handle) noexcept {
    return api::reg_mr(comm, data, static_cast<std::size_t>(size), type, handle);
}

// connect and accept with a device handle: NCCL passes a pointer to NULL for ordinary devices,
// which is left alone.
inline int connect_v7(int device, void* handle, void** comm, deft_net_device_handle_t**) noexcept {
    return api::connect(nullptr, device, handle, comm);
}

inline int accept_v7(void* listener, void** comm, deft_net_device_handle_t**) noexcept {
    return api::accept(listener, comm);
}

inline int listen_v6(int device, void* handle, void** comm) noexcept {
    return api::listen(nullptr, device, handle, comm);
}

inline int isend_v9(void* comm, void* data, std::size_t size, int, void* memory,
                    void** request) noexcept {
    return api::isend(comm, data, size, memory, request);
}

inline int irecv_v9(void* comm, int count, void** data, std::size_t* sizes, int*, void** memories,
                    void** request) noexcept {
    return api::irecv(comm, count, data, sizes, memories, request);
}

inline int isend_v10(void* comm, void* data, std::size_t size, int, void* memory, void*,
                     void** request) noexcept {
    return api::isend(comm, data, size, memory, request);
}

inline int irecv_v10(void* comm, int count, void** data, std::size_t* sizes, int*, void** memories,
                     void**, void** request) noexcept {
    return api::irecv(comm, count, data, sizes, memories, request);
}

inline int connect_v11(void* context, int device, void* handle, void** comm,
                       deft_net_device_handle_t**) noexcept {
    return api::connect(context, device, handle, comm);
}

inline int init_with_context(void** context, std::uint64_t communicator,
                             deft_net_comm_config_t* config, deft_net_logger_t logger,
                             int version) noexcept {
    const int traffic_class =
        config == nullptr ? static_cast<int>(DEFT_NET_TRAFFIC_CLASS_UNDEF) : config->trafficClass;
    return api::init(context, traffic_class, logger, version, communicator);
}

}  // namespace deft::net
