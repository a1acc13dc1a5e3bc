// SPDX-License-Identifier: Apache-2.0
#include "topology/interfaces.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/unique_fd.h"
#include "topology/kernel_links.h"
#include "topology/link_relations.h"
#include "topology/pci.h"

namespace deft {
namespace {

// The name of the first entry of a folder that begins so, without what it begins with.
std::string entry_of(const std::string& folder, std::string_view begin) {
    std::string name;
    if (DIR* directory = opendir(folder.c_str())) {
        while (const dirent* entry = readdir(directory)) {
            const std::string_view found = entry->d_name;
            if (found[0] != '.' && found.starts_with(begin) && name.empty()) {
                name = found.substr(begin.size());
            }
        }
        closedir(directory);
    }
    return name;
}

// What only sysfs says. It shows the network namespace it was mounted in, which need not be ours:
// an interface of this name counts only if its index is the same.
void ask_sysfs(Interface& link) {
    const std::string folder = "/sys/class/net/" + link.name;
    std::string index;
    if (!read_sysfs(folder + "/ifindex", index) || index != std::to_string(link.index)) {
        return;
    }
    link.physical_function = entry_of(folder + "/device/physfn/net", "");
    char card[PATH_MAX];
    if (realpath((folder + "/device/physfn").c_str(), card) != nullptr) {
        link.wire = card;
    }
    std::string speed;
    if (link.speed_mbps == 0 && read_sysfs(folder + "/speed", speed)) {
        const long value = std::strtol(speed.c_str(), nullptr, 10);
        link.speed_mbps = value > 0 ? value : 0;
    }
}

// The fastest of the link modes in a bit set of ETHTOOL_GLINKSETTINGS. By number, as the headers
// may be older than the kernel: runs of ETHTOOL_LINK_MODE_*_BIT of one speed, first and last.
std::int64_t fastest_mode(const std::uint32_t* bits, std::size_t words) {
    struct Run {
        unsigned first, last;
        std::int64_t mbps;
    };
    constexpr Run runs[] = {
        {0, 1, 10},         {2, 3, 100},        {4, 5, 1000},       {12, 12, 10000},
        {15, 15, 2500},     {17, 17, 1000},     {18, 20, 10000},    {21, 22, 20000},
        {23, 26, 40000},    {27, 30, 56000},    {31, 33, 25000},    {34, 35, 50000},
        {36, 39, 100000},   {40, 40, 50000},    {41, 41, 1000},     {42, 46, 10000},
        {47, 47, 2500},     {48, 48, 5000},     {52, 56, 50000},    {57, 61, 100000},
        {62, 66, 200000},   {67, 67, 100},      {68, 68, 1000},     {69, 73, 400000},
        {75, 79, 100000},   {80, 84, 200000},   {85, 89, 400000},   {90, 91, 100},
        {92, 92, 10},       {93, 98, 800000},   {99, 102, 10},      {103, 108, 200000},
        {109, 114, 400000}, {115, 120, 800000}, {121, 124, 1600000}};
    std::int64_t fastest = 0;
    for (const Run& run : runs) {
        for (unsigned bit = run.first; bit <= run.last && bit / 32 < words; ++bit) {
            if ((bits[bit / 32] >> (bit % 32) & 1) != 0) {
                fastest = std::max(fastest, run.mbps);
            }
        }
    }
    return fastest;
}

constexpr std::size_t kSettings = sizeof(ethtool_link_settings) / sizeof(std::uint32_t);
constexpr std::size_t kMostWords = 127;  // of a bit set; there are three
using SettingsAnswer = std::array<std::uint32_t, kSettings + 3 * kMostWords>;

// `words`: how long the bit sets are; 0 asks for that, which comes as a negative number.
bool ask_settings(int socket, ifreq& request, std::int8_t words, SettingsAnswer& answer,
                  ethtool_link_settings& settings) {
    settings.cmd = ETHTOOL_GLINKSETTINGS;
    settings.link_mode_masks_nwords = words;
    std::memcpy(answer.data(), &settings, sizeof(settings));
    request.ifr_data = reinterpret_cast<char*>(answer.data());
    const bool answered = ioctl(socket, SIOCETHTOOL, &request) == 0;
    request.ifr_data = nullptr;
    std::memcpy(&settings, answer.data(), sizeof(settings));
    return answered;
}

// What it runs at, and what it is made for: the fastest mode it offers to its partner, as the
// administrator set it, which is known without a carrier too; else the fastest it has.
void ask_speed(int socket, ifreq& request, Interface& link) {
    SettingsAnswer answer{};
    ethtool_link_settings settings{};
    if (!ask_settings(socket, request, 0, answer, settings) ||
        settings.link_mode_masks_nwords >= 0) {
        return;
    }
    const int words = -settings.link_mode_masks_nwords;
    if (words > static_cast<int>(kMostWords) ||
        !ask_settings(socket, request, static_cast<std::int8_t>(words), answer, settings)) {
        return;
    }
    const std::uint32_t* modes = answer.data() + kSettings;
    const auto size = static_cast<std::size_t>(words);
    const std::int64_t offered = fastest_mode(modes + size, size);
    link.nominal_mbps = offered > 0 ? offered : fastest_mode(modes, size);
    link.speed_mbps = settings.speed <= INT_MAX ? settings.speed : 0;
}

// Speed and driver come from ethtool requests, which follow the network namespace of the socket;
// /sys shows the namespace it was mounted in.
void ask_driver(int socket, Interface& link) {
    ifreq request{};
    std::strncpy(request.ifr_name, link.name.c_str(), IFNAMSIZ - 1);
    ethtool_drvinfo info{};
    info.cmd = ETHTOOL_GDRVINFO;
    request.ifr_data = reinterpret_cast<char*>(&info);
    if (ioctl(socket, SIOCETHTOOL, &request) == 0) {
        info.driver[sizeof(info.driver) - 1] = '\0';
        info.bus_info[sizeof(info.bus_info) - 1] = '\0';
        link.driver = info.driver;
        link.usb = std::strncmp(info.bus_info, "usb-", 4) == 0;
        const std::string device = std::string("/sys/bus/pci/devices/") + info.bus_info;
        char resolved[PATH_MAX];
        if (info.bus_info[0] != '\0' && realpath(device.c_str(), resolved) != nullptr) {
            link.pci_path = resolved;
            std::string node;
            if (read_sysfs(link.pci_path + "/numa_node", node)) {
                link.numa_node = std::atoi(node.c_str());
            }
        }
    }
    request.ifr_data = nullptr;
    ask_speed(socket, request, link);
    ask_sysfs(link);
    if (link.nominal_mbps == 0) {
        link.nominal_mbps = link.speed_mbps;
    }
}

}  // namespace

bool Address::loopback() const {
    if (family == AF_INET) {
        return bytes[0] == 127;
    }
    static constexpr std::array<std::uint8_t, 16> one{0, 0, 0, 0, 0, 0, 0, 0,
                                                      0, 0, 0, 0, 0, 0, 0, 1};
    return family == AF_INET6 && bytes == one;
}

bool Address::link_local() const {
    return family == AF_INET ? bytes[0] == 169 && bytes[1] == 254
                             : family == AF_INET6 && bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
}

bool Address::same_network(const Address& other) const {
    if (family != other.family) {
        return false;
    }
    int left = prefix;
    for (std::size_t i = 0; i < size() && left > 0; ++i, left -= 8) {
        const int mask = left >= 8 ? 0xff : (0xff << (8 - left)) & 0xff;
        if (((bytes[i] ^ other.bytes[i]) & mask) != 0) {
            return false;
        }
    }
    return true;
}

std::string Address::text() const {
    char buffer[INET6_ADDRSTRLEN] = "?";
    inet_ntop(family, bytes.data(), buffer, sizeof(buffer));
    std::string text = buffer;
    char name[IF_NAMESIZE];
    if (scope != 0 && if_indextoname(scope, name) != nullptr) {
        text += std::string("%") + name;
    }
    return text;
}

bool Address::operator==(const Address& other) const {
    return family == other.family && std::memcmp(bytes.data(), other.bytes.data(), size()) == 0;
}

bool parse_address(std::string_view text, Address& address) {
    const std::size_t percent = text.find('%');
    const std::string copy(text.substr(0, percent));
    std::uint32_t scope = 0;
    if (percent != std::string_view::npos) {
        scope = if_nametoindex(std::string(text.substr(percent + 1)).c_str());
        if (scope == 0) {
            return false;
        }
    }
    for (const int family : {AF_INET, AF_INET6}) {
        Address parsed;
        if (inet_pton(family, copy.c_str(), parsed.bytes.data()) == 1) {
            parsed.family = family;
            parsed.prefix = family == AF_INET ? 32 : 128;
            parsed.scope = scope;
            address = parsed;
            return scope == 0 || parsed.link_local();
        }
    }
    return false;
}

socklen_t to_sockaddr(const Address& address, std::uint16_t port, sockaddr_storage& storage) {
    std::memset(&storage, 0, sizeof(storage));
    if (address.family == AF_INET) {
        sockaddr_in in{};
        in.sin_family = AF_INET;
        in.sin_port = htons(port);
        std::memcpy(&in.sin_addr, address.bytes.data(), 4);
        std::memcpy(&storage, &in, sizeof(in));
        return sizeof(in);
    }
    sockaddr_in6 in6{};
    in6.sin6_family = AF_INET6;
    in6.sin6_port = htons(port);
    std::memcpy(&in6.sin6_addr, address.bytes.data(), 16);
    in6.sin6_scope_id = address.scope;
    std::memcpy(&storage, &in6, sizeof(in6));
    return sizeof(in6);
}

bool from_sockaddr(const sockaddr* storage, Address& address, std::uint16_t* port) {
    if (storage->sa_family == AF_INET) {
        sockaddr_in in;
        std::memcpy(&in, storage, sizeof(in));
        address.family = AF_INET;
        std::memcpy(address.bytes.data(), &in.sin_addr, 4);
        if (port != nullptr) {
            *port = ntohs(in.sin_port);
        }
        return true;
    }
    if (storage->sa_family == AF_INET6) {
        sockaddr_in6 in6;
        std::memcpy(&in6, storage, sizeof(in6));
        address.family = AF_INET6;
        std::memcpy(address.bytes.data(), &in6.sin6_addr, 16);
        address.scope = address.link_local() ? in6.sin6_scope_id : 0;
        if (port != nullptr) {
            *port = ntohs(in6.sin6_port);
        }
        return true;
    }
    return false;
}

bool Interface::routable() const {
    return std::any_of(addresses.begin(), addresses.end(), [](const Address& address) {
        return !address.link_local() && !address.loopback();
    });
}

namespace {

// Best first: of both families those that any peer could reach before the others.
int worth(const KernelAddress& found) {
    if (found.address.loopback()) {
        return 3;
    }
    if (found.address.link_local()) {
        return 2;
    }
    return found.temporary ? 1 : 0;
}

std::vector<Address> offered_addresses(std::vector<KernelAddress> found) {
    std::erase_if(found, [](const KernelAddress& each) { return each.failed; });
    std::stable_sort(found.begin(), found.end(), [](const auto& left, const auto& right) {
        return worth(left) < worth(right);
    });
    std::vector<Address> addresses;
    for (const KernelAddress& each : found) {
        // Link-local ones are no use where others are; on `lo` besides a routable one 127.0.0.1
        // would be the peer's own.
        if (addresses.empty() || worth(each) <= 1 || worth(each) == worth(found[0])) {
            addresses.push_back(each.address);
        }
    }
    return addresses;
}

std::string name_of(unsigned index, const std::vector<KernelLink>& links) {
    for (const KernelLink& link : links) {
        if (link.index == index) {
            return link.name;
        }
    }
    return {};
}

// What the kernel says of it.
Interface described(const KernelLink& kernel, const std::vector<KernelLink>& links) {
    Interface link;
    link.name = kernel.name;
    link.index = kernel.index;
    link.kind = kernel.kind;
    link.hardware = kernel.hardware;
    link.mtu = kernel.mtu;
    link.loopback = (kernel.flags & IFF_LOOPBACK) != 0;
    link.up = (kernel.flags & IFF_UP) != 0 && (kernel.flags & IFF_RUNNING) != 0;
    link.master = kernel.master == 0 ? "" : name_of(kernel.master, links);
    if (kernel.lower != 0 && kernel.lower != kernel.index && !kernel.lower_elsewhere) {
        link.peer_here = kernel.kind == "veth";
        link.lower = link.peer_here ? "" : name_of(kernel.lower, links);
    }
    // linux/if_bonding.h: active-backup and broadcast.
    link.one_port_at_a_time = kernel.bond_mode == 1 || kernel.bond_mode == 3;
    return link;
}

}  // namespace

std::vector<Interface> list_interfaces(int family) {
    std::vector<KernelLink> links;
    std::vector<KernelAddress> addresses;
    if (!read_kernel_links(links) || !read_kernel_addresses(addresses)) {
        return {};
    }
    const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    std::vector<Interface> found;
    for (const KernelLink& kernel : links) {
        Interface& link = found.emplace_back(described(kernel, links));
        ask_driver(socket.get(), link);
        std::vector<KernelAddress> own;
        for (const KernelAddress& address : addresses) {
            if (address.index == kernel.index &&
                (family == AF_UNSPEC || family == address.address.family)) {
                own.push_back(address);
            }
        }
        link.addresses = offered_addresses(std::move(own));
    }
    complete(found);
    return found;
}

}  // namespace deft
