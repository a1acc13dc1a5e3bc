// SPDX-License-Identifier: Apache-2.0
// Which port of ours is paired with which of the peer's. Pure.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "plugin/core/port.h"
#include "plugin/tcp/wire.h"

namespace deft::net {

// Indices: own, and the peer's.
using PortPairs = std::vector<std::pair<std::size_t, std::size_t>>;

wire::PortList to_wire(const Ports& ports);

// Pairs of indices, at most `most`. Ports of one network first, each once and in their order; then
// those that only a router may join (Ethernet); then each that is left with the best and least used
// of the other side's. Ports of unlike kind, or of two InfiniBand subnets, are never paired.
PortPairs pair_ports(const Ports& own, const wire::PortList& peer, std::size_t most);

}  // namespace deft::net
