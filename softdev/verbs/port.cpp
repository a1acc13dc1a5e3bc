// SPDX-License-Identifier: Apache-2.0
#include "softdev/verbs/port.h"

#include <arpa/inet.h>
#include <endian.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <functional>

namespace softdev::verbs {
namespace {

// The head of the stand-in's InfiniBand GIDs: fe80::, then a GUID that ends with an IPv4 address.
constexpr std::array<std::uint8_t, 11> kGidHead = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0x00, 0x5d};
constexpr std::uint8_t kPhysicalLinkUp = 5;
constexpr std::uint8_t kPhysicalDisabled = 3;
constexpr std::uint8_t kWidth4x = 2;

std::uint8_t speed_of(unsigned gbit) {
    struct Lane {
        unsigned gbit_of_four;
        std::uint8_t code;
    };
    for (const Lane& lane : {Lane{10, 1}, Lane{20, 2}, Lane{40, 4}, Lane{56, 16}, Lane{100, 32},
                             Lane{200, 64}, Lane{400, 128}}) {
        if (gbit <= lane.gbit_of_four) {
            return lane.code;
        }
    }
    return 128;
}

std::uint32_t ipv4(const Address& address) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr.s_addr);
}

ibv_gid gid_of(const Address& address) {
    ibv_gid gid{};
    if (address.family() == AF_INET) {
        const std::uint32_t four = htonl(ipv4(address));
        gid.raw[10] = gid.raw[11] = 0xff;
        std::memcpy(gid.raw + 12, &four, sizeof four);
    } else {
        const auto& six = reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr;
        std::memcpy(gid.raw, &six, sizeof gid.raw);
    }
    return gid;
}

ibv_gid link_local(std::uint64_t guid) {
    ibv_gid gid{};
    gid.global.subnet_prefix = htobe64(0xfe80000000000000);
    gid.global.interface_id = htobe64(guid);
    return gid;
}

bool starts_with(const ibv_gid& gid, const std::uint8_t* head, std::size_t length) {
    return std::equal(head, head + length, gid.raw);
}

// False: it is one of the made-up link-local ones.
bool leads_to(const ibv_gid& gid, Address& address) {
    constexpr std::array<std::uint8_t, 12> mapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    if (starts_with(gid, mapped.data(), mapped.size())) {
        std::uint32_t four = 0;
        std::memcpy(&four, gid.raw + 12, sizeof four);
        address = address_of_ipv4(ntohl(four));
        return true;
    }
    if (gid.raw[0] == 0xfe && gid.raw[1] == 0x80) {
        return false;
    }
    address = address_of_ipv6(gid.raw);
    return true;
}

}  // namespace

std::uint64_t guid_of(const PortSettings& settings) {
    const auto mac = look_up(settings.netdev).mac;
    if (std::all_of(mac.begin(), mac.end(), [](std::uint8_t byte) { return byte == 0; })) {
        return (std::hash<std::string>()(settings.netdev + settings.address) >> 8) | 1ULL << 57;
    }
    const std::array<std::uint8_t, 8> eui = {
        static_cast<std::uint8_t>(mac[0] ^ 2), mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]};
    std::uint64_t guid = 0;
    for (const std::uint8_t byte : eui) {
        guid = guid << 8 | byte;
    }
    return guid;
}

std::optional<Address> Port::address_of(const Netdev& netdev) const {
    if (netdev.index == 0) {
        return std::nullopt;
    }
    if (!settings_.address.empty()) {
        return parse_address(settings_.address);
    }
    return netdev.addresses.empty() ? std::nullopt : std::optional(netdev.addresses.front());
}

std::optional<Address> Port::address() const {
    return address_of(look_up(settings_.netdev));
}

std::optional<Address> Port::source(const ibv_ah_attr& vector) const {
    const auto entries = gids();
    if (!infiniband() && vector.is_global != 0 && vector.grh.sgid_index < entries.size()) {
        Address own;
        if (leads_to(entries[vector.grh.sgid_index].gid, own)) {
            return own;
        }
    }
    return address();
}

std::uint32_t Port::ipv4_of(const Netdev& netdev) const {
    const auto address = address_of(netdev);
    return address && address->family() == AF_INET ? ipv4(*address) : 0;
}

ibv_port_attr Port::attributes() const {
    const Netdev netdev = look_up(settings_.netdev);
    ibv_port_attr attr{};
    attr.state = netdev.running ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    attr.max_mtu = IBV_MTU_4096;
    attr.active_mtu = static_cast<ibv_mtu>(std::bit_width(settings_.mtu) - 8);
    attr.gid_tbl_len = kGidTable;
    attr.port_cap_flags = IBV_PORT_CM_SUP;
    if (!infiniband()) {
        attr.port_cap_flags |= IBV_PORT_IP_BASED_GIDS;
    }
    attr.max_msg_sz = kLargestMessage;
    attr.pkey_tbl_len = 1;
    attr.max_vl_num = 1;
    attr.active_width = kWidth4x;
    attr.active_speed = speed_of(settings_.gbit);
    attr.phys_state = netdev.running ? kPhysicalLinkUp : kPhysicalDisabled;
    attr.link_layer = infiniband() ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
    if (infiniband()) {
        attr.lid = static_cast<std::uint16_t>(ipv4_of(netdev));
        attr.sm_lid = 1;
        if (attr.lid == 0 && netdev.running) {
            attr.state = IBV_PORT_INIT;  // the subnet manager has not given it a LID
        }
    }
    return attr;
}

std::vector<ibv_gid_entry> Port::gids() const {
    return gids_of(look_up(settings_.netdev));
}

std::vector<ibv_gid_entry> Port::gids_of(const Netdev& netdev) const {
    std::vector<ibv_gid_entry> entries;
    const auto add = [&](const ibv_gid& gid, std::uint32_t type) {
        if (entries.size() < kGidTable) {
            entries.push_back({gid, static_cast<std::uint32_t>(entries.size()),
                               static_cast<std::uint32_t>(number_), type,
                               type == IBV_GID_TYPE_IB ? 0 : netdev.index});
        }
    };
    if (netdev.index == 0) {
        return entries;
    }
    if (infiniband()) {
        ibv_gid gid{};
        std::copy(kGidHead.begin(), kGidHead.end(), gid.raw);
        gid.raw[11] = static_cast<std::uint8_t>(number_);
        const std::uint32_t four = htonl(ipv4_of(netdev));
        std::memcpy(gid.raw + 12, &four, sizeof four);
        add(gid, IBV_GID_TYPE_IB);
        return entries;
    }
    std::vector<ibv_gid> gids = {link_local(guid_of(settings_))};
    if (const auto chosen = parse_address(settings_.address)) {
        gids.push_back(gid_of(*chosen));
    } else {
        for (const Address& address : netdev.addresses) {
            gids.push_back(gid_of(address));
        }
    }
    for (const ibv_gid& gid : gids) {
        add(gid, IBV_GID_TYPE_ROCE_V1);
        add(gid, IBV_GID_TYPE_ROCE_V2);
    }
    return entries;
}

int Port::resolve(const ibv_ah_attr& vector, Address& peer) const {
    const Netdev netdev = look_up(settings_.netdev);
    const ibv_gid& gid = vector.grh.dgid;
    if (vector.is_global != 0 && vector.grh.sgid_index >= gids_of(netdev).size()) {
        return EINVAL;
    }
    if (infiniband()) {
        std::uint32_t four = (ipv4_of(netdev) & 0xffff0000U) | vector.dlid;
        if (vector.is_global != 0) {
            if (!starts_with(gid, kGidHead.data(), kGidHead.size())) {
                return EHOSTUNREACH;
            }
            std::memcpy(&four, gid.raw + 12, sizeof four);
            four = ntohl(four);
        } else if (vector.dlid == 0) {
            return EINVAL;
        }
        peer = address_of_ipv4(four);
        return 0;
    }
    if (vector.is_global == 0) {
        return EINVAL;
    }
    // Nobody has the link-local one: the kernel would ask for a neighbour in vain.
    return leads_to(gid, peer) ? 0 : ETIMEDOUT;
}

}  // namespace softdev::verbs
