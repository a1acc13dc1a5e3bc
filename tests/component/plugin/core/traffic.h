// SPDX-License-Identifier: Apache-2.0
// NCCL's way of driving one connection, over a FakeWire: so many requests in flight, only the
// oldest tested, every byte checked.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <random>
#include <vector>

#include "tests/component/plugin/core/fake_wire.h"

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

// The job's side of a FakeWire: posts, asks, compares.
class Traffic {
public:
    Traffic(FakeWire& wire, const TrafficOptions& options)
        : wire_(wire),
          options_(options),
          start_(wire.now),
          last_(wire.now),
          resume_(wire.now),
          next_receive_(wire.now) {}

    TrafficResult run() {
        while (received_ < options_.messages || !sends_.empty()) {
            if (wire_.now - start_ > options_.limit || wire_.sender->failure() ||
                wire_.receiver->failure()) {
                result_.elapsed = wire_.now - start_;
                return result_;
            }
            if (options_.each_step) {
                options_.each_step(wire_.now - start_);
            }
            bool moved = post_receive();
            moved = post_send() || moved;
            moved = take_sent() || moved;
            moved = take_received() || moved;
            wire_.now += moved ? kMicrosecond : options_.step;
        }
        result_.complete = true;
        result_.elapsed = wire_.now - start_;
        return result_;
    }

private:
    struct Send {
        Request* request;
        std::vector<std::byte> data;
    };
    struct Receive {
        Request* request;
        std::size_t message;
        std::vector<std::byte> data;
    };

    bool post_receive() {
        if (posted_ == options_.messages || receives_.size() >= options_.depth ||
            wire_.now < next_receive_) {
            return false;
        }
        next_receive_ = wire_.now + options_.receive_every;
        Receive receive{nullptr, posted_, std::vector<std::byte>(options_.capacity)};
        receive.request =
            wire_.receiver->irecv(receive.data.data(), receive.data.size(), false, wire_.now);
        if (receive.request == nullptr) {
            return false;
        }
        receives_.push_back(std::move(receive));
        ++posted_;
        return true;
    }

    // Between two bursts the job computes.
    bool rests() {
        if (options_.burst > 0 && sent_ == bursts_ * options_.burst && sends_.empty()) {
            resume_ = wire_.now + options_.pause;
            result_.paused += options_.pause;
            ++bursts_;
        }
        return wire_.now < resume_ || (options_.burst > 0 && sent_ == bursts_ * options_.burst);
    }

    bool post_send() {
        if (rests() || sent_ >= options_.messages || sends_.size() >= options_.depth) {
            return false;
        }
        const std::size_t size = options_.size(sent_);
        next_.resize(size);
        for (std::size_t i = 0; i < size; ++i) {
            next_[i] = pattern(options_.seed, sent_, i);
        }
        Send send{nullptr, std::move(next_)};
        send.request = wire_.sender->isend(send.data.data(), size, wire_.now);
        if (send.request == nullptr) {
            next_ = std::move(send.data);
            return false;
        }
        sends_.push_back(std::move(send));
        ++sent_;
        next_.clear();
        return true;
    }

    bool take_sent() {
        std::size_t size = 0;
        if (sends_.empty() || !wire_.sender->test(sends_.front().request, wire_.now, &size)) {
            return false;
        }
        // NCCL reuses the buffer at once: nothing may look at it any more.
        std::fill(sends_.front().data.begin(), sends_.front().data.end(), std::byte{0xEE});
        sends_.pop_front();
        return true;
    }

    bool take_received() {
        std::size_t size = 0;
        if (receives_.empty() ||
            !wire_.receiver->test(receives_.front().request, wire_.now, &size)) {
            return false;
        }
        const Receive& receive = receives_.front();
        EXPECT_EQ(size, options_.size(receive.message));
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < size; ++i) {
            wrong += receive.data[i] != pattern(options_.seed, receive.message, i) ? 1 : 0;
        }
        EXPECT_EQ(wrong, 0U) << "message " << receive.message << " of " << size;
        result_.bytes += size;
        result_.log.emplace_back(wire_.now - start_, size);
        result_.longest_stall = std::max(result_.longest_stall, wire_.now - last_);
        last_ = wire_.now;
        receives_.pop_front();
        ++received_;
        return true;
    }

    FakeWire& wire_;
    const TrafficOptions& options_;
    std::deque<Send> sends_;
    std::deque<Receive> receives_;
    std::size_t sent_ = 0;
    std::size_t posted_ = 0;
    std::size_t received_ = 0;
    std::vector<std::byte> next_;
    TrafficResult result_;
    const Nanos start_;
    Nanos last_;  // a receive completed
    Nanos resume_;
    Nanos next_receive_;
    std::size_t bursts_ = 1;
};

inline TrafficResult run_traffic(FakeWire& wire, const TrafficOptions& options) {
    return Traffic(wire, options).run();
}

}  // namespace deft::net::testing
