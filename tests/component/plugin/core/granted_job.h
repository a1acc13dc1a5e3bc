// SPDX-License-Identifier: Apache-2.0
// NCCL's way of driving a connection whose paths write into memory: few registered buffers, used
// again at once, and looked at for whatever changes after a request was done.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "tests/component/plugin/core/fake_wire.h"

namespace deft::net::testing {

struct GrantedJobOptions {
    std::size_t messages = 50;
    std::size_t depth = 4;
    std::function<std::size_t(std::size_t)> size = [](std::size_t) { return 256 * 1024; };
    std::size_t capacity = 512 * 1024;
    bool registered = true;
    Nanos limit = 60 * kSecond;  // virtual
    Nanos longest_step = 200 * kMicrosecond;
    std::function<void(Nanos)> each_step;
};

class GrantedJob {
public:
    GrantedJob(FakeWire& wire, const GrantedJobOptions& options)
        : wire_(wire), options_(options), start_(wire.now) {
        for (std::size_t i = 0; i < options.depth; ++i) {
            send_buffers_.push_back(make(wire.sender->domains()));
            receive_buffers_.push_back(make(wire.receiver->domains()));
        }
    }
    ~GrantedJob() {
        wire_.sender.reset();  // before their memory
        wire_.receiver.reset();
    }

    // False: not all of it came in time.
    bool run() {
        Nanos step = kMicrosecond;
        while (received_ < options_.messages || sent_ < options_.messages) {
            if (wire_.now - start_ > options_.limit || wire_.sender->failure() ||
                wire_.receiver->failure()) {
                return false;
            }
            if (options_.each_step) {
                options_.each_step(wire_.now - start_);
            }
            wire_.nics();
            bool moved = post_receive();
            moved = post_send() || moved;
            moved = take_sent() || moved;
            moved = take_received() || moved;
            step = moved ? kMicrosecond : std::min(2 * step, options_.longest_step);
            wire_.now += step;
        }
        return true;
    }
    // So much later nothing of what was done has changed.
    void look_back(Nanos later) {
        for (const Nanos end = wire_.now + later; wire_.now < end; wire_.now += kMillisecond) {
            wire_.nics();
            wire_.sender->progress(wire_.now);
            wire_.receiver->progress(wire_.now);
        }
        for (const auto& buffer : receive_buffers_) {
            expect_idle(*buffer);
        }
    }
    std::uint64_t changed() const { return changed_; }
    std::uint64_t wrong() const { return wrong_; }
    Nanos elapsed() const { return wire_.now - start_; }
    Nanos longest_stall() const { return longest_stall_; }

private:
    static constexpr std::byte kIdle{0xDD};
    struct Buffer {
        std::vector<std::byte> bytes;
        std::unique_ptr<Region> region;
        Request* request = nullptr;
    };
    static std::byte pattern(std::size_t message, std::size_t at) {
        return static_cast<std::byte>((message * 7 + at * 13 + (at >> 8)) & 0xff);
    }
    std::unique_ptr<Buffer> make(const std::vector<std::shared_ptr<Domain>>& domains) {
        auto buffer = std::make_unique<Buffer>();
        buffer->bytes.assign(options_.capacity, kIdle);
        std::string problem;
        buffer->region = std::make_unique<Region>(
            Memory{buffer->bytes.data(), buffer->bytes.size()}, domains, problem);
        return buffer;
    }
    const Region* region(const Buffer& buffer) const {
        return options_.registered ? buffer.region.get() : nullptr;
    }
    void expect_idle(const Buffer& buffer) {
        const auto differing =
            static_cast<std::uint64_t>(std::count_if(buffer.bytes.begin(), buffer.bytes.end(),
                                                     [](std::byte each) { return each != kIdle; }));
        EXPECT_EQ(differing, 0U) << "bytes changed after completion";
        changed_ += differing;
    }

    bool post_receive() {
        if (posted_ == options_.messages || posted_ >= received_ + options_.depth) {
            return false;
        }
        Buffer& buffer = *receive_buffers_[posted_ % options_.depth];
        expect_idle(buffer);
        buffer.request = wire_.receiver->irecv(buffer.bytes.data(), buffer.bytes.size(), false,
                                               wire_.now, region(buffer));
        posted_ += buffer.request != nullptr ? 1 : 0;
        return buffer.request != nullptr;
    }
    bool post_send() {
        if (begun_ == options_.messages || begun_ >= sent_ + options_.depth) {
            return false;
        }
        Buffer& buffer = *send_buffers_[begun_ % options_.depth];
        const std::size_t size = options_.size(begun_);
        for (std::size_t i = 0; i < size; ++i) {
            buffer.bytes[i] = pattern(begun_, i);
        }
        buffer.request = wire_.sender->isend(buffer.bytes.data(), size, wire_.now, region(buffer));
        begun_ += buffer.request != nullptr ? 1 : 0;
        return buffer.request != nullptr;
    }
    bool take_sent() {
        if (sent_ == begun_) {
            wire_.sender->progress(wire_.now);  // as the idle thread does
            return false;
        }
        Buffer& buffer = *send_buffers_[sent_ % options_.depth];
        if (!wire_.sender->test(buffer.request, wire_.now, nullptr)) {
            return false;
        }
        // NCCL reuses the buffer at once: nothing may look at it any more.
        std::fill(buffer.bytes.begin(), buffer.bytes.end(), std::byte{0xEE});
        ++sent_;
        return true;
    }
    bool take_received() {
        if (received_ == posted_) {
            wire_.receiver->progress(wire_.now);
            return false;
        }
        Buffer& buffer = *receive_buffers_[received_ % options_.depth];
        std::size_t size = 0;
        if (!wire_.receiver->test(buffer.request, wire_.now, &size)) {
            return false;
        }
        EXPECT_EQ(size, options_.size(received_));
        std::uint64_t wrong = 0;
        for (std::size_t i = 0; i < size; ++i) {
            wrong += buffer.bytes[i] != pattern(received_, i) ? 1 : 0;
        }
        EXPECT_EQ(wrong, 0U) << "message " << received_ << " of " << size;
        wrong_ += wrong;
        std::fill(buffer.bytes.begin(), buffer.bytes.end(), kIdle);
        longest_stall_ = std::max(longest_stall_, wire_.now - std::max(last_, start_));
        last_ = wire_.now;
        ++received_;
        return true;
    }

    FakeWire& wire_;
    const GrantedJobOptions options_;
    const Nanos start_;
    std::vector<std::unique_ptr<Buffer>> send_buffers_;
    std::vector<std::unique_ptr<Buffer>> receive_buffers_;
    std::size_t begun_ = 0;
    std::size_t sent_ = 0;
    std::size_t posted_ = 0;
    std::size_t received_ = 0;
    std::uint64_t wrong_ = 0;
    std::uint64_t changed_ = 0;
    Nanos last_ = 0;
    Nanos longest_stall_ = 0;
};

inline FakeLink granted_link(double gbit, Nanos latency = 10 * kMicrosecond) {
    FakeLink fake = link(gbit, latency);
    fake.granted = true;
    return fake;
}

}  // namespace deft::net::testing
