// SPDX-License-Identifier: Apache-2.0
// Both ends of a connection, in one process, over TCP on loopback addresses and ports of the
// software verbs device; driven by one thread, as NCCL does it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plugin/connection.h"
#include "tests/component/plugin/tcp_pair.h"
#include "tests/component/plugin/verbs/soft_ports.h"
#include "tests/component/plugin/verbs/softverbs_library.h"

namespace deft::net::testing {

inline Ports opened(const std::vector<RdmaPort>& ports) {
    std::string problem;
    VerbsPorts made = open_soft_ports(ports, problem);
    EXPECT_EQ(problem, "");
    return {made.begin(), made.end()};
}

inline std::uint64_t sent_by(const char* link, const char* kind) {
    return LinkStats::process().link(link, kind).bytes_sent.load();
}

// A test with a port at either end, of which the stand-in has seen nothing wrong.
class WithPorts : public ::testing::Test {
protected:
    void SetUp() override {
        near_ = opened({soft_port("near", 2)});
        far_ = opened({soft_port("far", 3)});
        ASSERT_EQ(near_.size(), 1U);
        ASSERT_EQ(far_.size(), 1U);
        verbs_before_ = sent_by("near:1", "roce");
        tcp_before_ = sent_by("127.0.0.2", "tcp");
    }
    void TearDown() override { EXPECT_EQ(violations(), 0U); }

    std::uint64_t by_verbs() const { return sent_by("near:1", "roce") - verbs_before_; }
    std::uint64_t by_tcp() const { return sent_by("127.0.0.2", "tcp") - tcp_before_; }

    Ports near_;
    Ports far_;

private:
    std::uint64_t verbs_before_ = 0;
    std::uint64_t tcp_before_ = 0;
};

// Whose messages are in a GPU's memory; NULL: in the host's.
struct OnGpu {
    GpuMemory* near = nullptr;
    GpuMemory* far = nullptr;
};

class MixedPair {
public:
    static constexpr std::size_t kLargest = 1 << 20;
    static constexpr std::size_t kDepth = 4;
    // No more than this counts of a time in which the whole process was stopped.
    static constexpr Nanos kStopped = kSecond;

    MixedPair(std::size_t links, const Ports& near, const Ports& far, const OnGpu& gpus = {})
        : device_(loopback_device(links)) {
        near_.ports = near;
        near_.gpu = gpus.near;
        far_.ports = far;
        far_.gpu = gpus.far;
        std::string problem;
        listener_ = Listener::open(device_, far_, handle, problem);
        EXPECT_NE(listener_, nullptr) << problem;
    }

    bool establish() {
        const Nanos deadline = steady_now() + kPatience;
        while (sender == nullptr || receiver == nullptr) {
            if (steady_now() > deadline) {
                return false;
            }
            if (sender == nullptr &&
                connect(
                    device_, [&] { return near_; }, handle, steady_now(), sender) != 0) {
                return false;
            }
            if (receiver == nullptr) {
                receiver = listener_->accept(steady_now());
            }
        }
        return true;
    }

    // So many messages of all sizes, every byte compared, when it has come and before its buffer is
    // used again; `between` is called after each. False, and a failure of the test, if it ends
    // otherwise.
    bool run(std::size_t messages, const std::function<void(std::size_t)>& between = {}) {
        Ring out(*sender, kDepth, near_.gpu != nullptr && !in_host_memory);
        Ring in(*receiver, kDepth, far_.gpu != nullptr && !in_host_memory);
        std::size_t sends = 0;
        std::size_t receives = 0;
        Nanos idle = 0;  // since a message came
        Nanos before = steady_now();
        while (in.ended < messages || out.ended < messages) {
            const Nanos now = steady_now();
            idle += std::min(now - before, kStopped);
            before = now;
            if (sender->failure() || receiver->failure() || idle > kPatience) {
                ADD_FAILURE() << sender->failure().text << receiver->failure().text << " after "
                              << in.ended << " messages";
                return false;
            }
            if (receives < messages && in.free(receives)) {
                Buffer& buffer = in.at(receives);
                if (receives >= kDepth && !unchanged(buffer, receives - kDepth)) {
                    return false;
                }
                std::fill(buffer.bytes.begin(), buffer.bytes.end(), std::byte{0xEE});
                buffer.write();
                buffer.request =
                    receiver->irecv(buffer.at(), kLargest, false, now, buffer.region.get());
                receives += buffer.request != nullptr ? 1 : 0;
            }
            if (sends < messages && out.free(sends)) {
                Buffer& buffer = out.at(sends);
                fill(buffer.bytes, sends);
                buffer.write();
                buffer.request =
                    sender->isend(buffer.at(), size_of(sends), now, buffer.region.get());
                sends += buffer.request != nullptr ? 1 : 0;
            }
            std::size_t size = 0;
            if (out.ended < sends && sender->test(out.oldest().request, now, &size)) {
                // The buffer is the job's again: what it holds now must not go out.
                std::fill(out.oldest().bytes.begin(), out.oldest().bytes.end(), std::byte{0xDD});
                out.oldest().write();
                out.end();
            }
            if (in.ended < receives && receiver->test(in.oldest().request, now, &size)) {
                if (!flush(in.oldest()) || !right(in.oldest(), in.ended, size)) {
                    return false;
                }
                in.end();
                idle = 0;
                if (between) {
                    between(in.ended);
                }
            }
            // Where NCCL asks for nothing any more the other end may, as when its last
            // acknowledgements are lost and it wants to hear how much came (idle_progress.h).
            if (in.ended == messages) {
                receiver->progress(now);
            }
            if (out.ended == messages) {
                sender->progress(now);
            }
        }
        for (std::size_t last = messages - std::min(messages, kDepth); last < messages; ++last) {
            if (!unchanged(in.at(last), last)) {
                return false;
            }
        }
        return true;
    }

    std::size_t up() const {
        std::size_t count = 0;
        for (std::size_t i = 0; i < sender->paths(); ++i) {
            count += sender->state(i) == PathState::Up ? 1 : 0;
        }
        return count;
    }

    std::array<std::byte, wire::kHandleBytes> handle{};
    std::unique_ptr<Sender> sender;
    std::unique_ptr<Receiver> receiver;
    bool flushes = true;
    bool flushes_by_driver = false;  // as no port can read there
    bool in_host_memory = false;     // the messages, whatever may be

private:
    struct Buffer {
        std::vector<std::byte> bytes = std::vector<std::byte>(kLargest);
        void* gpu = nullptr;  // then `bytes` are a copy of what is there
        std::unique_ptr<Region> region;
        Request* request = nullptr;

        void* at() { return gpu != nullptr ? gpu : bytes.data(); }
        void write() const {
            if (gpu != nullptr) {
                softverbs<int(void*, const void*, std::size_t)>("softverbs_copy_to_device")(
                    gpu, bytes.data(), kLargest);
            }
        }
        void read() {
            if (gpu != nullptr) {
                softverbs<int(void*, const void*, std::size_t)>("softverbs_copy_from_device")(
                    bytes.data(), gpu, kLargest);
            }
        }
    };
    // As NCCL does it for a GPU's memory.
    bool flush(const Buffer& buffer) {
        if (buffer.gpu == nullptr || !flushes) {
            return true;
        }
        std::string problem;
        const Region nowhere(Memory{buffer.gpu, kLargest, Memory::Kind::Device}, {}, problem);
        Request* const request =
            receiver->flush(buffer.gpu, flushes_by_driver ? nowhere : *buffer.region, steady_now());
        const Nanos deadline = steady_now() + kPatience;
        std::size_t size = 0;
        while (request != nullptr && !receiver->test(request, steady_now(), &size)) {
            if (receiver->failure() || steady_now() > deadline) {
                ADD_FAILURE() << "no flush: " << receiver->failure().text;
                return false;
            }
        }
        return !receiver->failure();
    }
    // Buffers of one end, registered as regMr does it.
    class Ring {
    public:
        Ring(const ConnectionEnd& end, std::size_t depth, bool on_gpu) : buffers_(depth) {
            const auto domains = end.domains();
            for (Buffer& buffer : buffers_) {
                std::string problem;
                if (on_gpu) {
                    buffer.gpu = softverbs<void*(std::size_t)>("softverbs_alloc_device")(kLargest);
                    EXPECT_NE(buffer.gpu, nullptr);
                }
                const auto kind = on_gpu ? Memory::Kind::Device : Memory::Kind::Host;
                buffer.region =
                    std::make_unique<Region>(Memory{buffer.at(), kLargest, kind}, domains, problem);
            }
        }
        ~Ring() {
            for (Buffer& buffer : buffers_) {
                buffer.region.reset();
                if (buffer.gpu != nullptr) {
                    softverbs<int(void*)>("softverbs_free_device")(buffer.gpu);
                }
            }
        }
        Ring(const Ring&) = delete;
        Ring& operator=(const Ring&) = delete;
        bool free(std::size_t number) { return number - ended < buffers_.size(); }
        Buffer& at(std::size_t number) { return buffers_[number % buffers_.size()]; }
        Buffer& oldest() { return at(ended); }
        void end() { ++ended; }
        std::size_t ended = 0;

    private:
        std::vector<Buffer> buffers_;
    };

    static std::size_t size_of(std::size_t message) {
        static constexpr std::size_t kSizes[] = {kLargest, 0,     1,        8192,   8193,
                                                 524288,   65536, kLargest, 300001, 17};
        return kSizes[message % std::size(kSizes)];
    }
    static std::byte pattern(std::size_t message, std::size_t at) {
        return static_cast<std::byte>((message * 7 + at * 13 + (at >> 9)) & 0x7f);
    }
    static void fill(std::vector<std::byte>& bytes, std::size_t message) {
        for (std::size_t i = 0; i < size_of(message); ++i) {
            bytes[i] = pattern(message, i);
        }
    }
    static bool right(Buffer& buffer, std::size_t message, std::size_t size) {
        buffer.read();
        if (size != size_of(message)) {
            ADD_FAILURE() << "message " << message << " has " << size << " bytes";
            return false;
        }
        return holds(buffer.bytes, message, "differs");
    }
    // What it held when it was complete.
    static bool unchanged(Buffer& buffer, std::size_t message) {
        buffer.read();
        return holds(buffer.bytes, message, "was changed after it had come");
    }
    static bool holds(const std::vector<std::byte>& bytes, std::size_t message, const char* not_) {
        const std::size_t size = size_of(message);
        for (std::size_t i = 0; i < kLargest; ++i) {
            const std::byte wanted = i < size ? pattern(message, i) : std::byte{0xEE};
            if (bytes[i] != wanted) {
                ADD_FAILURE() << "message " << message << " " << not_ << " at byte " << i << " of "
                              << size;
                return false;
            }
        }
        return true;
    }

    std::shared_ptr<const Device> device_;
    ConnectionOptions near_;
    ConnectionOptions far_;
    std::unique_ptr<Listener> listener_;
};

}  // namespace deft::net::testing
