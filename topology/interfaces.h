// SPDX-License-Identifier: Apache-2.0
// The host's network interfaces, and which of them a job may use.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deft {

// An IPv4 or IPv6 address with the length of its network prefix.
struct Address {
    int family = AF_UNSPEC;                // AF_INET or AF_INET6
    std::array<std::uint8_t, 16> bytes{};  // network order; the first 4 for IPv4
    int prefix = 0;
    std::uint32_t scope = 0;  // of a link-local address: index of its interface, on this host only

    std::size_t size() const { return family == AF_INET ? 4 : 16; }
    bool loopback() const;
    bool link_local() const;                        // fe80::/10
    bool same_network(const Address& other) const;  // `other` lies in this address's prefix
    std::string text() const;
    bool operator==(const Address& other) const;
};

// Parses a literal IPv4 or IPv6 address ("fe80::1%eth0" with its interface); false if it is none.
// The prefix is the full length.
bool parse_address(std::string_view text, Address& address);
// Fills a socket address; returns its length.
socklen_t to_sockaddr(const Address& address, std::uint16_t port, sockaddr_storage& storage);
bool from_sockaddr(const sockaddr* storage, Address& address, std::uint16_t* port);

struct Interface {
    std::string name;
    unsigned index = 0;  // kernel's interface index; 0 for a literal address
    // Those a peer could reach; a link-local one only if there is no other.
    std::vector<Address> addresses;
    std::int64_t speed_mbps = 0;  // 0: unknown
    std::string driver;           // "veth", "bridge", "mlx5_core"; may be empty
    std::string pci_path;         // sysfs directory of the PCI device; empty if it is none
    int mtu = 0;
    int numa_node = -1;
    bool up = false;  // administratively up and with a carrier
    bool loopback = false;
    bool bridge = false;
    bool usb = false;               // most often the host's own management processor
    std::string physical_function;  // interface of the card this is a virtual function of
    std::string lower;              // interface that carries this one: a VLAN's
    std::uint64_t pacing_bytes_per_second = 0;  // 0: none (debug: "address@rate")
};

// Interfaces of the calling process's network namespace, in the kernel's order.
std::vector<Interface> list_interfaces();

// What was chosen, and why the rest was not.
struct InterfaceSelection {
    struct Skipped {
        std::string name;
        std::string reason;
    };
    std::vector<Interface> links;
    std::vector<Skipped> skipped;
    std::string problem;  // one line for the user when the choice cannot be met; else empty
};

// Chooses from `all` as `list` says (the value of `variable`): comma-separated name prefixes, '='
// first for exact names, '^' first to exclude; literal addresses ("127.0.0.2", "127.0.0.2@1gbit"
// with pacing) are links of their own. An empty list means every usable interface but loopback,
// bridges, tunnels, management networks and what shares the wire of another; one of those only when
// there is nothing else. `strict`: every item must match
// something. Pure.
InterfaceSelection select_interfaces(const std::vector<Interface>& all, std::string_view list,
                                     std::string_view variable, bool strict);

// The selection of this process: DEFT_INTERFACES, else NCCL_SOCKET_IFNAME, else the default.
InterfaceSelection process_interfaces();

// Parses "1gbit", "100mbit", "64kbit" (decimal units, bits per second) into bytes per second; 0 if
// malformed.
std::uint64_t parse_rate(std::string_view text);

}  // namespace deft
