// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "plugin/core/path.h"
#include "plugin/tcp/tcp_dialer.h"

namespace deft::net {

// Sends one packet as large as this host thinks the way allows, over a connection of its own: a
// question to the peer's listener, which answers and closes. Where the packet vanishes, nothing but
// this connection waits for it.
class FullSizeTrial {
public:
    FullSizeTrial(std::shared_ptr<const Device> device, Route route, const wire::Hello& hello);
    // `candidate`: of the route. Does not block. What comes out is said once.
    Dialer::Trial poll(std::size_t candidate, Nanos now);

private:
    Dialer::Trial over(Dialer::Trial result);
    void begin(std::size_t candidate, Nanos now);
    bool send_packet();

    std::shared_ptr<const Device> device_;
    Route route_;
    wire::Hello hello_;
    Congestion congestion_;
    UniqueFd fd_;
    Nanos began_ = 0;
    std::uint64_t acked_before_ = 0;
    std::uint64_t sent_ = 0;  // 0: not yet
};

}  // namespace deft::net
