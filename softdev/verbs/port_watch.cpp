// SPDX-License-Identifier: Apache-2.0
#include "softdev/verbs/port_watch.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <array>

namespace softdev::verbs {

NetlinkWatch::NetlinkWatch(Nic& nic) : nic_(nic) {
    fd.reset(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
    sockaddr_nl address{};
    address.nl_family = AF_NETLINK;
    address.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        fd.reset();
    }
}

void NetlinkWatch::ready(unsigned /*events*/) {
    // What exactly changed is read from the interfaces: a message may have been lost, too.
    std::array<char, 8192> ignored;
    while (::recv(fd.get(), ignored.data(), ignored.size(), 0) > 0) {
    }
    nic_.look_at_ports();
}

}  // namespace softdev::verbs
