// SPDX-License-Identifier: Apache-2.0
#include "topology/interfaces.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "topology/base/unique_fd.h"
#include "topology/pci.h"

namespace deft {
namespace {

int prefix_length(const sockaddr* mask) {
    Address bits;
    if (mask == nullptr || !from_sockaddr(mask, bits, nullptr)) {
        return 0;
    }
    int length = 0;
    for (std::size_t i = 0; i < bits.size(); ++i) {
        length += __builtin_popcount(bits.bytes[i]);
    }
    return length;
}

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
    link.bridge = link.bridge || access((folder + "/bridge").c_str(), F_OK) == 0;
    link.physical_function = entry_of(folder + "/device/physfn/net", "");
    link.lower = entry_of(folder, "lower_");
    std::string speed;
    if (link.speed_mbps == 0 && read_sysfs(folder + "/speed", speed)) {
        const long value = std::strtol(speed.c_str(), nullptr, 10);
        link.speed_mbps = value > 0 ? value : 0;
    }
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
    ethtool_cmd settings{};
    settings.cmd = ETHTOOL_GSET;
    request.ifr_data = reinterpret_cast<char*>(&settings);
    if (ioctl(socket, SIOCETHTOOL, &request) == 0) {
        const std::uint32_t speed = ethtool_cmd_speed(&settings);
        if (speed != 0 && speed != static_cast<std::uint32_t>(SPEED_UNKNOWN)) {
            link.speed_mbps = speed;
        }
    }
    request.ifr_data = nullptr;
    if (ioctl(socket, SIOCGIFMTU, &request) == 0) {
        link.mtu = request.ifr_mtu;
    }
    link.bridge = link.driver == "bridge";
    ask_sysfs(link);
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
    return family == AF_INET6 && bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
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

std::vector<Interface> list_interfaces() {
    std::vector<Interface> found;
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) != 0) {
        return found;
    }
    UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
        Interface* link = nullptr;
        for (Interface& known : found) {
            if (known.name == entry->ifa_name) {
                link = &known;
            }
        }
        if (link == nullptr) {
            link = &found.emplace_back();
            link->name = entry->ifa_name;
            link->index = if_nametoindex(entry->ifa_name);
            link->loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
            // IFF_RUNNING is the carrier as the kernel reports it to getifaddrs.
            link->up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
            ask_driver(socket.get(), *link);
        }
        Address address;
        if (entry->ifa_addr != nullptr && from_sockaddr(entry->ifa_addr, address, nullptr)) {
            address.prefix = prefix_length(entry->ifa_netmask);
            link->addresses.push_back(address);
        }
    }
    freeifaddrs(list);
    for (Interface& link : found) {
        std::stable_partition(link.addresses.begin(), link.addresses.end(),
                              [](const Address& each) { return !each.link_local(); });
        while (link.addresses.size() > 1 && link.addresses.back().link_local()) {
            link.addresses.pop_back();
        }
    }
    return found;
}

}  // namespace deft
