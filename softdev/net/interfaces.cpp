// SPDX-License-Identifier: Apache-2.0
#include "softdev/net/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <strings.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

#include "softdev/net/logger.h"

namespace softdev::net {
namespace {

constexpr int kUnknownSpeedMbps = 10000;

std::string first_word(const std::string& path) {
    std::ifstream file(path);
    std::string word;
    file >> word;
    return word;
}

void read_sysfs(Interface* interface) {
    const std::string base = "/sys/class/net/" + interface->name;
    const int speed = std::atoi(first_word(base + "/speed").c_str());
    interface->speed_mbps = speed > 0 ? speed : kUnknownSpeedMbps;
    interface->vendor = first_word(base + "/device/vendor");
    char resolved[PATH_MAX];
    if (realpath((base + "/device").c_str(), resolved) != nullptr) {
        interface->pci_path = resolved;
    }
}

int wanted_family() {
    const char* value = std::getenv("NCCL_SOCKET_FAMILY");
    if (value == nullptr || *value == '\0') {
        return AF_UNSPEC;
    }
    if (strcmp(value, "AF_INET") == 0) {
        return AF_INET;
    }
    if (strcmp(value, "AF_INET6") == 0) {
        return AF_INET6;
    }
    SOFTNET_WARN("NET/Socket: NCCL_SOCKET_FAMILY=%s is ignored; AF_INET or AF_INET6 is expected",
                 value);
    return AF_UNSPEC;
}

std::vector<Interface> matching(const ifaddrs* list, std::string_view names, int family) {
    std::vector<Interface> found;
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
        if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_RUNNING) == 0) {
            continue;
        }
        const int its_family = entry->ifa_addr->sa_family;
        if ((its_family != AF_INET && its_family != AF_INET6) ||
            (family != AF_UNSPEC && family != its_family) || !selects(names, entry->ifa_name)) {
            continue;
        }
        Interface interface {};
        interface.name = entry->ifa_name;
        std::memcpy(&interface.address, entry->ifa_addr,
                    its_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
        if (its_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&interface.address.v6.sin6_addr)) {
            continue;
        }
        const bool known = std::any_of(found.begin(), found.end(), [&](const Interface& other) {
            return other.name == interface.name;
        });
        if (!known && found.size() < kMaxInterfaces) {
            found.push_back(interface);
        }
    }
    for (Interface& interface : found) {
        read_sysfs(&interface);
    }
    return found;
}

}  // namespace

socklen_t address_length(const Address& address) {
    return address.base.sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

std::string to_text(const Address& address) {
    char text[INET6_ADDRSTRLEN] = "?";
    int port = 0;
    if (address.base.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &address.v6.sin6_addr, text, sizeof text);
        port = ntohs(address.v6.sin6_port);
    } else {
        inet_ntop(AF_INET, &address.v4.sin_addr, text, sizeof text);
        port = ntohs(address.v4.sin_port);
    }
    return std::string(text) + "<" + std::to_string(port) + ">";
}

bool selects(std::string_view list, std::string_view interface) {
    const bool inverted = list.starts_with('^');
    if (inverted) {
        list.remove_prefix(1);
    }
    const bool exact = list.starts_with('=');
    if (exact) {
        list.remove_prefix(1);
    }
    bool matched = false;
    while (!list.empty() && !matched) {
        const size_t comma = list.find(',');
        std::string_view name = list.substr(0, comma);
        list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
        name = name.substr(0, name.find(':'));  // NCCL allows "eth0:port"
        matched = !name.empty() && (exact ? interface == name : interface.starts_with(name));
    }
    return matched != inverted;
}

std::vector<Interface> find_interfaces() {
    ifaddrs* raw = nullptr;
    if (getifaddrs(&raw) != 0) {
        SOFTNET_WARN("NET/Socket: getifaddrs failed: %s", strerror(errno));
        return {};
    }
    const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(raw, freeifaddrs);
    const int family = wanted_family();
    const char* named = std::getenv("NCCL_SOCKET_IFNAME");
    if (named != nullptr && *named != '\0') {
        return matching(list.get(), named, family);
    }
    for (const char* choice : {"ib", "^docker,lo,virbr", "docker", "lo"}) {
        std::vector<Interface> found = matching(list.get(), choice, family);
        if (!found.empty()) {
            return found;
        }
    }
    return {};
}

std::vector<Interface> select_interfaces(std::string_view names) {
    ifaddrs* raw = nullptr;
    if (getifaddrs(&raw) != 0) {
        return {};
    }
    const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(raw, freeifaddrs);
    return matching(list.get(), names, wanted_family());
}

}  // namespace softdev::net
