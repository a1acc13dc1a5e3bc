// SPDX-License-Identifier: Apache-2.0
// When a TcpPath takes bytes out of its socket.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "plugin/tcp/tcp_path.h"
#include "tests/component/plugin/tcp/connected_sockets.h"

namespace deft::net::testing {
namespace {

using Bytes = std::vector<std::byte>;

Bytes frame(std::uint64_t message, const Bytes& data) {
    wire::ChunkHeader header;
    header.chunk.message = message;
    header.chunk.total = data.size();
    header.chunk.chunk_size = header.chunk.length = static_cast<std::uint32_t>(data.size());
    Bytes out(wire::kChunkBytes);
    wire::encode(header, std::span(out).first<wire::kChunkBytes>());
    out.insert(out.end(), data.begin(), data.end());
    return out;
}

Bytes random_bytes(std::size_t size, unsigned seed) {
    std::mt19937 random(seed);
    Bytes data(size);
    for (std::byte& each : data) {
        each = static_cast<std::byte>(random());
    }
    return data;
}

// A receiving path whose peer is a plain socket.
struct Scene final : PathEvents {
    UniqueFd peer;
    UniqueFd same;  // the path's socket, to look at
    std::unique_ptr<TcpPath> path;
    std::vector<Bytes> arrived_bytes;
    Bytes buffer = Bytes(1 << 20);
    Place where = Place::Store;

    explicit Scene(bool look_first, bool checked = false, int looks = 4) {
        auto [from, accepted] = connected_sockets();
        peer = std::move(from);
        same = UniqueFd(dup(accepted.get()));
        TcpPath::Options options;
        options.look_first = look_first;
        options.checked = checked;
        options.looks = looks;
        path = std::make_unique<TcpPath>(std::move(accepted), TcpPath::Role::Receiver, "test",
                                         options);
    }

    Place place(const Chunk&, std::byte*& destination) override {
        destination = buffer.data();
        return where;
    }
    void arrived(const Chunk& chunk) override {
        arrived_bytes.emplace_back(buffer.begin(), buffer.begin() + chunk.length);
    }
    void control(const Control&) override {}
    void peer_closed() override {}

    void write(const Bytes& bytes) const {
        ASSERT_EQ(send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
                  static_cast<ssize_t>(bytes.size()));
    }
    std::size_t unread() const {
        int bytes = 0;
        EXPECT_EQ(ioctl(same.get(), FIONREAD, &bytes), 0);
        return static_cast<std::size_t>(bytes);
    }
    Path::Poll poll() { return path->poll(*this, true); }
    // Writes, waits for it to be there, and polls until it has arrived.
    bool deliver(const Bytes& bytes) {
        const std::size_t count = arrived_bytes.size();
        write(bytes);
        const Nanos deadline = steady_now() + 60 * kSecond;
        while (arrived_bytes.size() == count && steady_now() < deadline) {
            if (poll() == Path::Poll::Failed) {
                return false;
            }
        }
        return arrived_bytes.size() > count;
    }
};

// Whether this kernel looks on behind what was looked at (SO_PEEK_OFF on TCP).
bool looks_further() {
    const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int from = 0;
    return setsockopt(fd.get(), SOL_SOCKET, SO_PEEK_OFF, &from, sizeof(from)) == 0;
}

TEST(TcpPath, TinyMessageIsHandedOverBeforeItIsTaken) {
    for (const std::size_t looks : {0, 1, 4}) {
        SCOPED_TRACE(looks);
        Scene scene(looks > 0, false, static_cast<int>(looks));
        const Bytes tiny = frame(0, random_bytes(8, 1));
        ASSERT_TRUE(scene.deliver(tiny));  // what came last was tiny
        while (scene.poll() != Path::Poll::Idle) {
        }
        const std::size_t together = looks_further() ? looks : std::min<std::size_t>(looks, 1);
        for (std::size_t i = 0; i < 100; ++i) {
            ASSERT_TRUE(scene.deliver(tiny));
            const std::size_t looked = together > 0 ? i % together + 1 : 0;
            EXPECT_EQ(scene.unread(), looked * tiny.size());
            ASSERT_EQ(scene.poll(), Path::Poll::Idle);
            EXPECT_EQ(scene.unread(), looked * tiny.size());
            if (looked == together) {
                ASSERT_EQ(scene.poll(), Path::Poll::Idle);
                EXPECT_EQ(scene.unread(), 0U);
            }
        }
        EXPECT_EQ(scene.arrived_bytes.size(), 101U);
    }
}

// The sender has it on its books until it is taken.
TEST(TcpPath, LookedAtMessagesAreTakenWhenNoMoreCome) {
    Scene scene(true);
    const Bytes tiny = frame(0, random_bytes(8, 1));
    ASSERT_TRUE(scene.deliver(tiny));
    while (scene.poll() != Path::Poll::Idle) {
    }
    for (int round = 0; round < 3; ++round) {
        ASSERT_TRUE(scene.deliver(tiny));
        ASSERT_GT(scene.unread(), 0U);
        for (int polls = 0; polls < 65; ++polls) {
            ASSERT_EQ(scene.poll(), Path::Poll::Idle);
        }
        EXPECT_EQ(scene.unread(), 0U);
    }
}

TEST(TcpPath, LargeMessagesAreTakenAtOnce) {
    Scene scene(true);
    const Bytes large = frame(0, random_bytes(5000, 1));
    for (int i = 0; i < 10; ++i) {
        ASSERT_TRUE(scene.deliver(large));
        ASSERT_EQ(scene.poll(), Path::Poll::Idle);
        EXPECT_EQ(scene.unread(), 0U);
    }
}

// Any mixture of sizes, cut anywhere by the network, with polls at any moment.
TEST(TcpPath, NothingIsLostOrDoubledHoweverTheBytesCome) {
    for (unsigned seed = 1; seed <= 40; ++seed) {
        SCOPED_TRACE(seed);
        Scene scene(true, false, seed % 2 == 0 ? 1 : 4);
        std::mt19937 random(seed);
        std::vector<Bytes> sent;
        Bytes stream;
        for (std::uint64_t i = 0; i < 300; ++i) {
            const std::size_t kind = random() % 10;
            const std::size_t size = kind < 7   ? random() % 64
                                     : kind < 9 ? random() % 1200
                                                : random() % 30000;
            sent.push_back(random_bytes(size, seed * 1000 + static_cast<unsigned>(i)));
            const Bytes next = frame(i, sent.back());
            stream.insert(stream.end(), next.begin(), next.end());
        }
        const Nanos deadline = steady_now() + 60 * kSecond;
        for (std::size_t at = 0; scene.arrived_bytes.size() < sent.size();) {
            ASSERT_LT(steady_now(), deadline);
            const std::size_t most = random() % 3 == 0 ? 5000 : 120;
            const std::size_t bytes = std::min<std::size_t>(random() % most, stream.size() - at);
            if (bytes > 0) {
                scene.write(Bytes(stream.begin() + static_cast<std::ptrdiff_t>(at),
                                  stream.begin() + static_cast<std::ptrdiff_t>(at + bytes)));
                at += bytes;
            }
            for (unsigned polls = random() % 5; polls > 0; --polls) {
                ASSERT_NE(scene.poll(), Path::Poll::Failed) << scene.path->failure();
            }
        }
        EXPECT_EQ(scene.arrived_bytes, sent);
        shutdown(scene.peer.get(), SHUT_WR);
        while (scene.poll() != Path::Poll::Failed) {
            ASSERT_LT(steady_now(), deadline);
        }
        EXPECT_EQ(scene.path->loss(), Path::Loss::Ended);
        EXPECT_EQ(scene.arrived_bytes.size(), sent.size());
    }
}

// A socket that is closed with unread bytes resets the connection.
TEST(TcpPath, ClosingTakesWhatWasLookedAt) {
    Scene scene(true);
    const Bytes tiny = frame(0, random_bytes(8, 1));
    ASSERT_TRUE(scene.deliver(tiny));
    while (scene.poll() != Path::Poll::Idle) {
    }
    ASSERT_TRUE(scene.deliver(tiny));
    ASSERT_GT(scene.unread(), 0U);
    scene.path->close(kSecond);
    EXPECT_EQ(scene.unread(), 0U);
}

// What goes on being sent of a message that came by another path is filler.
TEST(TcpPath, ChecksumOfWhatNobodyWantsIsNotLookedAt) {
    for (const std::size_t size : {std::size_t{1000}, std::size_t{100'000}}) {
        Scene scene(false, true);
        const Bytes data = random_bytes(size, 1);
        Bytes bytes = frame(0, data);
        wire::ChunkHeader header;
        ASSERT_EQ(wire::decode(std::span(bytes).first<wire::kChunkBytes>(), header),
                  wire::Decoded::Ok);
        header.flags = wire::kFlagChecksum;
        header.checksum = 1;
        wire::encode(header, std::span(bytes).first<wire::kChunkBytes>());
        scene.where = PathEvents::Place::Discard;
        EXPECT_TRUE(scene.deliver(bytes)) << scene.path->failure();
        scene.where = PathEvents::Place::Store;
        EXPECT_FALSE(scene.deliver(bytes));
        EXPECT_EQ(scene.path->loss(), Path::Loss::Damaged);
    }
}

// A message that NCCL was told is done, on a link that stands still.
TEST(TcpPath, WhatTheKernelHasOutlivesClosing) {
    auto [from, to] = connected_sockets();
    const int least = 1;
    ASSERT_EQ(setsockopt(to.get(), SOL_SOCKET, SO_RCVBUF, &least, sizeof(least)), 0);
    TcpPath path(std::move(from), TcpPath::Role::Sender, "test", {});
    const Bytes data = random_bytes(5000, 1);
    Chunk chunk;
    chunk.total = chunk.length = chunk.chunk_size = static_cast<std::uint32_t>(data.size());
    chunk.data = data.data();
    std::size_t sent = 0;
    while (sent < 100'000 && path.post(chunk) == Post::Ok && !path.writing()) {
        sent += wire::kChunkBytes + data.size();
    }
    ASSERT_GT(sent, 50'000U);
    ASSERT_FALSE(path.writing());
    std::array<std::byte, wire::kControlBytes> unread{};  // nobody asks for it any more
    ASSERT_EQ(send(to.get(), unread.data(), unread.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(unread.size()));
    path.close(20 * kMillisecond);
    Bytes buffer(1 << 16);
    std::size_t got = 0;
    ssize_t now = 0;
    while ((now = recv(to.get(), buffer.data(), buffer.size(), 0)) > 0) {
        got += static_cast<std::size_t>(now);
    }
    EXPECT_EQ(now, 0) << std::strerror(errno);
    EXPECT_EQ(got, sent);
}

// A data loader, forked from the job, keeps what it has no use for.
TEST(TcpPath, ClosingIsHeardThoughAChildHoldsTheSocket) {
    for (const bool clean : {true, false}) {
        SCOPED_TRACE(clean);
        auto [from, to] = connected_sockets();
        const UniqueFd held(dup(from.get()));  // as the child's
        TcpPath path(std::move(from), TcpPath::Role::Sender, "test", {});
        path.close(clean ? kSecond : 0);
        pollfd wait{to.get(), POLLIN, 0};
        EXPECT_EQ(poll(&wait, 1, 60'000), 1);
        char byte = 0;
        EXPECT_EQ(recv(to.get(), &byte, 1, 0), clean ? 0 : -1);
    }
}

}  // namespace
}  // namespace deft::net::testing
