// SPDX-License-Identifier: Apache-2.0
#include "softdev/net/socket_setup.h"

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
#include <string>
#include <system_error>
#include <vector>

#include "deft/abi/net.h"
#include "softdev/net/logger.h"
#include "softdev/net/socket_comm.h"

namespace softdev::net {

using Clock = std::chrono::steady_clock;

namespace {

constexpr int kMaxThreads = 16;
constexpr int kMaxSockets = 64;
constexpr int kConnectRetries = 34;  // NCCL_SOCKET_RETRY_CNT's default
constexpr auto kRetryPause = std::chrono::milliseconds(100);
constexpr size_t kMaxHalfOpen = 256;
constexpr uint64_t kHandleMagic = 0x54454e54464f5331;

struct Hello {
    uint64_t secret;
    uint64_t connection;  // random, the same on all sockets of one connection
    uint64_t index;       // 0 control
};

}  // namespace

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

struct SetupContext {
    std::mutex mutex;
    std::vector<std::unique_ptr<Stage>> stages;  // freed with the communicator if abandoned
};

struct SocketListener {
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
    bool faults;
    std::vector<HalfOpen> half_open;
};

namespace {

struct Handle {
    uint64_t magic;
    uint64_t secret;
    Address address;
    int32_t sockets;  // data sockets beside the control socket
    int32_t threads;
    Stage* stage;  // the connecting side's scratch between calls; zero on arrival
};
static_assert(sizeof(Handle) <= DEFT_NET_HANDLE_MAXSIZE);

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
    const int each = number_from_environment("NCCL_NSOCKS_PERTHREAD", aws ? 8 : 1, kMaxSockets);
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
              std::string description, bool faults, void** comm) {
    try {
        *comm = new SocketComm(direction, std::move(sockets), threads, description, faults);
        return DEFT_NET_SUCCESS;
    } catch (const std::system_error& error) {
        SOFTNET_WARN("NET/Socket : %s: helper thread: %s", description.c_str(), error.what());
        return DEFT_NET_SYSTEM_ERROR;
    }
}

// After a refusal: once more in a while, as often as NCCL does.
int try_again(Stage::Socket& one, int error, const std::string& where) {
    errno = error;
    if ((error != ECONNREFUSED && error != ETIMEDOUT) || one.tries >= kConnectRetries) {
        const int result = system_error(where, "connect");
        return error == ECONNREFUSED || error == ETIMEDOUT ? DEFT_NET_REMOTE_ERROR : result;
    }
    one.state = Stage::Socket::State::Pause;
    one.retry_at = Clock::now() + kRetryPause;
    return DEFT_NET_SUCCESS;
}

// Advances one socket of a connect; success also when it is not ready yet.
int advance(Stage& stage, size_t index, const Handle& handle, const std::string& where) {
    using State = Stage::Socket::State;
    Stage::Socket& one = stage.sockets[index];
    if (one.state == State::Pause) {
        if (Clock::now() < one.retry_at) {
            return DEFT_NET_SUCCESS;
        }
        one.fd.reset(
            socket(handle.address.base.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (!one.fd) {
            return system_error(where, "socket");
        }
        prepare(one.fd.get());
        ++one.tries;
        if (connect(one.fd.get(), &handle.address.base, address_length(handle.address)) != 0 &&
            errno != EINPROGRESS && errno != EINTR) {
            return try_again(one, errno, where);
        }
        one.state = State::Connecting;
    }
    if (one.state == State::Connecting) {
        pollfd wait{one.fd.get(), POLLOUT, 0};
        if (poll(&wait, 1, 0) <= 0) {
            return DEFT_NET_SUCCESS;
        }
        int error = 0;
        socklen_t length = sizeof error;
        getsockopt(one.fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
        if (error != 0) {
            return try_again(one, error, where);
        }
        one.state = State::Greeting;
    }
    if (one.state == State::Greeting) {
        const Hello hello{handle.secret, stage.connection, index};
        const ssize_t sent = send(one.fd.get(), reinterpret_cast<const char*>(&hello) + one.sent,
                                  sizeof hello - one.sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) {
            return errno == EAGAIN || errno == EINTR ? DEFT_NET_SUCCESS
                                                     : system_error(where, "greeting");
        }
        one.sent += sent;
        if (one.sent == sizeof hello) {
            one.state = State::Ready;
        }
    }
    return DEFT_NET_SUCCESS;
}

// The connect the handle's scratch refers to, or a new one.
Stage& find_stage(SetupContext* context, Handle* handle, void* opaque) {
    const std::lock_guard<std::mutex> lock(context->mutex);
    for (const auto& stage : context->stages) {
        if (stage.get() == handle->stage) {
            return *stage;
        }
    }
    auto stage = std::make_unique<Stage>();
    stage->sockets.resize(1 + handle->sockets);
    stage->connection = random_word();
    handle->stage = stage.get();
    std::memcpy(opaque, handle, sizeof *handle);
    context->stages.push_back(std::move(stage));
    return *handle->stage;
}

}  // namespace

SetupContext* setup_begin() {
    return new SetupContext;
}
void setup_end(SetupContext* context) {
    delete context;
}
void setup_close(SocketListener* listener) {
    delete listener;
}

int setup_listen(const Interface& device, void* opaque, SocketListener** listen_comm) {
    const std::string where = device.name + " " + to_text(device.address);
    Address address = device.address;
    if (address.base.sa_family == AF_INET6) {
        address.v6.sin6_port = 0;
    } else {
        address.v4.sin_port = 0;
    }
    auto listener = std::make_unique<SocketListener>();
    listener->fd.reset(
        socket(address.base.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    socklen_t length = address_length(address);
    if (!listener->fd || bind(listener->fd.get(), &address.base, length) != 0 ||
        listen(listener->fd.get(), SOMAXCONN) != 0 ||
        getsockname(listener->fd.get(), &address.base, &length) != 0) {
        return system_error(where, "listen");
    }
    listener->device = device.name;
    listener->faults = device.faults;
    listener->secret = random_word();
    choose_sockets(device, &listener->threads, &listener->sockets);
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

int setup_connect(SetupContext* context, const Interface& device, void* opaque, void** send_comm) {
    *send_comm = nullptr;
    Handle handle;
    std::memcpy(&handle, opaque, sizeof handle);
    if (handle.magic != kHandleMagic || handle.sockets < 0 || handle.sockets > kMaxSockets ||
        handle.threads < 0 || handle.threads > kMaxThreads ||
        (handle.sockets > 0) != (handle.threads > 0)) {
        SOFTNET_WARN("NET/Socket : %s: connect: the handle is not one of this transport",
                     device.name.c_str());
        return DEFT_NET_INVALID_ARGUMENT;
    }
    const std::string where = device.name + " to " + to_text(handle.address);
    Stage& stage = find_stage(context, &handle, opaque);
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
        for (Stage::Socket& one : stage.sockets) {
            sockets.push_back(std::move(one.fd));
        }
        result = make_comm(Direction::Send, std::move(sockets), handle.threads, where,
                           device.faults, send_comm);
    }
    handle.stage = nullptr;
    std::memcpy(opaque, &handle, sizeof handle);
    const std::lock_guard<std::mutex> lock(context->mutex);
    std::erase_if(context->stages, [&](const auto& one) { return one.get() == &stage; });
    return result;
}

int setup_accept(SocketListener* listening, void** recv_comm) {
    *recv_comm = nullptr;
    SocketListener& listener = *listening;
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
    std::erase_if(listener.half_open, [&](SocketListener::HalfOpen& half) {
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
    for (const SocketListener::HalfOpen& first : listener.half_open) {
        if (first.received != sizeof first.hello) {
            continue;
        }
        const uint64_t connection = first.hello.connection;
        std::vector<deft::UniqueFd*> found(needed);
        for (SocketListener::HalfOpen& half : listener.half_open) {
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
        std::erase_if(listener.half_open, [&](const SocketListener::HalfOpen& half) {
            return half.received == sizeof half.hello && half.hello.connection == connection;
        });
        return make_comm(Direction::Receive, std::move(sockets), listener.threads,
                         listener.device + " from " + to_text(peer), listener.faults, recv_comm);
    }
    return DEFT_NET_SUCCESS;
}

}  // namespace softdev::net
