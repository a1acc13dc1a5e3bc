// SPDX-License-Identifier: Apache-2.0
// The table of the Socket transport: devices, connection set-up, and the calls that end in
// SocketComm.
#include "tests/softdev/net/socket_net.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <vector>

#include "tests/softdev/net/interfaces.h"
#include "tests/softdev/net/logger.h"
#include "tests/softdev/net/socket_comm.h"

namespace softdev::net {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxThreads = 16;
constexpr int kMaxSockets = 64;
constexpr int kConnectRetries = 34;  // NCCL_SOCKET_RETRY_CNT's default
constexpr auto kRetryPause = std::chrono::milliseconds(100);
constexpr size_t kMaxHalfOpen = 256;
constexpr uint64_t kHandleMagic = 0x54454e54464f5331;

// ---- per process: the interfaces ---------------------------------------------------------------

struct Devices {
    std::mutex mutex;
    int users = 0;  // communicators; the list is made anew by the first
    std::vector<Interface> list;
};

Devices& all_devices() {
    static Devices* devices = new Devices;
    return *devices;
}

const Interface* find_device(int dev) {
    Devices& devices = all_devices();
    const std::lock_guard<std::mutex> lock(devices.mutex);
    if (dev < 0 || static_cast<size_t>(dev) >= devices.list.size()) {
        SOFTNET_WARN("NET/Socket : there is no device %d, only %zu", dev, devices.list.size());
        return nullptr;
    }
    return &devices.list[dev];
}

// ---- connection set-up -------------------------------------------------------------------------

struct Stage;

struct Handle {
    uint64_t magic;
    uint64_t secret;
    Address address;
    int32_t sockets;  // data sockets beside the control socket
    int32_t threads;
    Stage* stage;  // the connecting side's scratch between calls; zero on arrival
};
static_assert(sizeof(Handle) <= DEFT_NET_HANDLE_MAXSIZE);

struct Hello {
    uint64_t secret;
    uint64_t connection;  // random, the same on all sockets of one connection
    uint64_t index;       // 0 control
};

// A connect that has not finished.
struct Stage {
    struct Socket {
        deft::UniqueFd fd;
        enum class State { Pause, Connecting, Greeting, Ready } state = State::Pause;
        Clock::time_point retry_at = Clock::now();
        int tries = 0;
        size_t sent = 0;
    };
    std::vector<Socket> sockets;
    uint64_t connection;
};

struct Context {
    std::mutex mutex;
    std::vector<std::unique_ptr<Stage>> stages;  // freed with the communicator if abandoned
};

struct Listener {
    struct HalfOpen {
        deft::UniqueFd fd;
        Hello hello;
        size_t received = 0;
    };
    deft::UniqueFd fd;
    std::string device;
    uint64_t secret;
    int sockets;
    int threads;
    std::vector<HalfOpen> half_open;
};

uint64_t random_word() {
    uint64_t word = 0;
    if (getrandom(&word, sizeof word, 0) != sizeof word) {
        word = Clock::now().time_since_epoch().count();
    }
    return word;
}

int number_from_environment(const char* name, int otherwise, int most) {
    const char* text = std::getenv(name);
    if (text == nullptr || *text == '\0') {
        return otherwise;
    }
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (*end != '\0' || value < 0 || value > most) {
        SOFTNET_WARN("NET/Socket : %s=%s is ignored, 0 to %d is possible", name, text, most);
        return otherwise;
    }
    return static_cast<int>(value);
}

void choose_sockets(const Interface& device, int* threads, int* sockets) {
    // The two clouds whose virtual NICs pace single flows; NCCL has the same defaults.
    const bool aws = device.vendor == "0x1d0f";
    const bool gcp = device.vendor == "0x1ae0";
    *threads = number_from_environment("NCCL_SOCKET_NTHREADS", aws ? 2 : gcp ? 4 : 0, kMaxThreads);
    const int each = number_from_environment("NCCL_NSOCKS_PERTHREAD",
                                             aws   ? 8
                                             : gcp ? 1
                                                   : 1,
                                             kMaxSockets);
    *sockets = std::min(*threads * each, kMaxSockets);
    if (*sockets == 0) {
        *threads = 0;
    }
}

void prepare(int fd) {
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

int system_error(const std::string& where, const char* call) {
    const int error = errno;
    SOFTNET_WARN("NET/Socket : %s: %s failed: %s", where.c_str(), call, strerror(error));
    return DEFT_NET_SYSTEM_ERROR;
}

int make_comm(Direction direction, std::vector<deft::UniqueFd> sockets, int threads,
              std::string description, void** comm) {
    try {
        *comm = new SocketComm(direction, std::move(sockets), threads, description);
        return DEFT_NET_SUCCESS;
    } catch (const std::system_error& error) {
        SOFTNET_WARN("NET/Socket : %s: helper thread: %s", description.c_str(), error.what());
        return DEFT_NET_SYSTEM_ERROR;
    }
}

// ---- table -------------------------------------------------------------------------------------

int socket_init(void** ctx, uint64_t, deft_net_comm_config_t*, deft_net_logger_t,
                deft_net_profiler_t) {
    Devices& devices = all_devices();
    const std::lock_guard<std::mutex> lock(devices.mutex);
    if (devices.users == 0) {
        devices.list = find_interfaces();
        if (devices.list.empty()) {
            const char* named = std::getenv("NCCL_SOCKET_IFNAME");
            SOFTNET_WARN("NET/Socket : no interface found (NCCL_SOCKET_IFNAME=%s)",
                         named != nullptr ? named : "unset");
            return DEFT_NET_INTERNAL_ERROR;
        }
        std::string line;
        for (const Interface& device : devices.list) {
            line += " [" + std::to_string(&device - devices.list.data()) + "]" + device.name + ":" +
                    to_text(device.address);
        }
        SOFTNET_INFO("NET/Socket : Using%s", line.c_str());
    }
    ++devices.users;
    *ctx = new Context;
    return DEFT_NET_SUCCESS;
}

int socket_finalize(void* ctx) {
    if (ctx == nullptr) {
        return DEFT_NET_SUCCESS;  // a failed init
    }
    delete static_cast<Context*>(ctx);
    Devices& devices = all_devices();
    const std::lock_guard<std::mutex> lock(devices.mutex);
    --devices.users;
    return DEFT_NET_SUCCESS;
}

int socket_devices(int* count) {
    Devices& devices = all_devices();
    const std::lock_guard<std::mutex> lock(devices.mutex);
    *count = static_cast<int>(devices.list.size());
    return DEFT_NET_SUCCESS;
}

int socket_properties(int dev, deft_net_props_v12_t* properties) {
    const Interface* device = find_device(dev);
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

int socket_listen(void*, int dev, void* opaque, void** listen_comm) {
    const Interface* device = find_device(dev);
    if (device == nullptr) {
        return DEFT_NET_INTERNAL_ERROR;
    }
    const std::string where = device->name + " " + to_text(device->address);
    Address address = device->address;
    if (address.base.sa_family == AF_INET6) {
        address.v6.sin6_port = 0;
    } else {
        address.v4.sin_port = 0;
    }
    auto listener = std::make_unique<Listener>();
    listener->fd.reset(
        socket(address.base.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    socklen_t length = address_length(address);
    if (!listener->fd || bind(listener->fd.get(), &address.base, length) != 0 ||
        listen(listener->fd.get(), SOMAXCONN) != 0 ||
        getsockname(listener->fd.get(), &address.base, &length) != 0) {
        return system_error(where, "listen");
    }
    listener->device = device->name;
    listener->secret = random_word();
    choose_sockets(*device, &listener->threads, &listener->sockets);
    Handle handle{};
    handle.magic = kHandleMagic;
    handle.secret = listener->secret;
    handle.address = address;
    handle.sockets = listener->sockets;
    handle.threads = listener->threads;
    std::memset(opaque, 0, DEFT_NET_HANDLE_MAXSIZE);
    std::memcpy(opaque, &handle, sizeof handle);
    *listen_comm = listener.release();
    return DEFT_NET_SUCCESS;
}

// Advances one socket of a connect; success also when it is not ready yet.
int advance(Stage& stage, size_t index, const Handle& handle, const std::string& where) {
    using State = Stage::Socket::State;
    Stage::Socket& socket_state = stage.sockets[index];
    if (socket_state.state == State::Pause) {
        if (Clock::now() < socket_state.retry_at) {
            return DEFT_NET_SUCCESS;
        }
        socket_state.fd.reset(
            socket(handle.address.base.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (!socket_state.fd) {
            return system_error(where, "socket");
        }
        prepare(socket_state.fd.get());
        ++socket_state.tries;
        // Both outcomes are read from SO_ERROR below.
        const int begun =
            ::connect(socket_state.fd.get(), &handle.address.base, address_length(handle.address));
        if (begun != 0 && errno != EINPROGRESS && errno != ECONNREFUSED && errno != EINTR) {
            return system_error(where, "connect");
        }
        if (begun != 0 && errno == ECONNREFUSED) {
            socket_state.state = State::Pause;
        } else {
            socket_state.state = State::Connecting;
        }
        if (socket_state.state == State::Pause) {
            socket_state.retry_at = Clock::now() + kRetryPause;
            return socket_state.tries < kConnectRetries
                       ? DEFT_NET_SUCCESS
                       : (errno = ECONNREFUSED, system_error(where, "connect"));
        }
    }
    if (socket_state.state == State::Connecting) {
        pollfd wait{socket_state.fd.get(), POLLOUT, 0};
        if (poll(&wait, 1, 0) <= 0) {
            return DEFT_NET_SUCCESS;
        }
        int error = 0;
        socklen_t length = sizeof error;
        getsockopt(socket_state.fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
        if ((error == ECONNREFUSED || error == ETIMEDOUT) && socket_state.tries < kConnectRetries) {
            socket_state.state = State::Pause;
            socket_state.retry_at = Clock::now() + kRetryPause;
            return DEFT_NET_SUCCESS;
        }
        if (error != 0) {
            errno = error;
            system_error(where, "connect");
            return error == ECONNREFUSED || error == ETIMEDOUT ? DEFT_NET_REMOTE_ERROR
                                                               : DEFT_NET_SYSTEM_ERROR;
        }
        socket_state.state = State::Greeting;
    }
    if (socket_state.state == State::Greeting) {
        const Hello hello{handle.secret, stage.connection, index};
        const ssize_t sent =
            send(socket_state.fd.get(), reinterpret_cast<const char*>(&hello) + socket_state.sent,
                 sizeof hello - socket_state.sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) {
            return errno == EAGAIN || errno == EINTR ? DEFT_NET_SUCCESS
                                                     : system_error(where, "greeting");
        }
        socket_state.sent += sent;
        if (socket_state.sent == sizeof hello) {
            socket_state.state = State::Ready;
        }
    }
    return DEFT_NET_SUCCESS;
}

int socket_connect(void* ctx, int dev, void* opaque, void** send_comm, deft_net_device_handle_t**) {
    *send_comm = nullptr;
    const Interface* device = find_device(dev);
    if (device == nullptr) {
        return DEFT_NET_INTERNAL_ERROR;
    }
    Handle handle;
    std::memcpy(&handle, opaque, sizeof handle);
    if (handle.magic != kHandleMagic || handle.sockets < 0 || handle.sockets > kMaxSockets ||
        handle.threads < 0 || handle.threads > kMaxThreads ||
        (handle.sockets > 0) != (handle.threads > 0)) {
        SOFTNET_WARN("NET/Socket : %s: connect: the handle is not one of this transport",
                     device->name.c_str());
        return DEFT_NET_INVALID_ARGUMENT;
    }
    const std::string where = device->name + " to " + to_text(handle.address);
    Context& context = *static_cast<Context*>(ctx);
    if (handle.stage == nullptr) {
        auto stage = std::make_unique<Stage>();
        stage->sockets.resize(1 + handle.sockets);
        stage->connection = random_word();
        handle.stage = stage.get();
        std::memcpy(opaque, &handle, sizeof handle);
        const std::lock_guard<std::mutex> lock(context.mutex);
        context.stages.push_back(std::move(stage));
    }
    Stage& stage = *handle.stage;
    int result = DEFT_NET_SUCCESS;
    bool ready = true;
    for (size_t i = 0; i < stage.sockets.size() && result == DEFT_NET_SUCCESS; ++i) {
        result = advance(stage, i, handle, where);
        ready = ready && stage.sockets[i].state == Stage::Socket::State::Ready;
    }
    if (result == DEFT_NET_SUCCESS && !ready) {
        return DEFT_NET_SUCCESS;
    }
    if (result == DEFT_NET_SUCCESS) {
        std::vector<deft::UniqueFd> sockets;
        for (Stage::Socket& socket_state : stage.sockets) {
            sockets.push_back(std::move(socket_state.fd));
        }
        result = make_comm(Direction::Send, std::move(sockets), handle.threads, where, send_comm);
    }
    handle.stage = nullptr;
    std::memcpy(opaque, &handle, sizeof handle);
    const std::lock_guard<std::mutex> lock(context.mutex);
    std::erase_if(context.stages, [&](const auto& one) { return one.get() == &stage; });
    return result;
}

int socket_accept(void* opaque, void** recv_comm, deft_net_device_handle_t**) {
    *recv_comm = nullptr;
    Listener& listener = *static_cast<Listener*>(opaque);
    for (;;) {
        deft::UniqueFd fd(
            accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!fd) {
            if (errno == EINTR || errno == ECONNABORTED) {
                continue;
            }
            if (errno == EAGAIN || errno == EWOULDBLOCK) {
                break;
            }
            return system_error(listener.device, "accept");
        }
        if (listener.half_open.size() < kMaxHalfOpen) {
            prepare(fd.get());
            listener.half_open.push_back({std::move(fd), {}, 0});
        }
    }
    // Strangers, who do not know the secret, are dropped and the listener goes on.
    std::erase_if(listener.half_open, [&](Listener::HalfOpen& half) {
        if (half.received == sizeof half.hello) {
            return false;
        }
        const ssize_t bytes =
            recv(half.fd.get(), reinterpret_cast<char*>(&half.hello) + half.received,
                 sizeof half.hello - half.received, MSG_DONTWAIT);
        if (bytes <= 0) {
            return bytes == 0 || (errno != EAGAIN && errno != EINTR);
        }
        half.received += bytes;
        return half.received == sizeof half.hello &&
               (half.hello.secret != listener.secret ||
                half.hello.index > static_cast<uint64_t>(listener.sockets));
    });
    const size_t needed = 1 + listener.sockets;
    for (const Listener::HalfOpen& first : listener.half_open) {
        if (first.received != sizeof first.hello) {
            continue;
        }
        const uint64_t connection = first.hello.connection;
        std::vector<deft::UniqueFd*> found(needed);
        for (Listener::HalfOpen& half : listener.half_open) {
            if (half.received == sizeof half.hello && half.hello.connection == connection) {
                found[half.hello.index] = &half.fd;
            }
        }
        if (std::find(found.begin(), found.end(), nullptr) != found.end()) {
            continue;
        }
        Address peer{};
        socklen_t length = sizeof peer;
        getpeername(found[0]->get(), &peer.base, &length);
        std::vector<deft::UniqueFd> sockets;
        for (deft::UniqueFd* fd : found) {
            sockets.push_back(std::move(*fd));
        }
        std::erase_if(listener.half_open, [&](const Listener::HalfOpen& half) {
            return half.received == sizeof half.hello && half.hello.connection == connection;
        });
        return make_comm(Direction::Receive, std::move(sockets), listener.threads,
                         listener.device + " from " + to_text(peer), recv_comm);
    }
    return DEFT_NET_SUCCESS;
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
    delete static_cast<Listener*>(listen_comm);
    return DEFT_NET_SUCCESS;
}

constexpr deft_net_v12_t kTable = {
    .name = "Socket",
    .init = socket_init,
    .devices = socket_devices,
    .getProperties = socket_properties,
    .listen = socket_listen,
    .connect = socket_connect,
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
    .finalize = socket_finalize,
    .setNetAttr = nullptr,
};

}  // namespace

const deft_net_v12_t* socket_table() {
    return &kTable;
}

}  // namespace softdev::net
