// SPDX-License-Identifier: Apache-2.0
#include "plugin/tcp/tcp_socket.h"

#include <linux/pkt_sched.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "topology/listening.h"

namespace deft::net {
namespace {

void set(int fd, int level, int option, int value) {
    (void)setsockopt(fd, level, option, &value, sizeof(value));
}

}  // namespace

void tune(int fd, const SocketTuning& tuning) {
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    // Keep-alives let the kernel find a dead path while the connection is idle, without any work of
    // ours; with TCP_USER_TIMEOUT set, that and not the count of probes decides (tcp(7)).
    const auto milliseconds = std::max<Nanos>(tuning.dead_after / kMillisecond, 100);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE,
        static_cast<int>(std::clamp<Nanos>(milliseconds / 2000, 1, 10)));
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(milliseconds));
    if (tuning.segment != 0) {
        set(fd, IPPROTO_TCP, TCP_MAXSEG, tuning.segment);
    }
    if (tuning.urgent) {
        // The first band of pfifo_fast and prio; of this host only, packets are not marked.
        set(fd, SOL_SOCKET, SO_PRIORITY, TC_PRIO_INTERACTIVE);
    }
    if (tuning.pacing_bytes_per_second != 0) {
        (void)setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &tuning.pacing_bytes_per_second,
                         sizeof(tuning.pacing_bytes_per_second));
    }
}

void bind_to_link(int fd, const Interface& link) {
    // Allowed to anyone since Linux 5.7; where it is not, the source address alone has to do.
    if (link.index != 0 && !link.address_holder()) {
        (void)setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, link.name.c_str(),
                         static_cast<socklen_t>(link.name.size()));
    }
}

UniqueFd listen_on(const Address& address, std::uint16_t& port, std::string& problem) {
    const auto make = [&address] {
        UniqueFd fd(socket(address.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        if (address.family == AF_INET6) {
            set(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
        }
        // A link that is down keeps its address, but may not have it now (IPv6).
        set(fd.get(), IPPROTO_IP, IP_FREEBIND, 1);
        return fd;
    };
    return listen_at(make, address, SOMAXCONN, port, problem);
}

UniqueFd begin_connect(const Interface& link, const Address& own, const Address& peer,
                       std::uint16_t port, bool anyhow, const SocketTuning& tuning,
                       Congestion& congestion, std::string& problem, int& error) {
    const auto broken = [&](const char* call) {
        error = errno;
        problem = std::string(call) + " from " + own.text() + " to " + peer.text() + ": " +
                  std::strerror(errno);
        return UniqueFd();
    };
    UniqueFd fd(socket(own.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) {
        return broken("socket");
    }
    tune(fd.get(), tuning);
    congestion.begin(fd.get());
    if (!anyhow) {
        bind_to_link(fd.get(), link);
    }
    set(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    sockaddr_storage storage;
    socklen_t length = to_sockaddr(own, 0, storage);
    if (bind(fd.get(), reinterpret_cast<sockaddr*>(&storage), length) != 0) {
        return broken("bind");
    }
    length = to_sockaddr(peer, port, storage);
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length) != 0 &&
        errno != EINPROGRESS) {
        return broken("connect");
    }
    return fd;
}

}  // namespace deft::net
