// SPDX-License-Identifier: Apache-2.0
// The tables of the built-in transports, Socket and IB: devices, and the calls that end in
// socket_setup and SocketComm. IB moves its bytes over TCP too, on the interface of each port.
#include "softdev/net/socket_net.h"

#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "softdev/net/ib_ports.h"
#include "softdev/net/interfaces.h"
#include "softdev/net/logger.h"
#include "softdev/net/never_destroyed.h"
#include "softdev/net/socket_comm.h"
#include "softdev/net/socket_faults.h"
#include "softdev/net/socket_setup.h"

namespace softdev::net {
namespace {

struct Socket {
    static constexpr const char* kName = "Socket";
    static std::vector<Interface> find() { return find_interfaces(); }
    static bool init() { return SocketFaults::process().init(); }
};

struct Ib {
    static constexpr const char* kName = "IB";
    static std::vector<Interface> find() { return find_ib_ports(); }
    static bool init() { return true; }
};

// ---- per process: the devices ------------------------------------------------------------------

struct Devices {
    std::mutex mutex;
    int users = 0;  // communicators; the list is made anew by the first
    std::vector<Interface> list;
};

template <class Transport>
Devices& all_devices() {
    static NeverDestroyed<Devices> devices;
    return devices.value;
}

template <class Transport>
const Interface* find_device(int dev) {
    Devices& devices = all_devices<Transport>();
    const std::lock_guard<std::mutex> lock(devices.mutex);
    if (dev < 0 || static_cast<size_t>(dev) >= devices.list.size()) {
        SOFTNET_WARN("NET/%s : there is no device %d, only %zu", Transport::kName, dev,
                     devices.list.size());
        return nullptr;
    }
    return &devices.list[dev];
}

// ---- table -------------------------------------------------------------------------------------

template <class Transport>
int socket_init(void** ctx, uint64_t, deft_net_comm_config_t*, deft_net_logger_t,
                deft_net_profiler_t) {
    if (!Transport::init()) {
        return DEFT_NET_INVALID_ARGUMENT;
    }
    Devices& devices = all_devices<Transport>();
    const std::lock_guard<std::mutex> lock(devices.mutex);
    if (devices.users == 0) {
        devices.list = Transport::find();
        if (devices.list.empty()) {
            const char* named = std::getenv("NCCL_SOCKET_IFNAME");
            SOFTNET_WARN("NET/%s : no interface found (NCCL_SOCKET_IFNAME=%s)", Transport::kName,
                         named != nullptr ? named : "unset");
            return DEFT_NET_INTERNAL_ERROR;
        }
        std::string line;
        for (const Interface& device : devices.list) {
            line += " [" + std::to_string(&device - devices.list.data()) + "]" + device.name + ":" +
                    to_text(device.address);
        }
        SOFTNET_INFO("NET/%s : Using%s", Transport::kName, line.c_str());
    }
    ++devices.users;
    *ctx = setup_begin();
    return DEFT_NET_SUCCESS;
}

template <class Transport>
int socket_finalize(void* ctx) {
    if (ctx == nullptr) {
        return DEFT_NET_SUCCESS;  // a failed init
    }
    setup_end(static_cast<SetupContext*>(ctx));
    Devices& devices = all_devices<Transport>();
    const std::lock_guard<std::mutex> lock(devices.mutex);
    if (--devices.users == 0) {
        std::vector<Interface>().swap(devices.list);  // its memory too
    }
    return DEFT_NET_SUCCESS;
}

template <class Transport>
int socket_devices(int* count) {
    Devices& devices = all_devices<Transport>();
    const std::lock_guard<std::mutex> lock(devices.mutex);
    *count = static_cast<int>(devices.list.size());
    return DEFT_NET_SUCCESS;
}

template <class Transport>
int socket_properties(int dev, deft_net_props_v12_t* properties) {
    const Interface* device = find_device<Transport>(dev);
    if (device == nullptr) {
        return DEFT_NET_INTERNAL_ERROR;
    }
    *properties = {};
    properties->name = const_cast<char*>(device->name.c_str());
    properties->pciPath =
        device->pci_path.empty() ? nullptr : const_cast<char*>(device->pci_path.c_str());
    properties->guid = dev;
    properties->ptrSupport = DEFT_NET_PTR_HOST;
    properties->speed = device->speed_mbps;
    properties->maxComms = 65536;
    properties->maxRecvs = 1;
    properties->netDeviceType = DEFT_NET_DEVICE_HOST;
    properties->netDeviceVersion = DEFT_NET_DEVICE_HOST_VERSION;
    properties->vProps.ndevs = 1;
    properties->vProps.devs[0] = dev;
    properties->maxP2pBytes = DEFT_NET_MAX_BYTES;
    properties->maxCollBytes = DEFT_NET_MAX_BYTES;
    properties->maxMultiRequestSize = 1;
    properties->railId = -1;
    properties->planeId = -1;
    return DEFT_NET_SUCCESS;
}

template <class Transport>
int socket_listen(void*, int dev, void* handle, void** listen_comm) {
    const Interface* device = find_device<Transport>(dev);
    return device != nullptr
               ? setup_listen(*device, handle, reinterpret_cast<SocketListener**>(listen_comm))
               : DEFT_NET_INTERNAL_ERROR;
}

template <class Transport>
int socket_connect(void* ctx, int dev, void* handle, void** send_comm, deft_net_device_handle_t**) {
    *send_comm = nullptr;
    const Interface* device = find_device<Transport>(dev);
    return device != nullptr
               ? setup_connect(static_cast<SetupContext*>(ctx), *device, handle, send_comm)
               : DEFT_NET_INTERNAL_ERROR;
}

int socket_accept(void* listen_comm, void** recv_comm, deft_net_device_handle_t**) {
    *recv_comm = nullptr;
    return setup_accept(static_cast<SocketListener*>(listen_comm), recv_comm);
}

int socket_reg_mr(void*, void*, size_t, int type, void** mhandle) {
    *mhandle = nullptr;
    return type == DEFT_NET_PTR_HOST ? DEFT_NET_SUCCESS : DEFT_NET_INTERNAL_ERROR;
}

int socket_dereg_mr(void*, void*) {
    return DEFT_NET_SUCCESS;
}

int post(void* comm, Direction direction, void* data, size_t bytes, void** request) {
    SocketComm& socket_comm = *static_cast<SocketComm*>(comm);
    *request = socket_comm.direction() == direction ? socket_comm.post(data, bytes) : nullptr;
    if (*request == nullptr) {
        SOFTNET_WARN("NET/Socket : %s", socket_comm.direction() == direction
                                            ? "more than 32 requests outstanding on one comm"
                                            : "send on a receive comm or the reverse");
        return DEFT_NET_INTERNAL_ERROR;
    }
    return DEFT_NET_SUCCESS;
}

int socket_isend(void* send_comm, void* data, size_t bytes, int, void*, void*, void** request) {
    return post(send_comm, Direction::Send, data, bytes, request);
}

int socket_irecv(void* recv_comm, int n, void** data, size_t* bytes, int*, void**, void**,
                 void** request) {
    if (n != 1) {
        SOFTNET_WARN("NET/Socket : irecv of %d buffers, the device takes 1", n);
        return DEFT_NET_INTERNAL_ERROR;
    }
    return post(recv_comm, Direction::Receive, data[0], bytes[0], request);
}

int socket_iflush(void*, int, void**, int*, void**, void**) {
    SOFTNET_WARN("NET/Socket : iflush is for device memory, which this transport does not take");
    return DEFT_NET_INTERNAL_ERROR;
}

int socket_test(void* request, int* done, int* bytes) {
    SocketRequest* socket_request = static_cast<SocketRequest*>(request);
    return socket_request->comm->test(socket_request, done, bytes);
}

int socket_close(void* comm) {
    delete static_cast<SocketComm*>(comm);
    return DEFT_NET_SUCCESS;
}

int socket_close_listen(void* listen_comm) {
    setup_close(static_cast<SocketListener*>(listen_comm));
    return DEFT_NET_SUCCESS;
}

template <class Transport>
constexpr deft_net_v12_t kTable = {
    .name = Transport::kName,
    .init = socket_init<Transport>,
    .devices = socket_devices<Transport>,
    .getProperties = socket_properties<Transport>,
    .listen = socket_listen<Transport>,
    .connect = socket_connect<Transport>,
    .accept = socket_accept,
    .regMr = socket_reg_mr,
    .regMrDmaBuf = nullptr,
    .deregMr = socket_dereg_mr,
    .isend = socket_isend,
    .irecv = socket_irecv,
    .iflush = socket_iflush,
    .test = socket_test,
    .closeSend = socket_close,
    .closeRecv = socket_close,
    .closeListen = socket_close_listen,
    .getDeviceMr = nullptr,
    .irecvConsumed = nullptr,
    .makeVDevice = nullptr,
    .finalize = socket_finalize<Transport>,
    .setNetAttr = nullptr,
};

}  // namespace

const deft_net_v12_t* socket_table() {
    return &kTable<Socket>;
}

const deft_net_v12_t* ib_table() {
    return &kTable<Ib>;
}

}  // namespace softdev::net
