// SPDX-License-Identifier: Apache-2.0
#include "topology/kernel_links.h"

#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/unique_fd.h"

namespace deft {
namespace {

// Of Linux 5.6; headers may be older.
constexpr unsigned short kPermanentAddress = 54;  // IFLA_PERM_ADDRESS

constexpr std::size_t kBuffer = 65536;  // the kernel packs a dump into pieces of 32 KiB at most

// Attributes as they lie behind a message, or within another attribute.
class Attributes {
public:
    Attributes(const void* data, std::size_t size)
        : next_(static_cast<const rtattr*>(data)), left_(size) {}
    explicit Attributes(const rtattr* nest) : Attributes(RTA_DATA(nest), RTA_PAYLOAD(nest)) {}

    const rtattr* next() {
        if (!RTA_OK(next_, left_)) {
            return nullptr;
        }
        const rtattr* found = next_;
        next_ = RTA_NEXT(next_, left_);
        return found;
    }

private:
    const rtattr* next_;
    std::size_t left_;
};

unsigned short type_of(const rtattr* attribute) {
    return attribute->rta_type & static_cast<unsigned short>(NLA_TYPE_MASK);
}

std::string text_of(const rtattr* attribute) {
    const auto* text = static_cast<const char*>(RTA_DATA(attribute));
    return {text, strnlen(text, RTA_PAYLOAD(attribute))};
}

std::uint32_t number_of(const rtattr* attribute) {
    std::uint32_t value = 0;
    std::memcpy(&value, RTA_DATA(attribute),
                std::min<std::size_t>(sizeof(value), RTA_PAYLOAD(attribute)));
    return value;
}

std::string hex_of(const rtattr* attribute) {
    constexpr char digits[] = "0123456789abcdef";
    const auto* bytes = static_cast<const unsigned char*>(RTA_DATA(attribute));
    std::string text;
    bool any = false;
    for (std::size_t i = 0; i < RTA_PAYLOAD(attribute); ++i) {
        if (bytes[i] != 0) {
            any = true;
        }
        text += {digits[bytes[i] >> 4], digits[bytes[i] & 15]};
    }
    return any ? text : "";
}

void read_info(const rtattr* nest, KernelLink& link) {
    Attributes attributes(nest);
    while (const rtattr* attribute = attributes.next()) {
        if (type_of(attribute) == IFLA_INFO_KIND) {
            link.kind = text_of(attribute);
        } else if (type_of(attribute) == IFLA_INFO_DATA && link.kind == "bond") {
            Attributes bond(attribute);
            while (const rtattr* each = bond.next()) {
                if (type_of(each) == IFLA_BOND_MODE) {
                    link.bond_mode = static_cast<int>(number_of(each));
                }
            }
        }
    }
}

void read_link(const nlmsghdr& message, std::vector<KernelLink>& links) {
    if (message.nlmsg_type != RTM_NEWLINK || message.nlmsg_len < NLMSG_LENGTH(sizeof(ifinfomsg))) {
        return;
    }
    const auto* info = static_cast<const ifinfomsg*>(NLMSG_DATA(&message));
    KernelLink link;
    link.index = static_cast<unsigned>(info->ifi_index);
    link.flags = info->ifi_flags;
    std::string present;
    Attributes attributes(IFLA_RTA(info), IFLA_PAYLOAD(&message));
    while (const rtattr* attribute = attributes.next()) {
        switch (type_of(attribute)) {
            case IFLA_IFNAME:
                link.name = text_of(attribute);
                break;
            case IFLA_MTU:
                link.mtu = static_cast<int>(number_of(attribute));
                break;
            case IFLA_MASTER:
                link.master = number_of(attribute);
                break;
            case IFLA_LINK:
                link.lower = number_of(attribute);
                break;
            case IFLA_LINK_NETNSID:
                link.lower_elsewhere = true;
                break;
            case IFLA_ADDRESS:
                present = hex_of(attribute);
                break;
            case kPermanentAddress:
                link.hardware = hex_of(attribute);
                break;
            case IFLA_LINKINFO:
                read_info(attribute, link);
                break;
            default:
                break;
        }
    }
    if (link.hardware.empty()) {
        link.hardware = present;
    }
    if (!link.name.empty()) {
        links.push_back(std::move(link));
    }
}

void read_address(const nlmsghdr& message, std::vector<KernelAddress>& addresses) {
    if (message.nlmsg_type != RTM_NEWADDR || message.nlmsg_len < NLMSG_LENGTH(sizeof(ifaddrmsg))) {
        return;
    }
    const auto* info = static_cast<const ifaddrmsg*>(NLMSG_DATA(&message));
    if (info->ifa_family != AF_INET && info->ifa_family != AF_INET6) {
        return;
    }
    KernelAddress found;
    found.index = info->ifa_index;
    found.address.family = info->ifa_family;
    found.address.prefix = info->ifa_prefixlen;
    std::uint32_t flags = info->ifa_flags;
    bool local = false;
    Attributes attributes(IFA_RTA(info), IFA_PAYLOAD(&message));
    while (const rtattr* attribute = attributes.next()) {
        const unsigned short type = type_of(attribute);
        if (type == IFA_FLAGS) {
            flags = number_of(attribute);
        }
        // On a point-to-point interface IFA_ADDRESS is the other end's, IFA_LOCAL our own.
        if ((type == IFA_LOCAL || (type == IFA_ADDRESS && !local)) &&
            RTA_PAYLOAD(attribute) == found.address.size()) {
            std::memcpy(found.address.bytes.data(), RTA_DATA(attribute), found.address.size());
            if (type == IFA_LOCAL) {
                local = true;
            }
        }
    }
    found.address.scope =
        found.address.family == AF_INET6 && found.address.link_local() ? found.index : 0;
    found.failed = (flags & IFA_F_DADFAILED) != 0;
    found.temporary =
        found.address.family == AF_INET6 && (flags & (IFA_F_TEMPORARY | IFA_F_DEPRECATED)) != 0;
    addresses.push_back(found);
}

// Asks for all of a kind. A dump that was interrupted by a change is asked for once more.
template <class Header, class Found>
bool dump(unsigned short type, void (*read)(const nlmsghdr&, std::vector<Found>&),
          std::vector<Found>& found) {
    const UniqueFd fd(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    if (!fd) {
        return false;
    }
    const timeval patience{2, 0};  // a kernel answers at once; what stands in for one may not
    (void)setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    struct {
        nlmsghdr message;
        Header body;
    } request{};
    const std::unique_ptr<char[]> buffer(new char[kBuffer]);
    bool whole = false;
    for (int attempt = 0; attempt < 3 && !whole; ++attempt) {
        found.clear();
        request.message.nlmsg_len = NLMSG_LENGTH(sizeof(Header));
        request.message.nlmsg_type = type;
        request.message.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
        request.message.nlmsg_seq = static_cast<std::uint32_t>(attempt + 1);
        if (send(fd.get(), &request, request.message.nlmsg_len, 0) < 0) {
            return false;
        }
        whole = true;
        for (bool more = true; more;) {
            const ssize_t got = recv(fd.get(), buffer.get(), kBuffer, 0);
            if (got < 0 && errno == EINTR) {
                continue;
            }
            if (got <= 0) {
                return false;
            }
            auto left = static_cast<unsigned>(got);
            for (auto* message = reinterpret_cast<nlmsghdr*>(buffer.get());
                 more && NLMSG_OK(message, left); message = NLMSG_NEXT(message, left)) {
                if (message->nlmsg_seq != request.message.nlmsg_seq) {
                    continue;
                }
                if (message->nlmsg_type == NLMSG_ERROR) {
                    return false;
                }
                more = message->nlmsg_type != NLMSG_DONE;
                if ((message->nlmsg_flags & NLM_F_DUMP_INTR) != 0) {
                    whole = false;
                }
                read(*message, found);
            }
        }
    }
    return true;  // one that was interrupted three times is still the best there is
}

}  // namespace

bool read_kernel_links(std::vector<KernelLink>& links) {
    return dump<ifinfomsg>(RTM_GETLINK, read_link, links);
}

bool read_kernel_addresses(std::vector<KernelAddress>& addresses) {
    return dump<ifaddrmsg>(RTM_GETADDR, read_address, addresses);
}

}  // namespace deft
