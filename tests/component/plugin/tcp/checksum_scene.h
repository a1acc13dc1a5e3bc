// SPDX-License-Identifier: Apache-2.0
// A connection over relays that flip bits.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "base/link_stats.h"
#include "tests/component/plugin/relayed_pair.h"

namespace deft::net::testing {
// Its names are of this header alone: other tests of the same program have some of them too.
inline namespace damaged {

inline ConnectionOptions checked(bool on) {
    ConnectionOptions options;
    options.checksum = on;
    return options;
}

struct DamagedScene : RelayedPair {
    DamagedScene(std::size_t links, std::size_t relays, bool checksum,
                 Nanos link_timeout = 30 * kSecond)
        : RelayedPair(links, relays, link_timeout, checked(checksum)) {}
    std::uint64_t flips() const {
        std::uint64_t sum = 0;
        for (const auto& each : relay) {
            sum += each->flips;
        }
        return sum;
    }
};

struct Outcome {
    std::size_t wrong = 0;  // messages that came otherwise than they were sent
    bool complete = false;
};

// Messages of random sizes, up to `depth` in flight, each compared byte by byte.
inline Outcome run(DamagedScene& scene, std::size_t messages, std::size_t largest,
                   std::size_t depth = 4) {
    struct Flight {
        Request* send = nullptr;
        Request* receive = nullptr;
        bool sent = false;
        bool received = false;
        std::vector<std::byte> data;
        std::vector<std::byte> buffer;
    };
    Outcome outcome;
    std::vector<Flight> flights(messages);
    std::mt19937 random(3);
    for (std::size_t i = 0; i < messages; ++i) {
        const std::size_t size = random() % 3 == 0 ? random() % 5000 : random() % largest;
        flights[i].data = bytes_of(size, static_cast<unsigned>(i));
        flights[i].buffer.resize(largest);
    }
    Sender& sender = *scene.pair.sender;
    Receiver& receiver = *scene.pair.receiver;
    std::size_t first = 0;
    const Nanos deadline = steady_now() + 2 * kPatience;
    while (first < messages && steady_now() < deadline) {
        if (sender.failure() || receiver.failure()) {
            return outcome;
        }
        scene.step();
        receiver.progress(steady_now());  // as the helper thread does for who is not polled
        for (std::size_t i = first; i < std::min(messages, first + depth); ++i) {
            Flight& flight = flights[i];
            const Nanos now = steady_now();
            if (flight.receive == nullptr) {
                flight.receive =
                    receiver.irecv(flight.buffer.data(), flight.buffer.size(), false, now);
            }
            if (flight.send == nullptr) {
                flight.send = sender.isend(flight.data.data(), flight.data.size(), now);
            }
            if (flight.send == nullptr || flight.receive == nullptr) {
                break;
            }
            std::size_t size = 0;
            if (!flight.sent) {
                flight.sent = sender.test(flight.send, now, nullptr);
            }
            if (!flight.received && receiver.test(flight.receive, now, &size)) {
                flight.received = true;
                const bool same =
                    size == flight.data.size() &&
                    std::equal(flight.data.begin(), flight.data.end(), flight.buffer.begin());
                outcome.wrong += same ? 0 : 1;
            }
        }
        while (first < messages && flights[first].sent && flights[first].received) {
            ++first;
        }
    }
    outcome.complete = first == messages;
    return outcome;
}

// One message through the relay; false if the connection gives up.
inline bool exchange(DamagedScene& scene, const std::vector<std::byte>& data,
                     std::vector<std::byte>& buffer) {
    Sender& sender = *scene.pair.sender;
    Receiver& receiver = *scene.pair.receiver;
    Request* receive = receiver.irecv(buffer.data(), buffer.size(), false, steady_now());
    Request* send = nullptr;
    bool sent = false;
    bool received = false;
    const Nanos deadline = steady_now() + kPatience;
    while (receive != nullptr && !(sent && received) && steady_now() < deadline) {
        if (sender.failure() || receiver.failure()) {
            return false;
        }
        scene.step();
        send = send != nullptr ? send : sender.isend(data.data(), data.size(), steady_now());
        if (!sent) {
            sent = send != nullptr && sender.test(send, steady_now(), nullptr);
        }
        if (!received) {
            received = receiver.test(receive, steady_now(), nullptr);
        }
        sender.progress(steady_now());  // as the idle thread does for who is not polled
        receiver.progress(steady_now());
    }
    return sent && received;
}

// Flips a bit once in so many bytes of one direction, beyond the first `spare` of a connection.
inline Relay::Damage once_in(std::uint64_t bytes, bool to_receiver, std::uint64_t spare = 100) {
    auto passed = std::make_shared<std::uint64_t>(0);
    return [=](bool towards, std::uint64_t begin, std::size_t size) -> long {
        if (towards != to_receiver || begin < spare) {
            return -1;
        }
        const std::uint64_t before = *passed;
        *passed += size;
        return before / bytes != *passed / bytes
                   ? static_cast<long>(std::mt19937(static_cast<unsigned>(before))() % size)
                   : -1;
    };
}

inline std::uint64_t sum_of(std::atomic<std::uint64_t> LinkCounters::*counter) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < LinkStats::process().size(); ++i) {
        sum += (LinkStats::process()[i].*counter).load();
    }
    return sum;
}

inline std::uint64_t resent() {
    return sum_of(&LinkCounters::resent_bytes);
}

}  // namespace damaged
}  // namespace deft::net::testing
