// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>

#include "base/unique_fd.h"

namespace softdev::nccl {

using deft::UniqueFd;
using Clock = std::chrono::steady_clock;

// Socket address as the unique id carries it (28 bytes, native family, network-order port).
union Address {
    sockaddr any;
    sockaddr_in v4;
    sockaddr_in6 v6;
};
static_assert(sizeof(Address) == 28);

std::string to_string(const Address& address);
bool parse_address(const std::string& text,
                   Address& address);  // "ip:port", "[ip6]:port", "host:port"

struct Interface {
    std::string name;
    Address address;
};
// The interface control connections use: NCCL_SOCKET_IFNAME (prefix list, ^ excludes, = exact),
// else the first that is neither lo nor docker*, else docker*, else lo. Throws Error when the name
// matches none.
Interface bootstrap_interface();

// How long a blocking step may take and what may end it early.
struct Patience {
    Clock::time_point until;
    const std::atomic<bool>* cancel = nullptr;
    bool cancelled() const { return cancel != nullptr && cancel->load(); }
    bool over() const { return Clock::now() >= until; }
};

UniqueFd listen_on(Address& address);  // fills the port in; throws Error
// Connects, trying again on refusal for `refused_for`. No descriptor: errno tells, ECANCELED,
// ETIMEDOUT.
UniqueFd connect_to(const Address& address, const Patience& patience,
                    std::chrono::milliseconds refused_for);
UniqueFd accept_on(int listener, const Patience& patience);
bool send_all(int fd, const void* data, size_t bytes, const Patience& patience);
bool receive_all(int fd, void* data, size_t bytes, const Patience& patience);

}  // namespace softdev::nccl
