// SPDX-License-Identifier: Apache-2.0
// Two ends of a TCP connection over loopback, as plain sockets.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <utility>

#include "base/unique_fd.h"

namespace deft::net::testing {

// The end that connected, and the one that was accepted.
inline std::pair<UniqueFd, UniqueFd> connected_sockets() {
    const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener.get(), generic, length), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), generic, &length), 0);
    UniqueFd from(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(from.get(), generic, length), 0);
    const int on = 1;  // as the plugin's have it
    EXPECT_EQ(setsockopt(from.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
    UniqueFd to(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    return {std::move(from), std::move(to)};
}

}  // namespace deft::net::testing
