// SPDX-License-Identifier: Apache-2.0
// A network interface as it is now, in the network namespace of the calling thread.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace softdev::verbs {

struct Address {
    sockaddr_storage storage{};
    socklen_t length = 0;

    sa_family_t family() const { return storage.ss_family; }
    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
    sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
    void set_port(std::uint16_t port);
    std::uint16_t port() const;
    /// Whether both name the same host; ports are not looked at.
    bool same_host(const Address& other) const;
};

std::optional<Address> parse_address(const std::string& text);
Address address_of_ipv4(std::uint32_t host_order);
Address address_of_ipv6(const std::uint8_t* bytes);
Address address_of(const sockaddr* address);

struct Netdev {
    unsigned index = 0;  ///< 0: there is none of that name
    bool running = false;
    std::array<std::uint8_t, 6> mac{};
    std::vector<Address> addresses;  ///< IPv4 first; no link-local ones

    bool operator==(const Netdev& other) const;
};

Netdev look_up(const std::string& name);

}  // namespace softdev::verbs
