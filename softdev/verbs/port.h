// SPDX-License-Identifier: Apache-2.0
// One port of a device: its attributes, its GIDs, and where a queue pair's address leads to.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "softdev/verbs/netdev.h"
#include "softdev/verbs/settings.h"

namespace softdev::verbs {

constexpr std::uint32_t kLargestMessage = 1U << 30;
constexpr int kGidTable = 16;

/// The netdev's Ethernet address as an EUI-64; of the name, where it has none.
std::uint64_t guid_of(const PortSettings& settings);

class Port {
public:
    Port(const PortSettings& settings, int number) : settings_(settings), number_(number) {}

    const PortSettings& settings() const { return settings_; }
    bool infiniband() const { return settings_.infiniband; }
    ibv_port_attr attributes() const;
    /// All that the table holds; further indices are empty.
    std::vector<ibv_gid_entry> gids() const;
    /// The address that the port's connections begin at; none while the netdev has none.
    std::optional<Address> address() const;
    /// Where a queue pair's packets come from: the address of its own GID, or the port's.
    std::optional<Address> source(const ibv_ah_attr& vector) const;
    /// Where an address vector leads to. RoCE goes by the GID; InfiniBand by the LID, which is the
    /// lower half of an IPv4 address whose upper half both ports share, or by the GID. 0 or errno.
    int resolve(const ibv_ah_attr& vector, Address& peer) const;

private:
    std::optional<Address> address_of(const Netdev& netdev) const;
    std::vector<ibv_gid_entry> gids_of(const Netdev& netdev) const;
    std::uint32_t ipv4_of(const Netdev& netdev) const;

    PortSettings settings_;
    int number_;
};

}  // namespace softdev::verbs
