// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/link_routes.h"

#include <fmt/format.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/unique_fd.h"

namespace deft::tools::doctor {
namespace {

struct Way {
    int error = 0;      // of the kernel's, 0: there is a way
    int interface = 0;  // index; 0: unknown
};

class RouteQuestion {
public:
    RouteQuestion(const Address& from, const Address& to) {
        message_.header.nlmsg_len = NLMSG_LENGTH(sizeof(rtmsg));
        message_.header.nlmsg_type = RTM_GETROUTE;
        message_.header.nlmsg_flags = NLM_F_REQUEST;
        message_.route.rtm_family = static_cast<unsigned char>(from.family);
        message_.route.rtm_src_len = message_.route.rtm_dst_len =
            static_cast<unsigned char>(8 * from.size());
        add(RTA_DST, to);
        add(RTA_SRC, from);
    }

    // False: the kernel gave no answer.
    bool ask(int fd, Way& way) const {
        if (::send(fd, &message_, message_.header.nlmsg_len, 0) < 0) {
            return false;
        }
        alignas(nlmsghdr) std::array<char, 8192> answer;
        const ssize_t got = ::recv(fd, answer.data(), answer.size(), 0);
        const auto* header = reinterpret_cast<const nlmsghdr*>(answer.data());
        if (got < 0 || !NLMSG_OK(header, static_cast<std::size_t>(got))) {
            return false;
        }
        if (header->nlmsg_type == NLMSG_ERROR) {
            way.error = -static_cast<const nlmsgerr*>(NLMSG_DATA(header))->error;
            return true;
        }
        const auto* route = static_cast<const rtmsg*>(NLMSG_DATA(header));
        auto left = RTM_PAYLOAD(header);
        for (const rtattr* each = RTM_RTA(route); RTA_OK(each, left); each = RTA_NEXT(each, left)) {
            if (each->rta_type == RTA_OIF) {
                std::memcpy(&way.interface, RTA_DATA(each), sizeof way.interface);
            }
        }
        return true;
    }

private:
    struct {
        nlmsghdr header;
        rtmsg route;
        std::array<char, 64> attributes;
    } message_{};

    void add(unsigned short type, const Address& address) {
        auto* const attribute = reinterpret_cast<rtattr*>(reinterpret_cast<char*>(&message_) +
                                                          NLMSG_ALIGN(message_.header.nlmsg_len));
        attribute->rta_type = type;
        attribute->rta_len = static_cast<unsigned short>(RTA_LENGTH(address.size()));
        std::memcpy(RTA_DATA(attribute), address.bytes.data(), address.size());
        message_.header.nlmsg_len =
            NLMSG_ALIGN(message_.header.nlmsg_len) + RTA_ALIGN(attribute->rta_len);
    }
};

std::string said(int error) {
    switch (error) {
        case EINVAL:
            return "blackhole";
        case EACCES:
            return "prohibit";
        case EHOSTUNREACH:
            return "unreachable";
        case ENETUNREACH:
            return "unreachable (a rule, or no route to it)";
        default:
            return std::strerror(error);
    }
}

bool shares_a_network(const std::vector<Interface>& links, const Interface& link,
                      const Address& own) {
    return std::any_of(links.begin(), links.end(), [&](const Interface& other) {
        return other.name != link.name &&
               std::any_of(other.addresses.begin(), other.addresses.end(),
                           [&](const Address& each) {
                               return each.family == own.family &&
                                      (own.same_network(each) || each.same_network(own));
                           });
    });
}

// Empty: as it should be, or unknown.
std::string astray(int fd, const Interface& link, const Address& own) {
    Address neighbour;
    Way way;
    if (!neighbour_of(own, neighbour) || !RouteQuestion(own, neighbour).ask(fd, way)) {
        return {};
    }
    if (way.error != 0) {
        return fmt::format("what {} sends to its network ({}) is refused by this host: {}",
                           own.text(), neighbour.text(), said(way.error));
    }
    char name[IF_NAMESIZE] = "";
    if (way.interface == 0 || static_cast<unsigned>(way.interface) == link.index ||
        ::if_indextoname(static_cast<unsigned>(way.interface), name) == nullptr) {
        return {};
    }
    return fmt::format("what {} sends to its network ({}) leaves over {}", own.text(),
                       neighbour.text(), name);
}

}  // namespace

bool neighbour_of(const Address& own, Address& other) {
    const int bits = static_cast<int>(8 * own.size());
    if (own.loopback() || own.link_local() || own.prefix <= 0 || own.prefix >= bits) {
        return false;
    }
    other = own;
    std::uint8_t& last = other.bytes[own.size() - 1];
    last ^= 1;
    if (own.prefix + 1 == bits) {
        return true;
    }
    // Not the network's own address, nor its broadcast address.
    const int host_bits = std::min(bits - own.prefix, 8);
    const auto mask = static_cast<std::uint8_t>((1 << host_bits) - 1);
    if ((last & mask) == 0 || (last & mask) == mask) {
        last ^= host_bits == 2 ? 2 : 3;
    }
    return true;
}

std::map<std::string, std::string> astray_links(const std::vector<Interface>& links) {
    std::map<std::string, std::string> found;
    const UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    const timeval patience{2, 0};
    if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0) {
        return found;
    }
    for (const Interface& link : links) {
        if (!link.up || link.index == 0 || link.address_holder() || !link.master.empty()) {
            continue;
        }
        for (const Address& own : link.addresses) {
            if (shares_a_network(links, link, own)) {
                continue;
            }
            if (std::string what = astray(fd.get(), link, own); !what.empty()) {
                found.emplace(link.name, std::move(what));
            }
        }
    }
    return found;
}

}  // namespace deft::tools::doctor
