// SPDX-License-Identifier: Apache-2.0
#include "topology/link_relations.h"

#include <algorithm>
#include <array>

namespace deft {
namespace {

// Bridges in bonds, bonds in bridges, VLANs on them: the kernel allows no more than eight levels
// (MAX_NEST_DEV). It also ends on a list that makes no sense.
constexpr int kDeepest = 8;

bool leads_out(const std::vector<Interface>& all, const Interface& link, int depth);

// The interfaces by which frames of this master leave.
std::vector<const Interface*> ways_out(const std::vector<Interface>& all, const Interface& master,
                                       int depth) {
    std::vector<const Interface*> found;
    const bool datapath = master.kind == "openvswitch";
    for (const Interface& port : all) {
        bool its = !port.master.empty() && port.master == master.name;
        // All bridges of Open vSwitch share one datapath, of which the kernel knows the ports.
        if (datapath && !its && !port.master.empty()) {
            const Interface* theirs = find_interface(all, port.master);
            its = theirs != nullptr && theirs->kind == "openvswitch";
        }
        if (its && leads_out(all, port, depth + 1)) {
            found.push_back(&port);
        }
    }
    return found;
}

bool leads_out(const std::vector<Interface>& all, const Interface& link, int depth) {
    if (depth > kDeepest || link.loopback || link.kind == "tun" || link.driver == "tun") {
        return false;
    }
    if (is_bridge(link)) {
        return !ways_out(all, link, depth).empty();
    }
    if (link.kind == "veth" || link.driver == "veth") {
        // Within a container, and in tests, a veth is the way out.
        return !link.peer_here && !container_end(link);
    }
    const Interface* lower = link.lower.empty() ? nullptr : find_interface(all, link.lower);
    if (lower != nullptr) {
        return leads_out(all, *lower, depth + 1);
    }
    constexpr std::array<std::string_view, 11> none = {"dummy",     "ifb",    "vxlan", "geneve",
                                                       "wireguard", "gretap", "ipip",  "sit",
                                                       "vrf",       "nlmon",  "vcan"};
    return std::find(none.begin(), none.end(), link.kind) == none.end();
}

// Down to the hardware, or to where it divides.
const Interface& lowest(const std::vector<Interface>& all, const Interface& link) {
    const Interface* at = &link;
    for (int depth = 0; depth < kDeepest; ++depth) {
        const Interface* below = at->lower.empty() ? nullptr : find_interface(all, at->lower);
        if (below == nullptr && is_bridge(*at)) {
            const std::vector<const Interface*> ways = ways_out(all, *at, 0);
            below = ways.size() == 1 ? ways[0] : nullptr;
        }
        if (below == nullptr) {
            break;
        }
        at = below;
    }
    return *at;
}

// Of a bond, bridge or team from its ports, of what goes over another interface from that.
std::int64_t nominal(const std::vector<Interface>& all, const Interface& link, int depth) {
    if (depth > kDeepest) {
        return link.nominal_mbps;
    }
    if (const Interface* lower = link.lower.empty() ? nullptr : find_interface(all, link.lower)) {
        const std::int64_t speed = nominal(all, *lower, depth + 1);
        return speed > 0 ? speed : link.nominal_mbps;
    }
    std::int64_t sum = 0;
    std::int64_t most = 0;
    for (const Interface* port : ways_out(all, link, depth)) {
        const std::int64_t speed = nominal(all, *port, depth + 1);
        sum += speed;
        most = std::max(most, speed);
    }
    if (most == 0) {
        return link.nominal_mbps;
    }
    return is_bridge(link) || link.one_port_at_a_time ? most : sum;
}

// Those of its ports, whose order the kernel may change, and not its own, which may be that of any.
std::string hardware(const std::vector<Interface>& all, const Interface& link) {
    std::vector<std::string> addresses;
    for (const Interface* port : ways_out(all, lowest(all, link), 0)) {
        addresses.push_back(port->hardware);
    }
    std::sort(addresses.begin(), addresses.end());
    std::string text;
    for (const std::string& address : addresses) {
        text += address;
    }
    return text.empty() ? lowest(all, link).hardware : text;
}

}  // namespace

const Interface* find_interface(const std::vector<Interface>& all, std::string_view name) {
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const Interface& link) { return link.name == name; });
    return found == all.end() ? nullptr : &*found;
}

bool is_port(const std::vector<Interface>& all, const Interface& link) {
    if (link.master.empty()) {
        return false;
    }
    const Interface* master = find_interface(all, link.master);
    return master == nullptr || master->kind != "vrf";
}

bool is_bridge(const Interface& link) {
    return link.bridge || link.kind == "bridge" || link.kind == "openvswitch";
}

bool leads_out(const std::vector<Interface>& all, const Interface& link) {
    return leads_out(all, link, 0);
}

bool container_end(const Interface& link) {
    if (link.kind != "veth" && link.driver != "veth") {
        return false;
    }
    // Docker and most CNI plugins, Calico, Cilium, AWS, Azure, GKE, LXC, Proxmox, libvirt,
    // OpenStack, systemd-nspawn.
    constexpr std::array<std::string_view, 16> begins = {
        "veth", "cali", "lxc",  "cilium", "eni", "azv", "gke", "vnet",
        "tap",  "fwpr", "fwln", "qvb",    "qvo", "ve-", "vb-", "podman"};
    return std::any_of(begins.begin(), begins.end(),
                       [&](std::string_view begin) { return link.name.starts_with(begin); });
}

std::int64_t told_speed(const Interface& link) {
    const std::int64_t nominal = link.nominal_speed();
    return nominal > 0 ? nominal : kUnknownSpeed;
}

std::int64_t told_speed(const std::vector<Interface>& links) {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < links.size(); ++i) {
        std::int64_t counted = 0;  // of the same wire, so far
        for (std::size_t other = 0; other < i && !links[i].wire.empty(); ++other) {
            if (links[other].wire == links[i].wire) {
                counted = std::max(counted, told_speed(links[other]));
            }
        }
        sum += std::max(told_speed(links[i]), counted) - counted;
    }
    return sum;
}

bool shares_wire(const Interface& link, const std::vector<std::string>& interfaces) {
    return std::any_of(interfaces.begin(), interfaces.end(), [&](const std::string& name) {
        return name == link.name || name == link.lower || name == link.wire ||
               name == link.physical_function;
    });
}

void complete(std::vector<Interface>& all) {
    std::vector<Interface> done = all;
    for (Interface& link : done) {
        link.nominal_mbps = nominal(all, link, 0);
        link.hardware = hardware(all, link);
        const Interface& below = lowest(all, link);
        link.wire = below.wire.empty() ? below.name : below.wire;
        if (link.speed_mbps == 0) {
            link.speed_mbps = link.nominal_mbps;
        }
    }
    all = std::move(done);
}

}  // namespace deft
