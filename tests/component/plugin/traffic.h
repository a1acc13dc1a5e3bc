// SPDX-License-Identifier: Apache-2.0
// NCCL's way of driving one connection, over a FakeWire: so many requests in flight, only the
// oldest tested, every byte checked.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <random>
#include <vector>

#include "tests/component/plugin/fake_wire.h"

namespace deft::net::testing {

struct TrafficOptions {
    std::size_t messages = 100;
    std::size_t depth = 4;
    std::function<std::size_t(std::size_t)> size = [](std::size_t) { return 512 * 1024; };
    std::size_t capacity = 1 << 20;  // of each receive buffer
    std::uint64_t seed = 1;
    Nanos step = 5 * kMicrosecond;  // of the virtual clock when nothing happens
    Nanos limit = 600 * kSecond;    // virtual
    std::size_t burst = 0;  // messages; then nothing for `pause`, as a training job computes
    Nanos pause = 0;
    Nanos receive_every = 0;  // receives come no faster: something else paces the receiver
    std::function<void(Nanos)> each_step;
};

struct TrafficResult {
    bool complete = false;
    Nanos elapsed = 0;
    Nanos paused = 0;
    std::uint64_t bytes = 0;
    Nanos longest_stall = 0;                           // between two receive completions
    std::vector<std::pair<Nanos, std::uint64_t>> log;  // time and bytes of each completion
};

inline std::byte pattern(std::uint64_t seed, std::size_t message, std::size_t at) {
    return static_cast<std::byte>((seed * 131 + message * 7 + at * 13 + (at >> 8)) & 0xff);
}

inline TrafficResult run_traffic(FakeWire& wire, const TrafficOptions& options) {
    struct Send {
        Request* request;
        std::vector<std::byte> data;
    };
    struct Receive {
        Request* request;
        std::size_t message;
        std::vector<std::byte> data;
    };
    std::deque<Send> sends;
    std::deque<Receive> receives;
    std::size_t sent = 0;
    std::size_t posted = 0;
    std::size_t received = 0;
    std::vector<std::byte> next;
    TrafficResult result;
    const Nanos start = wire.now;
    Nanos last = start;
    Nanos resume = start;
    Nanos next_receive = start;
    std::size_t bursts = 1;
    while (received < options.messages || !sends.empty()) {
        if (wire.now - start > options.limit || wire.sender->failure() ||
            wire.receiver->failure()) {
            result.elapsed = wire.now - start;
            return result;
        }
        bool moved = false;
        if (options.each_step) {
            options.each_step(wire.now - start);
        }
        if (posted < options.messages && receives.size() < options.depth &&
            wire.now >= next_receive) {
            next_receive = wire.now + options.receive_every;
            Receive receive{nullptr, posted, std::vector<std::byte>(options.capacity)};
            receive.request =
                wire.receiver->irecv(receive.data.data(), receive.data.size(), false, wire.now);
            if (receive.request != nullptr) {
                receives.push_back(std::move(receive));
                ++posted;
                moved = true;
            }
        }
        if (options.burst > 0 && sent == bursts * options.burst && sends.empty()) {
            resume = wire.now + options.pause;
            result.paused += options.pause;
            ++bursts;
        }
        const bool resting =
            wire.now < resume || (options.burst > 0 && sent == bursts * options.burst);
        if (!resting && sent < options.messages && sends.size() < options.depth) {
            const std::size_t size = options.size(sent);
            if (next.size() != size || size == 0) {
                next.resize(size);
            }
            for (std::size_t i = 0; i < size; ++i) {
                next[i] = pattern(options.seed, sent, i);
            }
            Send send{nullptr, std::move(next)};
            send.request = wire.sender->isend(send.data.data(), size, wire.now);
            if (send.request != nullptr) {
                sends.push_back(std::move(send));
                ++sent;
                moved = true;
                next.clear();
            } else {
                next = std::move(send.data);
            }
        }
        std::size_t size = 0;
        if (!sends.empty() && wire.sender->test(sends.front().request, wire.now, &size)) {
            // NCCL reuses the buffer at once: nothing may look at it any more.
            std::fill(sends.front().data.begin(), sends.front().data.end(), std::byte{0xEE});
            sends.pop_front();
            moved = true;
        }
        if (!receives.empty() && wire.receiver->test(receives.front().request, wire.now, &size)) {
            const Receive& receive = receives.front();
            EXPECT_EQ(size, options.size(receive.message));
            std::size_t wrong = 0;
            for (std::size_t i = 0; i < size; ++i) {
                wrong += receive.data[i] != pattern(options.seed, receive.message, i) ? 1 : 0;
            }
            EXPECT_EQ(wrong, 0U) << "message " << receive.message << " of " << size;
            result.bytes += size;
            result.log.emplace_back(wire.now - start, size);
            result.longest_stall = std::max(result.longest_stall, wire.now - last);
            last = wire.now;
            receives.pop_front();
            ++received;
            moved = true;
        }
        wire.now += moved ? kMicrosecond : options.step;
    }
    result.complete = true;
    result.elapsed = wire.now - start;
    return result;
}

}  // namespace deft::net::testing
