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

class Config;

// An IPv4 or IPv6 address with the length of its network prefix.
struct Address {
    int family = AF_UNSPEC;                // AF_INET or AF_INET6
    std::array<std::uint8_t, 16> bytes{};  // network order; the first 4 for IPv4
    int prefix = 0;
    std::uint32_t scope = 0;  // of a link-local address: index of its interface, on this host only

    std::size_t size() const { return family == AF_INET ? 4 : 16; }
    bool loopback() const;
    bool link_local() const;                        // fe80::/10 and 169.254.0.0/16
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
    std::int64_t speed_mbps = 0;  // it runs at now, else nominal; 0: unknown
    // What it is made or configured for, whether it has a carrier or not; 0: unknown.
    std::int64_t nominal_mbps = 0;
    std::string driver;    // "veth", "bridge", "mlx5_core"; may be empty
    std::string kind;      // of virtual ones, as `ip -d link` says it: "veth", "bond", "vlan"
    std::string pci_path;  // sysfs directory of the PCI device; empty if it is none
    int mtu = 0;
    int numa_node = -1;
    bool up = false;  // administratively up and with a carrier
    bool loopback = false;
    bool bridge = false;
    bool usb = false;                 // most often the host's own management processor
    std::string physical_function;    // interface of the card this is a virtual function of
    std::string lower;                // interface that carries this one: a VLAN's
    std::string master;               // bridge, bond, team or VRF that this one belongs to
    bool one_port_at_a_time = false;  // a bond that sends by one of its ports
    bool peer_here = false;           // a veth whose other end is in the same network namespace
    std::string hardware;             // hardware address in hex; empty if it has none
    std::string wire;  // what limits it: the lowest interface below, the card of a function
    std::uint64_t pacing_bytes_per_second = 0;  // 0: none (debug: "address@rate")
    bool reserve = false;                       // carries only while no other link does

    // Its addresses are the host's: packets go over whatever the routing table says.
    bool address_holder() const { return loopback || kind == "dummy"; }
    std::int64_t nominal_speed() const { return nominal_mbps > 0 ? nominal_mbps : speed_mbps; }
    bool routable() const;  // it has an address that is neither link-local nor loopback
};

// Interfaces of the calling process's network namespace, in the kernel's order. `family`: only
// addresses of that one (AF_INET, AF_INET6), AF_UNSPEC: of both.
std::vector<Interface> list_interfaces(int family = AF_UNSPEC);

// What was chosen, and why the rest was not.
struct InterfaceSelection {
    struct Skipped {
        std::string name;
        std::string reason;
    };
    std::vector<Interface> links;
    std::vector<Interface> reserves;  // used only while none of the links carries
    std::vector<Skipped> skipped;     // those in reserve too
    std::string problem;  // one line for the user when the choice cannot be met; else empty
};

// Chooses from `all` as `list` says (the value of `variable`): comma-separated name prefixes, '='
// first for exact names, '^' first to exclude. An empty list means every interface with an address,
// whether it has a carrier now or not, but loopback, bridges that lead nowhere, tunnels, management
// networks and what shares the wire of another; those only when there is nothing else. Ports of
// bridges and bonds are never taken. `strict`: the list is deft's own and not NCCL's: blanks do not
// count, each item must match something, literal addresses ("127.0.0.2", "127.0.0.2@1gbit" with
// pacing) are links of their own, and "eth0@25gbit" says a link's speed. Pure.
InterfaceSelection select_interfaces(const std::vector<Interface>& all, std::string_view list,
                                     std::string_view variable, bool strict);

// Empty, or what a job would be refused for on this host because of DEFT_INTERFACES. Nothing is
// wrong with a list that is not set.
std::string interfaces_problem(const Config& config);

// The selection of this process: DEFT_INTERFACES, else NCCL_SOCKET_IFNAME, else the default.
InterfaceSelection process_interfaces();

// Parses "1gbit", "100mbit", "64kbit" (decimal units, bits per second) into bytes per second; 0 if
// malformed.
std::uint64_t parse_rate(std::string_view text);

}  // namespace deft
