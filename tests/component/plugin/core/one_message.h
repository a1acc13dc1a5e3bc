// SPDX-License-Identifier: Apache-2.0
// One message on a virtual clock: for the tests of docs/alive.md.
#pragma once

#include <gtest/gtest.h>

#include "tests/component/plugin/core/traffic.h"

namespace deft::net::testing {

inline constexpr Nanos kMinute = 60 * kSecond;
inline constexpr std::size_t kLarge = 1 << 20;

inline std::size_t count(const std::string& text, const std::string& what) {
    std::size_t found = 0;
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
        ++found;
    }
    return found;
}

// One message on its way over some links, driven a millisecond at a time.
struct OneMessage {
    explicit OneMessage(std::vector<FakeLink> links, Nanos limit = Patience::kKernel)
        : wire(std::move(links), limit), data(kLarge), buffer(kLarge) {
        EXPECT_TRUE(wire.establish());
    }
    void send() {
        sending = wire.sender->isend(data.data(), data.size(), wire.now);
        EXPECT_NE(sending, nullptr);
        began = wire.now;
    }
    void post() {
        receiving = wire.receiver->irecv(buffer.data(), buffer.size(), false, wire.now);
        EXPECT_NE(receiving, nullptr);
        began = wire.now;
    }
    // Until `over`, or for so long.
    void drive(
        Nanos time, const std::function<bool()>& over = [] { return false; }) {
        for (const Nanos end = wire.now + time; wire.now < end && !over();
             wire.now += kMillisecond) {
            if (wire.sender && sending != nullptr) {
                if (wire.sender->test(sending, wire.now, nullptr)) {
                    sending = nullptr;
                    sent = true;
                }
            } else if (wire.sender) {
                wire.sender->progress(wire.now);
            }
            if (wire.receiver && receiving != nullptr) {
                if (wire.receiver->test(receiving, wire.now, nullptr)) {
                    receiving = nullptr;
                    received = true;
                }
            } else if (wire.receiver) {
                wire.receiver->progress(wire.now);
            }
        }
    }
    bool sender_failed() const { return static_cast<bool>(wire.sender->failure()); }
    bool receiver_failed() const { return static_cast<bool>(wire.receiver->failure()); }
    Nanos since() const { return wire.now - began; }

    FakeWire wire;
    std::vector<std::byte> data;
    std::vector<std::byte> buffer;
    Request* sending = nullptr;
    Request* receiving = nullptr;
    bool sent = false;
    bool received = false;
    Nanos began = 0;
};

inline FakeLink swallowing(double gbit = 1) {
    FakeLink fake = link(gbit);
    fake.narrow = 1400;
    fake.times_out = 5 * kSecond;
    return fake;
}

}  // namespace deft::net::testing
