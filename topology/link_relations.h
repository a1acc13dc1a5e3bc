// SPDX-License-Identifier: Apache-2.0
// How interfaces stand to each other: ports of bridges and bonds, what goes over what.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "topology/interfaces.h"

namespace deft {

// NULL if there is none of this name.
const Interface* find_interface(const std::vector<Interface>& all, std::string_view name);

// A port of a bridge, bond, team or Open vSwitch: its frames belong to its master, so that its own
// addresses cannot answer. What belongs to a VRF is no port.
bool is_port(const std::vector<Interface>& all, const Interface& link);

bool is_bridge(const Interface& link);

// True if frames can leave this host by it: hardware, and what goes over hardware. Not the host's
// ends of containers' and virtual machines' links, nor a bridge that has no other ports.
bool leads_out(const std::vector<Interface>& all, const Interface& link);

// A veth pair's end that a container engine made for a container, by the names they give.
bool container_end(const Interface& link);

// True if frames of this link go over the wire of one of these interfaces: it is one, goes over
// one, or is a function of its card.
bool shares_wire(const Interface& link, const std::vector<std::string>& interfaces);

// Fills in what follows from the others: `wire`, and for bonds, bridges and what goes over another
// interface `nominal_mbps` and `hardware`, which then depend on no carrier.
void complete(std::vector<Interface>& all);

// What NCCL is told of these together, Mbit/s: nominal, kUnknownSpeed where nothing is known; what
// shares a wire (two VLANs, two functions of a card) counts once.
inline constexpr std::int64_t kUnknownSpeed = 10000;  // what NCCL assumes too
std::int64_t told_speed(const Interface& link);
std::int64_t told_speed(const std::vector<Interface>& links);

}  // namespace deft
