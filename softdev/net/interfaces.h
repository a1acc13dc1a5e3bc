// SPDX-License-Identifier: Apache-2.0
// The host's network interfaces as NCCL's socket transport and bootstrap choose them:
// NCCL_SOCKET_IFNAME (comma list of prefixes; "=" exact names, "^" all but; "^=" all but exact
// names) and NCCL_SOCKET_FAMILY (AF_INET, AF_INET6).
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <string_view>
#include <vector>

namespace softdev::net {

union Address {
    sockaddr base;
    sockaddr_in v4;
    sockaddr_in6 v6;
};

socklen_t address_length(const Address& address);
std::string to_text(const Address& address);  // "192.0.2.1<4567>"

struct Interface {
    std::string name;
    Address address;
    int speed_mbps;        // 10000 where the kernel does not know
    std::string pci_path;  // sysfs directory, empty for virtual interfaces
    std::string vendor;    // "0x1d0f", empty if unknown
    bool faults = true;    // SocketFaults act on its connections
};

inline constexpr size_t kMaxInterfaces = 16;

// Pure: does the list in NCCL_SOCKET_IFNAME's form select this interface?
bool selects(std::string_view list, std::string_view interface);

// Running interfaces, one address each, at most 16. Without NCCL_SOCKET_IFNAME: those named ib*, if
// none all but docker*, lo, virbr*, if none docker*, if none lo.
std::vector<Interface> find_interfaces();

// Those running ones that a list in NCCL_SOCKET_IFNAME's form selects.
std::vector<Interface> select_interfaces(std::string_view list);

}  // namespace softdev::net
