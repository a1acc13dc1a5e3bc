// SPDX-License-Identifier: Apache-2.0
#include "softdev/verbs/netdev.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/if_packet.h>
#include <net/if.h>

#include <algorithm>
#include <cstring>

namespace softdev::verbs {
namespace {

const in6_addr& ipv6(const Address& address) {
    return reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr;
}

const sockaddr_in& ipv4(const Address& address) {
    return *reinterpret_cast<const sockaddr_in*>(&address.storage);
}

// In a chain of all interfaces: what one entry says about this one.
void read_entry(const ifaddrs& entry, Netdev& netdev) {
    netdev.running = (entry.ifa_flags & IFF_RUNNING) != 0 && (entry.ifa_flags & IFF_UP) != 0;
    if (entry.ifa_addr == nullptr) {
        return;
    }
    switch (entry.ifa_addr->sa_family) {
        case AF_PACKET: {
            sockaddr_ll link{};
            std::memcpy(&link, entry.ifa_addr, sizeof link);
            std::copy_n(link.sll_addr, netdev.mac.size(), netdev.mac.begin());
            break;
        }
        case AF_INET:
            netdev.addresses.push_back(address_of(entry.ifa_addr));
            break;
        case AF_INET6: {
            const Address address = address_of(entry.ifa_addr);
            if (!IN6_IS_ADDR_LINKLOCAL(&ipv6(address)) && !IN6_IS_ADDR_LOOPBACK(&ipv6(address))) {
                netdev.addresses.push_back(address);
            }
            break;
        }
        default:
            break;
    }
}

}  // namespace

void Address::set_port(std::uint16_t port) {
    // Both families keep the port in the same place.
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
}

std::uint16_t Address::port() const {
    return ntohs(ipv4(*this).sin_port);
}

bool Address::same_host(const Address& other) const {
    if (family() != other.family()) {
        return false;
    }
    return family() == AF_INET ? ipv4(*this).sin_addr.s_addr == ipv4(other).sin_addr.s_addr
                               : IN6_ARE_ADDR_EQUAL(&ipv6(*this), &ipv6(other));
}

std::optional<Address> parse_address(const std::string& text) {
    in_addr four{};
    in6_addr six{};
    if (inet_pton(AF_INET, text.c_str(), &four) == 1) {
        return address_of_ipv4(ntohl(four.s_addr));
    }
    if (inet_pton(AF_INET6, text.c_str(), &six) == 1) {
        return address_of_ipv6(six.s6_addr);
    }
    return std::nullopt;
}

Address address_of_ipv4(std::uint32_t host_order) {
    Address address;
    address.length = sizeof(sockaddr_in);
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_addr.s_addr = htonl(host_order);
    std::memcpy(&address.storage, &four, sizeof four);
    return address;
}

Address address_of_ipv6(const std::uint8_t* bytes) {
    Address address;
    address.length = sizeof(sockaddr_in6);
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    std::memcpy(&six.sin6_addr, bytes, sizeof six.sin6_addr);
    std::memcpy(&address.storage, &six, sizeof six);
    return address;
}

Address address_of(const sockaddr* address) {
    Address made;
    made.length = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&made.storage, address, made.length);
    const in6_addr& six = ipv6(made);
    if (made.family() == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six)) {
        std::uint32_t four = 0;
        std::memcpy(&four, six.s6_addr + 12, sizeof four);
        const std::uint16_t port = made.port();
        made = address_of_ipv4(ntohl(four));
        made.set_port(port);
    }
    return made;
}

bool Netdev::operator==(const Netdev& other) const {
    return index == other.index && running == other.running && mac == other.mac &&
           std::equal(addresses.begin(), addresses.end(), other.addresses.begin(),
                      other.addresses.end(),
                      [](const Address& a, const Address& b) { return a.same_host(b); });
}

Netdev look_up(const std::string& name) {
    Netdev netdev;
    netdev.index = if_nametoindex(name.c_str());
    ifaddrs* all = nullptr;
    if (netdev.index == 0 || getifaddrs(&all) != 0) {
        return netdev;
    }
    for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
        if (name == entry->ifa_name) {
            read_entry(*entry, netdev);
        }
    }
    freeifaddrs(all);
    std::stable_sort(netdev.addresses.begin(), netdev.addresses.end(),
                     [](const Address& a, const Address& b) { return a.family() < b.family(); });
    return netdev;
}

}  // namespace softdev::verbs
