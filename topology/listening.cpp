// SPDX-License-Identifier: Apache-2.0
#include "topology/listening.h"

#include <unistd.h>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/config.h"

namespace deft {
namespace {

// On one port; 0: whichever the kernel gives. `error`: 0, or what is wrong with `call`.
UniqueFd listen_once(const std::function<UniqueFd()>& make, bool reuse, const Address& address,
                     unsigned port, int backlog, const char*& call, int& error) {
    call = "socket";
    UniqueFd fd = make();
    const int on = 1;
    sockaddr_storage storage;
    const socklen_t length = to_sockaddr(address, static_cast<std::uint16_t>(port), storage);
    bool good = static_cast<bool>(fd);
    if (good && reuse) {
        (void)::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    }
    if (good) {
        call = "bind";
        good = ::bind(fd.get(), reinterpret_cast<sockaddr*>(&storage), length) == 0;
    }
    if (good) {
        call = "listen";
        good = ::listen(fd.get(), backlog) == 0;
    }
    error = good ? 0 : errno;
    return good ? std::move(fd) : UniqueFd();
}

}  // namespace

bool parse_ports(std::string_view text, PortRange& range) {
    range = {};
    if (text.empty()) {
        return true;
    }
    const char* const end = text.data() + text.size();
    const auto first = std::from_chars(text.data(), end, range.first);
    if (first.ec != std::errc() || first.ptr == end || *first.ptr != '-') {
        return false;
    }
    const auto last = std::from_chars(first.ptr + 1, end, range.last);
    return last.ec == std::errc() && last.ptr == end && range.first > 0 &&
           range.first <= range.last;
}

UniqueFd listen_in(const PortRange& range, const std::function<UniqueFd()>& make,
                   const Address& address, int backlog, std::uint16_t& port, std::string& why) {
    const char* call = "";
    int error = EADDRINUSE;
    const unsigned count = range.last - range.first + 1U;
    // Processes of a host begin at different places. Connections of a job that has just ended are
    // no reason to pass over a port.
    const unsigned begin = static_cast<unsigned>(::getpid()) % count;
    UniqueFd fd;
    for (unsigned i = 0; i < count && error == EADDRINUSE; ++i) {
        fd = listen_once(make, !range.any(), address, range.first + (begin + i) % count, backlog,
                         call, error);
    }
    sockaddr_storage storage;
    socklen_t length = sizeof(storage);
    auto* const place = reinterpret_cast<sockaddr*>(&storage);
    Address bound;
    if (error == 0) {
        call = "getsockname";
        error = ::getsockname(fd.get(), place, &length) != 0 ? errno : 0;
    }
    if (error == 0 && from_sockaddr(place, bound, &port)) {
        return fd;
    }
    why = error == EADDRINUSE && !range.any()
              ? "all ports of DEFT_PORTS=" + std::to_string(range.first) + "-" +
                    std::to_string(range.last) + " are in use on " + address.text()
              : std::string(call) + " on " + address.text() + ": " + std::strerror(error);
    return UniqueFd();
}

UniqueFd listen_at(const std::function<UniqueFd()>& make, const Address& address, int backlog,
                   std::uint16_t& port, std::string& why) {
    PortRange range;
    (void)parse_ports(Config::process().text(Key::Ports), range);  // a wrong one is refused before
    return listen_in(range, make, address, backlog, port, why);
}

}  // namespace deft
