// SPDX-License-Identifier: Apache-2.0
#include "softdev/verbs/listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "softdev/verbs/netdev.h"
#include "softdev/verbs/queue_pair.h"

namespace softdev::verbs {

Listener::Listener(Nic& nic) : nic_(nic) {
    // Both families where the kernel has IPv6. Which port of the device a connection has come to
    // is seen, and held to, when it says which queue pair it is for.
    const int none = 0;
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    fd.reset(::socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &none, sizeof none);
    if (!fd || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&six), sizeof six) != 0) {
        sockaddr_in four{};
        four.sin_family = AF_INET;
        fd.reset(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&four), sizeof four) != 0) {
            return;
        }
    }
    Address bound;
    bound.length = sizeof bound.storage;
    if (::listen(fd.get(), SOMAXCONN) == 0 &&
        ::getsockname(fd.get(), bound.get(), &bound.length) == 0) {
        port_ = bound.port();
    }
}

void Listener::ready(unsigned /*events*/) {
    for (;;) {
        deft::UniqueFd socket(::accept4(fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (!socket) {
            return;
        }
        auto newcomer = std::make_unique<Newcomer>(nic_, std::move(socket));
        nic_.watch(*newcomer, EPOLLIN);
        nic_.keep(std::move(newcomer));
    }
}

Newcomer::Newcomer(Nic& nic, deft::UniqueFd socket) : nic_(nic) {
    fd = std::move(socket);
    const int yes = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

void Newcomer::ready(unsigned /*events*/) {
    const ssize_t got = ::recv(fd.get(), reinterpret_cast<char*>(&hello_) + filled_,
                               sizeof hello_ - filled_, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (got > 0) {
        filled_ += static_cast<std::size_t>(got);
        if (filled_ < sizeof hello_) {
            return;
        }
        introduce();
    }
    nic_.discard(*this);
}

void Newcomer::introduce() {
    if (hello_.magic != wire::kMagic || hello_.version != wire::kVersion) {
        return;
    }
    sockaddr_storage local{};
    sockaddr_storage remote{};
    socklen_t local_length = sizeof local;
    socklen_t remote_length = sizeof remote;
    if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &local_length) != 0 ||
        ::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&remote), &remote_length) != 0) {
        return;
    }
    Qp* const qp = nic_.find(hello_.target_qpn);
    // Packets for a queue pair that is not there, or not ready, are dropped: the peer tries again.
    if (qp != nullptr && qp->takes(hello_, address_of(reinterpret_cast<const sockaddr*>(&local)),
                                   address_of(reinterpret_cast<const sockaddr*>(&remote)))) {
        qp->responder.adopt(nic_.release(*this));
    }
}

}  // namespace softdev::verbs
