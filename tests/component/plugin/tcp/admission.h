// SPDX-License-Identifier: Apache-2.0
// Strangers and senders at the listener of a pair.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <vector>

#include "plugin/tcp/tcp_socket.h"
#include "plugin/tcp/wire.h"
#include "tests/component/plugin/tcp_pair.h"

namespace deft::net::testing {
// Its names are of this header alone: other tests of the same program have some of them too.
inline namespace admission {

// A blocking client of the listener at link 0.
inline UniqueFd next(const wire::Handle& handle, const char* from = nullptr) {
    const wire::Endpoint& endpoint = handle.endpoints.entries[0];
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage storage;
    if (from != nullptr) {
        Address own;
        EXPECT_TRUE(parse_address(from, own));
        const socklen_t size = to_sockaddr(own, 0, storage);
        EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&storage), size), 0);
    }
    const socklen_t length = to_sockaddr(endpoint.address, endpoint.port, storage);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length), 0);
    return fd;
}

// True once the peer has closed this connection (or reset it).
inline bool closed(const UniqueFd& fd, TcpPair& pair, std::vector<std::byte>* heard = nullptr) {
    const Nanos deadline = steady_now() + kPatience;
    std::byte buffer[1024];
    while (steady_now() < deadline) {
        (void)pair.listener->accept(steady_now());
        const ssize_t got = recv(fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN)) {
            return true;
        }
        if (got > 0 && heard != nullptr) {
            heard->insert(heard->end(), buffer, buffer + got);
        }
    }
    return false;
}

inline wire::Hello hello_for(const wire::Handle& handle) {
    wire::Hello hello;
    hello.listener = handle.listener;
    hello.secret = handle.secret;
    hello.connection = 1234;
    hello.incarnation = 1;
    hello.path = 0;
    hello.paths = 1;
    return hello;
}

inline void say(const UniqueFd& fd, const wire::Hello& hello) {
    std::array<std::byte, wire::kHelloBytes> bytes;
    wire::encode(hello, bytes);
    EXPECT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
}

inline wire::Handle decoded(const TcpPair& pair) {
    wire::Handle handle;
    EXPECT_EQ(wire::decode(pair.handle, handle), wire::Decoded::Ok);
    return handle;
}

inline void expect_works(TcpPair& pair) {
    ASSERT_TRUE(pair.establish());
    const std::vector<std::byte> data = bytes_of(300001, 3);
    std::vector<std::byte> buffer(400000);
    ASSERT_EQ(pair.transfer(data, buffer), 300001);
    EXPECT_TRUE(std::equal(data.begin(), data.end(), buffer.begin()));
}

}  // namespace admission
}  // namespace deft::net::testing
