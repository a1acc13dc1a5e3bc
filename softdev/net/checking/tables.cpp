// SPDX-License-Identifier: Apache-2.0
// The plugin tables of the checking plugin, from v6 to CHECKING_NEWEST. Here is what differs by
// version: argument types and what NCCL's adapters must have done.
#include <cstring>

#include "softdev/net/checking/checker.h"

// A build with the older tables only leaves the newer ones' functions over.
#pragma GCC diagnostic ignored "-Wunused-function"

#ifndef CHECKING_NAME
#define CHECKING_NAME "Checking"
#endif
#ifndef CHECKING_NEWEST
#define CHECKING_NEWEST 12
#endif

namespace softdev::net::checking {

const char* name() {
    return CHECKING_NAME;
}

namespace {

// Written when the file is really unloaded.
[[gnu::destructor]] void unloaded() {
    shut_down();
    note("unload");
}

void check_device_handle(deft_net_device_handle_t** handle) {
    if (handle == nullptr || *handle != nullptr) {
        violation("the device handle is not a pointer to NULL");
    }
}

void check_int_size(size_t bytes) {
    if (bytes > DEFT_NET_MAX_SIZE_INT32) {
        violation("%zu bytes through a table with int sizes", bytes);
    }
}

template <int V>
int init_old(deft_net_logger_t logger) {
    if (logger == nullptr) {
        violation("init without a logger");
    }
    return init(V, nullptr, 0, nullptr);
}

int init_v10(deft_net_logger_t logger, deft_net_profiler_t profiler) {
    if (logger == nullptr || profiler == nullptr) {
        violation("init without a logger or profiler callback");
    }
    return init(10, nullptr, 0, nullptr);
}

template <int V>
int init_new(void** ctx, uint64_t comm_id, deft_net_comm_config_t* config, deft_net_logger_t logger,
             deft_net_profiler_t profiler) {
    if (ctx == nullptr || config == nullptr || logger == nullptr || profiler == nullptr) {
        violation("init without context, config, logger or profiler callback");
    }
    return init(V, ctx, comm_id, config);
}

template <typename Props>
int get_properties(int device, Props* props) {
    deft_net_props_v12_t all;
    const int result = properties(device, &all);
    if (result != DEFT_NET_SUCCESS) {
        return result;
    }
    props->name = all.name;
    props->pciPath = all.pciPath;
    props->guid = all.guid;
    props->ptrSupport = all.ptrSupport;
    props->speed = all.speed;
    props->port = all.port;
    props->latency = all.latency;
    props->maxComms = all.maxComms;
    props->maxRecvs = all.maxRecvs;
    if constexpr (requires { props->netDeviceType; }) {
        props->netDeviceType = all.netDeviceType;
        props->netDeviceVersion = all.netDeviceVersion;
    }
    if constexpr (requires { props->regIsGlobal; }) {
        props->regIsGlobal = 0;
    }
    if constexpr (requires { props->forceFlush; }) {
        props->forceFlush = 0;
        props->vProps.ndevs = all.vProps.ndevs;
        std::memcpy(props->vProps.devs, all.vProps.devs, sizeof props->vProps.devs);
        props->maxP2pBytes = all.maxP2pBytes;
        props->maxCollBytes = all.maxCollBytes;
    }
    if constexpr (requires { props->maxMultiRequestSize; }) {
        props->maxMultiRequestSize = 1;
    }
    if constexpr (requires { props->railId; }) {
        props->railId = all.railId;
        props->planeId = all.planeId;
    }
    return DEFT_NET_SUCCESS;
}

int listen_old(int device, void* handle, void** comm) {
    return listen(nullptr, device, handle, comm);
}

int connect_v6(int device, void* handle, void** comm) {
    return connect(nullptr, device, handle, comm);
}
int connect_v7(int device, void* handle, void** comm, deft_net_device_handle_t** device_handle) {
    check_device_handle(device_handle);
    return connect(nullptr, device, handle, comm);
}
int connect_v10(int device, deft_net_comm_config_t* config, void* handle, void** comm,
                deft_net_device_handle_t** device_handle) {
    check_device_handle(device_handle);
    if (config == nullptr || config->trafficClass < DEFT_NET_TRAFFIC_CLASS_UNDEF) {
        violation("connect without a usable config");
    }
    const int result = connect(nullptr, device, handle, comm);
    if (*comm != nullptr && config != nullptr) {
        note("connect traffic class %d", config->trafficClass);
    }
    return result;
}
int connect_v11(void* ctx, int device, void* handle, void** comm,
                deft_net_device_handle_t** device_handle) {
    check_device_handle(device_handle);
    return connect(ctx, device, handle, comm);
}
int accept_v7(void* listening, void** comm, deft_net_device_handle_t** device_handle) {
    check_device_handle(device_handle);
    return accept(listening, comm);
}

int reg_mr_int(void* comm, void* data, int bytes, int type, void** mhandle) {
    if (bytes < 0) {
        violation("regMr of %d bytes", bytes);
    }
    return reg_mr(comm, data, bytes, type, mhandle);
}

int isend_int(void* comm, void* data, int bytes, int tag, void* mhandle, void** request) {
    check_int_size(bytes);
    return isend(comm, data, bytes, tag, mhandle, request);
}
int isend_v10(void* comm, void* data, size_t bytes, int tag, void* mhandle, void*, void** request) {
    return isend(comm, data, bytes, tag, mhandle, request);
}

int irecv_int(void* comm, int n, void** data, int* bytes, int* tags, void** mhandles,
              void** request) {
    check_int_size(bytes[0]);
    if (*request == DEFT_NET_OPTIONAL_RECV_COMPLETION) {
        violation("irecv through a table before v9 with the early completion marker");
    }
    const size_t size = bytes[0];
    return irecv(comm, n, data, &size, tags, mhandles, request);
}
int irecv_v9(void* comm, int n, void** data, size_t* bytes, int* tags, void** mhandles,
             void** request) {
    return irecv(comm, n, data, bytes, tags, mhandles, request);
}
int irecv_v10(void* comm, int n, void** data, size_t* bytes, int* tags, void** mhandles,
              void** phandles, void** request) {
    if (phandles == nullptr) {
        violation("irecv without profiler handles");
    }
    return irecv(comm, n, data, bytes, tags, mhandles, request);
}

int flush(void* comm, int n, void** data, int* bytes, void** mhandles, void** request) {
    return iflush(comm, n, data, bytes, mhandles, request);
}
int close_send(void* comm) {
    return close(comm, CommKind::Send);
}
int close_recv(void* comm) {
    return close(comm, CommKind::Receive);
}
int close_listen(void* comm) {
    return close(comm, CommKind::Listen);
}
int set_attr(void* ctx, deft_net_attr_t* attr) {
    set_attributes(ctx, attr);
    return DEFT_NET_SUCCESS;
}

}  // namespace
}  // namespace softdev::net::checking

#define CHECKING_EXPORT extern "C" [[gnu::visibility("default")]] const
using namespace softdev::net::checking;  // NOLINT: the tables name nothing else

CHECKING_EXPORT deft_net_v6_t ncclNetPlugin_v6 = {
    CHECKING_NAME, init_old<6>, devices,    get_properties<deft_net_props_v6_t>,
    listen_old,    connect_v6,  accept,     reg_mr_int,
    nullptr,       dereg_mr,    isend_int,  irecv_int,
    flush,         test,        close_send, close_recv,
    close_listen};
#if CHECKING_NEWEST >= 7
CHECKING_EXPORT deft_net_v7_t ncclNetPlugin_v7 = {
    CHECKING_NAME, init_old<7>, devices,    get_properties<deft_net_props_v7_t>,
    listen_old,    connect_v7,  accept_v7,  reg_mr_int,
    nullptr,       dereg_mr,    isend_int,  irecv_int,
    flush,         test,        close_send, close_recv,
    close_listen,  nullptr,     consumed};
#endif
#if CHECKING_NEWEST >= 8
CHECKING_EXPORT deft_net_v8_t ncclNetPlugin_v8 = {
    CHECKING_NAME, init_old<8>, devices,    get_properties<deft_net_props_v8_t>,
    listen_old,    connect_v7,  accept_v7,  reg_mr,
    nullptr,       dereg_mr,    isend_int,  irecv_int,
    flush,         test,        close_send, close_recv,
    close_listen,  nullptr,     consumed};
#endif
#if CHECKING_NEWEST >= 9
CHECKING_EXPORT deft_net_v9_t ncclNetPlugin_v9 = {
    CHECKING_NAME, init_old<9>, devices,    get_properties<deft_net_props_v9_t>,
    listen_old,    connect_v7,  accept_v7,  reg_mr,
    nullptr,       dereg_mr,    isend,      irecv_v9,
    flush,         test,        close_send, close_recv,
    close_listen,  nullptr,     consumed,   nullptr};
#endif
#if CHECKING_NEWEST >= 10
CHECKING_EXPORT deft_net_v10_t ncclNetPlugin_v10 = {
    CHECKING_NAME, init_v10,    devices,    get_properties<deft_net_props_v9_t>,
    listen_old,    connect_v10, accept_v7,  reg_mr,
    nullptr,       dereg_mr,    isend_v10,  irecv_v10,
    flush,         test,        close_send, close_recv,
    close_listen,  nullptr,     consumed,   nullptr};
#endif
#if CHECKING_NEWEST >= 11
CHECKING_EXPORT deft_net_v11_t ncclNetPlugin_v11 = {
    CHECKING_NAME, init_new<11>, devices,    get_properties<deft_net_props_v11_t>,
    listen,        connect_v11,  accept_v7,  reg_mr,
    nullptr,       dereg_mr,     isend_v10,  irecv_v10,
    flush,         test,         close_send, close_recv,
    close_listen,  nullptr,      consumed,   nullptr,
    finalize,      set_attr};
#endif
#if CHECKING_NEWEST >= 12
CHECKING_EXPORT deft_net_v12_t ncclNetPlugin_v12 = {
    CHECKING_NAME, init_new<12>, devices,    get_properties<deft_net_props_v12_t>,
    listen,        connect_v11,  accept_v7,  reg_mr,
    nullptr,       dereg_mr,     isend_v10,  irecv_v10,
    flush,         test,         close_send, close_recv,
    close_listen,  nullptr,      consumed,   nullptr,
    finalize,      set_attr};
#endif
