// SPDX-License-Identifier: Apache-2.0
#include "shim/agreement/listener.h"

#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>

#include "base/log.h"
#include "topology/interfaces.h"
#include "topology/listening.h"

namespace deft::agreement {
namespace {

// A host each, before the leader has joined; the kernel may allow less (net.core.somaxconn).
constexpr int kBacklog = 4096;

UniqueFd listen_on(const Address& address, std::uint16_t& port, std::string& why) {
    const auto make = [&address] {
        UniqueFd fd(::socket(address.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        if (address.family == AF_INET6) {
            const int only = 1;
            (void)::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
        }
        return fd;
    };
    return listen_at(make, address, kBacklog, port, why);
}

}  // namespace

std::unique_ptr<Listener> Listener::open(InterfaceSelection selection, std::string& why) {
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

bool Listener::prefer(const Address& address, std::string& why) {
    for (std::size_t i = 0; i < sockets_.size(); ++i) {
        if (sockets_[i].endpoint.address == address) {
            preferred_ = i;
            return true;
        }
    }
    wire::Endpoint endpoint{address, 0};
    UniqueFd fd = listen_on(address, endpoint.port, why);
    if (!fd) {
        return false;
    }
    preferred_ = sockets_.size();
    sockets_.push_back({std::move(fd), endpoint});
    return true;
}

void Listener::fill(wire::Trailer& trailer) const {
    trailer.count = 0;
    trailer.endpoints[trailer.count++] = sockets_[preferred_].endpoint;
    for (std::size_t i = 0; i < sockets_.size() && trailer.count < wire::kMaxEndpoints; ++i) {
        if (i != preferred_) {
            trailer.endpoints[trailer.count++] = sockets_[i].endpoint;
        }
    }
}

}  // namespace deft::agreement
