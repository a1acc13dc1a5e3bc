// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "softdev/nccl/env.h"
#include "softdev/nccl/error.h"
#include "softdev/nccl/log.h"

namespace softdev::nccl {
namespace {

socklen_t length_of(const Address& address) {
    return address.any.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

std::vector<Interface> interfaces() {
    std::vector<Interface> found;
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) != 0) {
        return found;
    }
    for (ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
        if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) {
            continue;
        }
        const int family = at->ifa_addr->sa_family;
        if (family != AF_INET && family != AF_INET6) {
            continue;
        }
        Interface entry{at->ifa_name, {}};
        std::memcpy(&entry.address, at->ifa_addr,
                    family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
        if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&entry.address.v6.sin6_addr)) {
            continue;
        }
        found.push_back(entry);
    }
    freeifaddrs(list);
    // One address an interface, IPv4 first.
    std::stable_sort(found.begin(), found.end(), [](const Interface& a, const Interface& b) {
        return a.address.any.sa_family == AF_INET && b.address.any.sa_family != AF_INET;
    });
    return found;
}

bool in_list(const std::string& name, const std::string& list, bool exact) {
    for (size_t at = 0; at <= list.size();) {
        const size_t comma = std::min(list.find(',', at), list.size());
        const std::string item = list.substr(at, comma - at);
        if (!item.empty() && (exact ? name == item : name.starts_with(item))) {
            return true;
        }
        at = comma + 1;
    }
    return false;
}

// Waits until the descriptor is ready or patience ends; errno says which.
bool wait_ready(int fd, short events, const Patience& patience) {
    for (;;) {
        if (patience.cancelled()) {
            errno = ECANCELED;
            return false;
        }
        pollfd entry{fd, events, 0};
        const int n = poll(&entry, 1, 20);
        if (n > 0) {
            return true;
        }
        if (n < 0 && errno != EINTR) {
            return false;
        }
        if (patience.over()) {
            errno = ETIMEDOUT;
            return false;
        }
    }
}

void tune(int fd) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

std::string to_string(const Address& address) {
    char text[INET6_ADDRSTRLEN] = "?";
    if (address.any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &address.v4.sin_addr, text, sizeof text);
        return format("%s<%d>", text, ntohs(address.v4.sin_port));
    }
    inet_ntop(AF_INET6, &address.v6.sin6_addr, text, sizeof text);
    return format("%s<%d>", text, ntohs(address.v6.sin6_port));
}

bool parse_address(const std::string& text, Address& address) {
    const size_t colon = text.rfind(':');
    if (colon == std::string::npos || colon == 0) {
        return false;
    }
    std::string host = text.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
        host = host.substr(1, host.size() - 2);
    }
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    if (getaddrinfo(host.c_str(), text.c_str() + colon + 1, &hints, &list) != 0) {
        return false;
    }
    address = {};
    std::memcpy(&address, list->ai_addr, std::min<size_t>(list->ai_addrlen, sizeof address));
    freeaddrinfo(list);
    return true;
}

Interface bootstrap_interface() {
    const std::vector<Interface> all = interfaces();
    if (const auto wanted = env_text("NCCL_SOCKET_IFNAME")) {
        std::string list = *wanted;
        const bool exclude = list.starts_with("^");
        list.erase(0, exclude ? 1 : 0);
        const bool exact = list.starts_with("=");
        list.erase(0, exact ? 1 : 0);
        for (const Interface& entry : all) {
            if (in_list(entry.name, list, exact) != exclude) {
                return entry;
            }
        }
        throw Error(ncclInvalidUsage,
                    format("Bootstrap : no socket interface found for NCCL_SOCKET_IFNAME=%s",
                           wanted->c_str()));
    }
    const auto rank = [](const Interface& entry) {
        return entry.name.starts_with("lo") ? 2 : entry.name.starts_with("docker") ? 1 : 0;
    };
    const auto best =
        std::min_element(all.begin(), all.end(),
                         [&](const Interface& a, const Interface& b) { return rank(a) < rank(b); });
    if (best == all.end()) {
        throw Error(ncclSystemError, "Bootstrap : no socket interface found");
    }
    return *best;
}

UniqueFd listen_on(Address& address) {
    UniqueFd fd(socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    if (fd) {
        setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    }
    socklen_t length = sizeof address;
    if (!fd || bind(fd.get(), &address.any, length_of(address)) != 0 ||
        listen(fd.get(), 1024) != 0 || getsockname(fd.get(), &address.any, &length) != 0) {
        throw Error(ncclSystemError, format("Bootstrap : cannot listen on %s: %s",
                                            to_string(address).c_str(), strerror(errno)));
    }
    return fd;
}

UniqueFd connect_to(const Address& address, const Patience& patience,
                    std::chrono::milliseconds refused_for) {
    const auto refused_until = Clock::now() + refused_for;
    for (;;) {
        UniqueFd fd(socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (!fd) {
            return {};
        }
        int status = connect(fd.get(), &address.any, length_of(address)) == 0 ? 0 : errno;
        if (status == EINPROGRESS) {
            if (!wait_ready(fd.get(), POLLOUT, patience)) {
                return {};
            }
            socklen_t length = sizeof status;
            getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &status, &length);
        }
        if (status == 0) {
            tune(fd.get());
            return fd;
        }
        if (patience.cancelled() || patience.over() || Clock::now() >= refused_until) {
            errno = patience.cancelled() ? ECANCELED : status;
            return {};
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
}

UniqueFd accept_on(int listener, const Patience& patience) {
    for (;;) {
        if (!wait_ready(listener, POLLIN, patience)) {
            return {};
        }
        UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (fd) {
            tune(fd.get());
            return fd;
        }
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
            return {};
        }
    }
}

bool send_all(int fd, const void* data, size_t bytes, const Patience& patience) {
    const auto* at = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n > 0) {
            at += n;
            bytes -= static_cast<size_t>(n);
        } else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (!wait_ready(fd, POLLOUT, patience)) {
                return false;
            }
        } else {
            return false;
        }
    }
    return true;
}

bool receive_all(int fd, void* data, size_t bytes, const Patience& patience) {
    auto* at = static_cast<char*>(data);
    while (bytes > 0) {
        const ssize_t n = recv(fd, at, bytes, 0);
        if (n > 0) {
            at += n;
            bytes -= static_cast<size_t>(n);
        } else if (n == 0) {
            errno = ECONNRESET;
            return false;
        } else if (errno == EAGAIN || errno == EINTR) {
            if (!wait_ready(fd, POLLIN, patience)) {
                return false;
            }
        } else {
            return false;
        }
    }
    return true;
}

}  // namespace softdev::nccl
