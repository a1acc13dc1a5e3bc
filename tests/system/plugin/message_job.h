// SPDX-License-Identifier: Apache-2.0
// Messages of random sizes between the two hosts of two_hosts.h, every byte compared.
#pragma once

#include <array>
#include <functional>
#include <random>
#include <vector>

#include "tests/system/plugin/two_hosts.h"

inline constexpr std::size_t kLargest = 1 << 20;
inline constexpr std::size_t kDepth = 4;

inline std::size_t size_of(std::size_t message) {
    std::mt19937_64 random(message * 31 + 5);
    return message % 7 == 0 ? random() % 3000 : random() % kLargest;
}

inline std::byte pattern(std::size_t message, std::size_t at) {
    return static_cast<std::byte>((message * 7 + at * 13 + (at >> 9)) & 0xff);
}

// Where messages are: bytes that stand for a GPU's memory. Empty: in the host's.
inline std::function<std::byte*(std::size_t)> gpu_memory;

// One end: drives the table as NCCL's proxy does. Reports each received message on `control`.
class Job {
public:
    Job(const char* library, bool sender, int control, std::size_t messages, std::size_t links = 2)
        : connection_(library, sender, control, links),
          sender_(sender),
          control_(control),
          messages_(messages) {
        for (Buffer& buffer : buffers_) {
            if (gpu_memory) {
                buffer.data = gpu_memory(kLargest);
            } else {
                buffer.host.resize(kLargest);
                buffer.data = buffer.host.data();
            }
            if (connection_.net->regMr(connection_.comm, buffer.data, kLargest,
                                       gpu_memory ? DEFT_NET_PTR_CUDA : DEFT_NET_PTR_HOST,
                                       &buffer.memory) != 0) {
                die("regMr failed");
            }
        }
    }

    void run() {
        while (ended_ < messages_) {
            if (waited_.too_long()) {
                die("%s: nothing moved, %zu of %zu done", name(), ended_, messages_);
            }
            if (begun_ < messages_ && begun_ - ended_ < kDepth) {
                begin();
            }
            if (!end_oldest()) {
                std::this_thread::yield();
            }
        }
        std::printf("%s: %zu messages, longest stall %.0f ms\n", name(), ended_,
                    std::chrono::duration<double, std::milli>(stall_).count());
        std::fflush(stdout);
        // The other end still needs this one until it has its last acknowledgement: leave together.
        char byte = 'd';
        (void)!write(control_, &byte, 1);
        while (read(control_, &byte, 1) == 1 && byte != 'q') {
        }
        for (Buffer& buffer : buffers_) {
            if (connection_.net->deregMr(connection_.comm, buffer.memory) != 0) {
                die("deregMr failed");
            }
        }
        connection_.close();
    }

private:
    struct Buffer {
        std::vector<std::byte> host;
        std::byte* data = nullptr;
        void* memory = nullptr;
        void* request = nullptr;
    };
    Buffer& buffer(std::size_t message) { return buffers_[message % kDepth]; }
    const Buffer& buffer(std::size_t message) const { return buffers_[message % kDepth]; }

    const char* name() const { return sender_ ? "sender" : "receiver"; }

    void begin() {
        const auto* const net = connection_.net;
        Buffer& one = buffer(begun_);
        void* data = one.data;
        std::size_t size = sender_ ? size_of(begun_) : kLargest;
        int tag = 0;
        int result = 0;
        if (sender_) {
            for (std::size_t i = 0; i < size; ++i) {
                one.data[i] = pattern(begun_, i);
            }
            result =
                net->isend(connection_.comm, data, size, tag, one.memory, nullptr, &one.request);
        } else {
            void* none = nullptr;
            result = net->irecv(connection_.comm, 1, &data, &size, &tag, &one.memory, &none,
                                &one.request);
        }
        if (result != 0) {
            die("%s failed: %d", sender_ ? "isend" : "irecv", result);
        }
        begun_ += one.request != nullptr ? 1 : 0;
    }

    // False: it is still under way.
    bool end_oldest() {
        int done = 0;
        int size = 0;
        if (ended_ < begun_ && connection_.net->test(buffer(ended_).request, &done, &size) != 0) {
            die("%s: test failed", name());
        }
        if (done == 0) {
            return false;
        }
        if (!sender_) {
            flush(buffer(ended_));
            check(static_cast<std::size_t>(size));
            (void)!write(control_, "m", 1);
        }
        // The buffer is NCCL's again: what is written to it now must not go out any more.
        std::memset(buffer(ended_).data, 0xEE, kLargest);
        ++ended_;
        stall_ = std::max(stall_, Clock::now() - last_);
        last_ = Clock::now();
        waited_ = {};
        return true;
    }

    // As NCCL does it before a kernel looks at a GPU's memory.
    void flush(Buffer& one) const {
        void* data = one.data;
        int size = 1;
        void* request = nullptr;
        if (gpu_memory && connection_.net->iflush(connection_.comm, 1, &data, &size, &one.memory,
                                                  &request) != 0) {
            die("iflush failed");
        }
        for (int done = request == nullptr ? 1 : 0; done == 0;) {
            if (connection_.net->test(request, &done, nullptr) != 0) {
                die("a flush failed");
            }
        }
    }

    void check(std::size_t size) const {
        if (size != size_of(ended_)) {
            die("message %zu: %zu bytes instead of %zu", ended_, size, size_of(ended_));
        }
        for (std::size_t i = 0; i < size; ++i) {
            if (buffer(ended_).data[i] != pattern(ended_, i)) {
                die("message %zu differs at byte %zu", ended_, i);
            }
        }
    }

    const Connection connection_;
    const bool sender_;
    const int control_;
    const std::size_t messages_;
    std::array<Buffer, kDepth> buffers_;
    std::size_t begun_ = 0;
    std::size_t ended_ = 0;
    Clock::time_point last_ = Clock::now();
    Waited waited_;
    Clock::duration stall_ = Clock::duration::zero();
};
