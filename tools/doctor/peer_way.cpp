// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/peer_way.h"

#include <fmt/format.h>
#include <chrono>
#include <vector>

#include "tools/doctor/peer_socket.h"
#include "tools/foreign.h"

namespace deft::tools::doctor {
namespace {

using namespace std::chrono_literals;

bool echo(int fd, std::size_t size) {
    const std::vector<char> out(size, 'd');
    std::vector<char> back(size);
    // What the kernel has taken may still be stuck: the answer decides.
    return send_all(fd, out.data(), size, after(3s)) &&
           receive_all(fd, back.data(), size, after(3s)) && back == out;
}

}  // namespace

bool in_one_network(const Interface& local, const PeerInfo::Link& remote, Address& from,
                    Address& to) {
    for (const Address& a : local.addresses) {
        for (const Address& b : remote.addresses) {
            if (a.family == b.family && !a.loopback() && a.same_network(b)) {
                from = a;
                to = b;
                return true;
            }
        }
    }
    return false;
}

UniqueFd open_way(const Way& way, std::string& error) {
    Address target = way.to;
    target.scope = target.link_local() ? way.local.index : 0;
    sockaddr_storage storage{};
    sockaddr_storage own{};
    const socklen_t length = to_sockaddr(target, static_cast<std::uint16_t>(way.port), storage);
    const socklen_t own_length = to_sockaddr(way.from, 0, own);
    return connect_to(reinterpret_cast<const sockaddr*>(&storage), length, way.local.name,
                      reinterpret_cast<const sockaddr*>(&own), own_length, after(3s), error);
}

PeerLink try_way(const Way& way) {
    PeerLink result;
    result.local = way.local.name;
    result.remote = fmt::format("{} ({})", way.remote, way.to.text());
    looking_at(result.local + " to " + result.remote);
    const UniqueFd fd = open_way(way, result.connect_error);
    if (fd && send_all(fd.get(), &kAskEcho, 1, after(3s))) {
        result.small_passed = echo(fd.get(), kSmall);
        result.full_passed = result.small_passed && echo(fd.get(), kFull);
    }
    return result;
}

}  // namespace deft::tools::doctor
