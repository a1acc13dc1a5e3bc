// SPDX-License-Identifier: Apache-2.0
// A listener, a sender and a receiver over real TCP on loopback addresses, in one process.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "deft/abi/net.h"
#include "plugin/connection.h"

namespace deft::net::testing {

// A device whose links are 127.0.0.2, 127.0.0.3, ...
inline std::shared_ptr<const Device> loopback_device(std::size_t links) {
    std::vector<Interface> list;
    for (std::size_t i = 0; i < links; ++i) {
        Interface link;
        link.name = "127.0.0." + std::to_string(i + 2);
        link.loopback = true;
        link.up = true;
        Address address;
        EXPECT_TRUE(parse_address(link.name, address));
        link.addresses.push_back(address);
        list.push_back(std::move(link));
    }
    return std::make_shared<const Device>(make_device(std::move(list)));
}

inline constexpr Nanos kPatience = 60 * kSecond;  // of every wait in these tests

struct TcpPair {
    explicit TcpPair(std::size_t links, Nanos link_timeout = 30 * kSecond,
                     const ConnectionOptions& given = {})
        : device(loopback_device(links)), options(given) {
        options.link_timeout = link_timeout;
        std::string problem;
        listener = Listener::open(device, options, handle, problem);
        EXPECT_NE(listener, nullptr) << problem;
    }

    bool step() {
        if (sender == nullptr) {
            result = connect(
                device, [&] { return options; }, handle, steady_now(), sender);
            if (result != DEFT_NET_SUCCESS) {
                return true;
            }
        }
        if (receiver == nullptr) {
            receiver = listener->accept(steady_now());
        }
        return sender != nullptr && receiver != nullptr;
    }

    bool establish() {
        const Nanos deadline = steady_now() + kPatience;
        while (!step()) {
            if (steady_now() > deadline) {
                return false;
            }
        }
        return sender != nullptr && receiver != nullptr;
    }

    // Sends `data` and receives it into `buffer`; -1 on failure, else the reported size.
    long transfer(const std::vector<std::byte>& data, std::vector<std::byte>& buffer) {
        Request* receive = nullptr;
        Request* send = nullptr;
        bool sent = false;
        std::size_t size = 0;
        const Nanos deadline = steady_now() + kPatience;
        while (steady_now() < deadline) {
            const Nanos now = steady_now();
            if (sender->failure() || receiver->failure()) {
                return -1;
            }
            receive = receive != nullptr
                          ? receive
                          : receiver->irecv(buffer.data(), buffer.size(), false, now);
            send = send != nullptr ? send : sender->isend(data.data(), data.size(), now);
            if (!sent) {
                sent = send != nullptr && sender->test(send, now, nullptr);
            }
            if (receive != nullptr && receiver->test(receive, now, &size)) {
                while (!sent && steady_now() < deadline && !sender->failure()) {
                    sent = sender->test(send, steady_now(), nullptr);
                }
                return sent ? static_cast<long>(size) : -1;
            }
        }
        return -1;
    }

    std::shared_ptr<const Device> device;
    ConnectionOptions options;
    std::array<std::byte, wire::kHandleBytes> handle{};
    std::unique_ptr<Listener> listener;
    std::unique_ptr<Sender> sender;
    std::unique_ptr<Receiver> receiver;
    int result = DEFT_NET_SUCCESS;
};

inline std::vector<std::byte> bytes_of(std::size_t size, unsigned seed) {
    std::vector<std::byte> data(size);
    for (std::size_t i = 0; i < size; ++i) {
        data[i] = static_cast<std::byte>((i * 31 + seed * 7 + (i >> 9)) & 0xff);
    }
    return data;
}

}  // namespace deft::net::testing
