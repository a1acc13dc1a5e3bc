// SPDX-License-Identifier: Apache-2.0
// On a single path a message of up to 64 KiB that is alone waits for nothing: neither for word of
// its receive, nor for an acknowledgement.
#include <gtest/gtest.h>

#include "tests/component/plugin/core/traffic.h"

namespace deft::net::testing {
namespace {

using Bytes = std::vector<std::byte>;

struct Scene {
    FakeWire wire;

    explicit Scene(std::size_t links = 1) : wire(std::vector<FakeLink>(links, link(10))) {
        EXPECT_TRUE(wire.establish());
    }
    Request* send(const Bytes& data) {
        return wire.sender->isend(data.data(), data.size(), wire.now);
    }
    Request* receive(Bytes& buffer) {
        return wire.receiver->irecv(buffer.data(), buffer.size(), false, wire.now);
    }
    bool sent(Request* request) { return wire.sender->test(request, wire.now, nullptr); }
    bool received(Request* request) { return wire.receiver->test(request, wire.now, nullptr); }
    // Both ends are driven for some time, as the idle thread does.
    void drive(Nanos time) {
        for (const Nanos end = wire.now + time; wire.now < end; wire.now += 20 * kMicrosecond) {
            wire.sender->progress(wire.now);
            wire.receiver->progress(wire.now);
        }
    }
    bool comes(Request* request) {
        for (const Nanos end = wire.now + kSecond; wire.now < end; wire.now += kMicrosecond) {
            wire.sender->progress(wire.now);
            if (received(request)) {
                return true;
            }
        }
        return false;
    }
};

TEST(LoneMessages, AreDoneOnceTheKernelHasThem) {
    for (const std::size_t size : {std::size_t{8}, kEagerBytes, kEagerBytes + 1, kLoneBytes}) {
        Scene scene;
        const Bytes data(size, std::byte{7});
        Request* const send = scene.send(data);
        ASSERT_NE(send, nullptr);
        EXPECT_TRUE(scene.sent(send)) << size << ": its receive is not even posted";
        EXPECT_TRUE(scene.wire.sender->busy());
    }
    Scene large;
    EXPECT_FALSE(large.sent(large.send(Bytes(kLoneBytes + 1))));
    // With several paths the receiver has no room for them: it might get them in any order.
    Scene several(2);
    EXPECT_FALSE(several.sent(several.send(Bytes(kLoneBytes))));
}

TEST(LoneMessages, HaveCompanyWhileAnotherIsNotDone) {
    Scene scene;
    const Bytes data(kLoneBytes, std::byte{7});
    const Bytes larger(kLoneBytes + 1, std::byte{7});
    Request* const first = scene.send(larger);
    Request* const second = scene.send(data);
    ASSERT_TRUE(first != nullptr && second != nullptr);
    EXPECT_FALSE(scene.sent(first));
    EXPECT_FALSE(scene.sent(second)) << "its memory is lent to the kernel";
}

// NCCL may write there as soon as the send is done.
TEST(LoneMessages, AreSentAgainAsTheyWere) {
    for (const std::size_t size : {std::size_t{8}, kEagerBytes + 1, kLoneBytes}) {
        Scene scene;
        scene.wire.links[0].latency = 10 * kMillisecond;
        Bytes data(size, std::byte{7});
        Bytes buffer(size);
        Request* const send = scene.send(data);
        ASSERT_TRUE(send != nullptr && scene.sent(send));
        std::fill(data.begin(), data.end(), std::byte{0xee});
        scene.wire.links[0].carrier = false;
        scene.drive(20 * kMillisecond);
        scene.wire.links[0].carrier = true;
        while (scene.wire.links[0].connections < 2) {
            scene.drive(kMillisecond);
            ASSERT_LT(scene.wire.now, 20 * kSecond);
        }
        EXPECT_GT(scene.wire.counters[0]->resent_bytes.load(), 0U);
        Request* const receive = scene.receive(buffer);
        ASSERT_TRUE(receive != nullptr && scene.comes(receive));
        EXPECT_TRUE(buffer == Bytes(size, std::byte{7})) << size;
    }
}

TEST(LoneMessages, GoOnAsLongAsThereIsRoomForCopies) {
    Scene scene;
    const Bytes data(kLoneBytes, std::byte{7});
    std::vector<Bytes> buffers(40, Bytes(kLoneBytes));
    std::size_t done = 0;
    Request* last = nullptr;
    for (; done < buffers.size(); ++done, scene.wire.now += 100 * kMicrosecond) {
        last = scene.send(data);
        ASSERT_NE(last, nullptr);
        if (!scene.sent(last)) {
            break;
        }
    }
    EXPECT_EQ(done, 8U) << "nobody has acknowledged one";
    std::vector<Request*> receives;
    for (Bytes& buffer : buffers) {
        receives.push_back(scene.receive(buffer));
        ASSERT_NE(receives.back(), nullptr);
    }
    ASSERT_TRUE(scene.comes(receives[done]));
    scene.drive(kMillisecond);
    EXPECT_TRUE(scene.sent(last));
    const std::uint64_t before = scene.wire.links[0].told;
    for (std::size_t i = done + 1; i < buffers.size(); ++i) {
        Request* const send = scene.send(data);
        ASSERT_NE(send, nullptr);
        EXPECT_TRUE(scene.sent(send)) << i;
        ASSERT_TRUE(scene.comes(receives[i])) << i;
        scene.drive(100 * kMicrosecond);
    }
    const std::uint64_t told = scene.wire.links[0].told - before;
    EXPECT_GE(told, 31U / 4);
    EXPECT_LE(told, 31U / 4 + 2) << "four share an acknowledgement";
}

// What is ahead of its receive is bounded, and comes when it is posted.
TEST(LoneMessages, RunAheadAsFarAsTheReceiverHasRoom) {
    Scene scene;
    std::vector<Bytes> data;
    std::vector<Request*> sends;
    for (std::size_t i = 0; i < 30; ++i) {
        data.emplace_back(kLoneBytes, static_cast<std::byte>(i + 1));
        sends.push_back(scene.send(data.back()));
        ASSERT_NE(sends.back(), nullptr);
        scene.drive(200 * kMicrosecond);
    }
    EXPECT_FALSE(scene.wire.sender->failure() || scene.wire.receiver->failure());
    EXPECT_EQ(scene.wire.counters[0]->bytes_sent.load(), kLoneAheadBytes);
    for (std::size_t i = 0; i < data.size(); ++i) {
        Bytes buffer(2 * kLoneBytes);
        Request* const receive = scene.receive(buffer);
        ASSERT_TRUE(receive != nullptr && scene.comes(receive)) << i;
        buffer.resize(kLoneBytes);
        EXPECT_TRUE(buffer == data[i]) << i;
    }
    scene.drive(kMillisecond);
    for (Request* const send : sends) {
        EXPECT_TRUE(scene.sent(send));
    }
}

}  // namespace
}  // namespace deft::net::testing
