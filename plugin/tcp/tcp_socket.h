// SPDX-License-Identifier: Apache-2.0
// Making and tuning the sockets of TCP links.
#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.h"
#include "plugin/core/clock.h"
#include "plugin/tcp/congestion.h"
#include "topology/interfaces.h"

namespace deft::net {

struct SocketTuning {
    Nanos dead_after = 5 * kSecond;  // unacknowledged data or keep-alives for this long: dead
    std::uint64_t pacing_bytes_per_second = 0;
    int segment = 0;  // bytes of a packet's payload at most, both ways; 0: as the link allows
    // Sends little, and what it sends must not wait behind bulk data in this host's own queues.
    bool urgent = false;
};

// No delay, keep-alive, TCP_USER_TIMEOUT, pacing. Failures are ignored: all of it is optional.
void tune(int fd, const SocketTuning& tuning);

// Keeps what this socket sends on the link whatever the routing table prefers. For accepted
// sockets: such a socket hears only from that link, so not where another link is on the same
// network, as its packets may then come in through that one.
void bind_to_link(int fd, const Interface& link);

// A non-blocking socket listening on `address`, at a port of DEFT_PORTS, which is returned in
// `port`. On failure an empty descriptor and the cause.
UniqueFd listen_on(const Address& address, std::uint16_t& port, std::string& problem);

// A non-blocking socket whose connection from `own` (on `link`) to `peer` has begun. `anyhow`: it
// does not keep to the link, since the peer's address is this host's own, so that the kernel will
// not use the device, or since answers come in through another (Reach::astray()).
UniqueFd begin_connect(const Interface& link, const Address& own, const Address& peer,
                       std::uint16_t port, bool anyhow, const SocketTuning& tuning,
                       Congestion& congestion, std::string& problem, int& error);

}  // namespace deft::net
