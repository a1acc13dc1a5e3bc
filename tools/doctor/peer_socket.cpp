// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/peer_socket.h"

#include <poll.h>
#include <algorithm>
#include <cerrno>
#include <cstring>

namespace deft::tools::doctor {
namespace {

// False: the deadline has passed.
bool wait_for(int fd, short events, Deadline deadline) {
    for (;;) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
            deadline - std::chrono::steady_clock::now());
        pollfd ready{fd, events, 0};
        const int count = ::poll(&ready, 1, static_cast<int>(std::max<long>(left.count(), 0)));
        if (count != 0 && !(count < 0 && errno == EINTR)) {
            return count > 0;
        }
        if (count == 0) {
            return false;
        }
    }
}

}  // namespace

Deadline after(std::chrono::milliseconds time) {
    return std::chrono::steady_clock::now() + time;
}

UniqueFd connect_to(const sockaddr* address, socklen_t length, const std::string& device,
                    const sockaddr* from, socklen_t from_length, Deadline deadline,
                    std::string& error) {
    UniqueFd fd(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) {
        error = std::strerror(errno);
        return fd;
    }
    if (!device.empty()) {
        // Before Linux 5.7 only root may; the address alone then has to do.
        (void)::setsockopt(fd.get(), SOL_SOCKET, SO_BINDTODEVICE, device.c_str(),
                           static_cast<socklen_t>(device.size()));
    }
    if (from != nullptr && ::bind(fd.get(), from, from_length) != 0) {
        error = std::strerror(errno);
        return UniqueFd();
    }
    if (::connect(fd.get(), address, length) != 0 && errno != EINPROGRESS) {
        error = std::strerror(errno);
        return UniqueFd();
    }
    if (!wait_for(fd.get(), POLLOUT, deadline)) {
        error = "no answer";
        return UniqueFd();
    }
    int result = 0;
    socklen_t size = sizeof result;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &result, &size) != 0 || result != 0) {
        error = std::strerror(result);
        return UniqueFd();
    }
    return fd;
}

bool send_all(int fd, const void* bytes, std::size_t size, Deadline deadline) {
    const char* at = static_cast<const char*>(bytes);
    while (size > 0) {
        const ssize_t sent = ::send(fd, at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            at += sent;
            size -= static_cast<std::size_t>(sent);
        } else if ((errno != EAGAIN && errno != EINTR) || !wait_for(fd, POLLOUT, deadline)) {
            return false;
        }
    }
    return true;
}

bool receive_all(int fd, void* bytes, std::size_t size, Deadline deadline) {
    char* at = static_cast<char*>(bytes);
    while (size > 0) {
        const ssize_t received = ::recv(fd, at, size, MSG_DONTWAIT);
        if (received > 0) {
            at += received;
            size -= static_cast<std::size_t>(received);
        } else if (received == 0 || (errno != EAGAIN && errno != EINTR) ||
                   !wait_for(fd, POLLIN, deadline)) {
            return false;
        }
    }
    return true;
}

std::string receive_text(int fd, std::size_t most, Deadline deadline) {
    std::string text;
    char byte[1024];
    while (text.size() < most) {
        const ssize_t received = ::recv(fd, byte, sizeof byte, MSG_DONTWAIT);
        if (received > 0) {
            text.append(byte, static_cast<std::size_t>(received));
        } else if (received == 0 || (errno != EAGAIN && errno != EINTR) ||
                   !wait_for(fd, POLLIN, deadline)) {
            break;
        }
    }
    return text;
}

}  // namespace deft::tools::doctor
