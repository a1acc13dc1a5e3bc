// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/listener.h"

#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "topology/interfaces.h"

namespace deft::agreement {
namespace {

constexpr int kBacklog = 1024;

UniqueFd listen_on(const Address& address, std::uint16_t& port, std::string& why) {
    const auto broken = [&](const char* call) {
        why = std::string(call) + " on " + address.text() + ": " + std::strerror(errno);
        return UniqueFd();
    };
    UniqueFd fd(::socket(address.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) {
        return broken("socket");
    }
    if (address.family == AF_INET6) {
        const int only = 1;
        (void)::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
    }
    sockaddr_storage storage;
    socklen_t length = to_sockaddr(address, 0, storage);
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&storage), length) != 0) {
        return broken("bind");
    }
    if (::listen(fd.get(), kBacklog) != 0) {
        return broken("listen");
    }
    Address bound;
    length = sizeof(storage);
    if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&storage), &length) != 0 ||
        !from_sockaddr(reinterpret_cast<sockaddr*>(&storage), bound, &port)) {
        return broken("getsockname");
    }
    return fd;
}

}  // namespace

std::unique_ptr<Listener> Listener::open(std::string& why) {
    InterfaceSelection selection = process_interfaces();
    // They are tried in this order, and not all may fit into a trailer.
    std::stable_partition(selection.links.begin(), selection.links.end(),
                          [](const Interface& link) { return link.up; });
    why = selection.problem.empty() ? "no interface has an address" : selection.problem;
    auto listener = std::make_unique<Listener>();
    listener->owner_ = ::getpid();
    // IPv4 first: five of those fit into a trailer, but only one of IPv6 and two.
    for (const int family : {AF_INET, AF_INET6}) {
        for (const Interface& link : selection.links) {
            for (const Address& address : link.addresses) {
                if (address.family != family || listener->sockets_.size() == wire::kMaxEndpoints) {
                    continue;
                }
                wire::Endpoint endpoint{address, 0};
                if (UniqueFd fd = listen_on(address, endpoint.port, why)) {
                    listener->sockets_.push_back({std::move(fd), endpoint});
                } else {
                    DEFT_INFO("the ranks cannot meet at %s: %s", link.name.c_str(), why.c_str());
                }
                break;  // one address of each family reaches a link
            }
        }
    }
    return listener->sockets_.empty() ? nullptr : std::move(listener);
}

bool Listener::ours() const {
    return owner_ == ::getpid();
}

void Listener::fill(wire::Trailer& trailer) const {
    trailer.count = 0;
    for (const Socket& socket : sockets_) {
        trailer.endpoints[trailer.count++] = socket.endpoint;
    }
}

}  // namespace deft::agreement
