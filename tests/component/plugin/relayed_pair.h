// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "tests/component/plugin/relay.h"
#include "tests/component/plugin/tcp_pair.h"

namespace deft::net::testing {

// A pair whose first `relays` endpoints are reached through relays.
struct RelayedPair {
    RelayedPair(std::size_t links, std::size_t relays, Nanos link_timeout = 30 * kSecond,
                const ConnectionOptions& options = {})
        : pair(links, link_timeout, options) {
        wire::Handle handle;
        EXPECT_EQ(wire::decode(pair.handle, handle), wire::Decoded::Ok);
        for (std::size_t i = 0; i < relays; ++i) {
            relay.push_back(std::make_unique<Relay>(handle.endpoints.entries[i]));
        }
        wire::encode(handle, pair.handle);
    }
    bool establish() {
        const Nanos deadline = steady_now() + kPatience;
        while (!pair.step() && steady_now() < deadline) {
            step();
        }
        return pair.sender != nullptr && pair.receiver != nullptr;
    }
    void step() {
        for (const auto& each : relay) {
            each->step();
        }
    }

    TcpPair pair;
    std::vector<std::unique_ptr<Relay>> relay;
};

}  // namespace deft::net::testing
