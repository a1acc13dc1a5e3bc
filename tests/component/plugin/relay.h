// SPDX-License-Identifier: Apache-2.0
// A TCP relay in front of a listener's endpoint, which flips bits of what it passes on (what a bad
// NIC, cable or switch does when TCP's own checksum does not notice), holds it up, or loses it with
// the connection. Driven by the test's loop.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "plugin/tcp/tcp_socket.h"
#include "plugin/tcp/wire.h"

namespace deft::net::testing {

class Relay {
public:
    // Takes the place of the endpoint in the listener's handle.
    explicit Relay(wire::Endpoint& endpoint) : address_(endpoint.address), port_(endpoint.port) {
        std::string problem;
        std::uint16_t port = 0;
        listener_ = listen_on(address_, port, problem);
        endpoint.port = port;
    }

    // Asked for every piece of bytes: at which of them a bit is to be flipped, or -1. `begin`: its
    // place in the stream of this direction of this connection.
    using Damage = std::function<long(bool to_receiver, std::uint64_t begin, std::size_t size)>;
    Damage damage;
    // Asked before anything is read in a direction: true leaves it in the kernel this time.
    std::function<bool(bool to_receiver)> hold;
    // Asked for every piece of bytes: true loses it, and the connection with it.
    std::function<bool(bool to_receiver)> cut;
    std::uint64_t flips = 0;
    std::uint64_t cuts = 0;
    std::uint64_t connections = 0;

    void step() {
        UniqueFd near(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (near) {
            UniqueFd far(socket(address_.family, SOCK_STREAM | SOCK_CLOEXEC, 0));
            sockaddr_storage storage;
            const socklen_t length = to_sockaddr(address_, port_, storage);
            if (connect(far.get(), reinterpret_cast<sockaddr*>(&storage), length) == 0) {
                ++connections;
                pairs_.push_back(std::make_unique<Pair>());
                pairs_.back()->ends[0].fd = std::move(near);
                pairs_.back()->ends[1].fd = std::move(far);
            }
        }
        for (std::size_t i = 0; i < pairs_.size();) {
            const bool alive = pass(*pairs_[i], 0) && pass(*pairs_[i], 1);
            if (alive) {
                ++i;
            } else {
                pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(i));
            }
        }
    }

private:
    struct End {
        UniqueFd fd;
        std::uint64_t passed = 0;          // bytes read here
        std::vector<unsigned char> bytes;  // of them not yet written to the other end
    };
    struct Pair {
        End ends[2];  // the sender's, the receiver's
    };

    // From one end to the other; false once either is closed.
    bool pass(Pair& pair, int from) {
        End& in = pair.ends[from];
        End& out = pair.ends[1 - from];
        if (in.bytes.empty() && hold && hold(from == 0)) {
            return true;
        }
        if (in.bytes.empty()) {
            in.bytes.resize(65536);
            const ssize_t got = recv(in.fd.get(), in.bytes.data(), in.bytes.size(), MSG_DONTWAIT);
            in.bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
            if (got == 0 || (got < 0 && errno != EAGAIN)) {
                return false;
            }
            if (!in.bytes.empty() && cut && cut(from == 0)) {
                ++cuts;
                return false;
            }
            const long at =
                in.bytes.empty() || !damage ? -1 : damage(from == 0, in.passed, in.bytes.size());
            if (at >= 0 && static_cast<std::size_t>(at) < in.bytes.size()) {
                in.bytes[static_cast<std::size_t>(at)] ^= 0x10;
                ++flips;
            }
            in.passed += in.bytes.size();
        }
        if (!in.bytes.empty()) {
            const ssize_t sent =
                send(out.fd.get(), in.bytes.data(), in.bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
            if (sent < 0 && errno != EAGAIN) {
                return false;
            }
            in.bytes.erase(in.bytes.begin(), in.bytes.begin() + std::max<ssize_t>(sent, 0));
        }
        return true;
    }

    Address address_;
    std::uint16_t port_;
    UniqueFd listener_;
    std::vector<std::unique_ptr<Pair>> pairs_;
};

}  // namespace deft::net::testing
