// SPDX-License-Identifier: Apache-2.0
#include "plugin/tcp/wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace deft::net::wire {
namespace {

Address address(const char* text) {
    Address parsed;
    EXPECT_TRUE(parse_address(text, parsed));
    return parsed;
}

Handle sample_handle(std::size_t v4, std::size_t v6) {
    Handle handle;
    handle.listener = 0x1122334455667788;
    for (std::size_t i = 0; i < handle.secret.size(); ++i) {
        handle.secret[i] = static_cast<std::uint8_t>(i * 17);
    }
    for (std::size_t i = 0; i < v4 + v6; ++i) {
        Endpoint& endpoint = handle.endpoints.entries[handle.endpoints.count++];
        endpoint.link = static_cast<std::uint8_t>(i);
        endpoint.port = static_cast<std::uint16_t>(40000 + i);
        endpoint.address = address(i < v4 ? "10.77.0.1" : "fd00::1");
        endpoint.address.bytes[3] = static_cast<std::uint8_t>(i);
    }
    handle.total = static_cast<std::uint8_t>(handle.endpoints.count);
    return handle;
}

TEST(Wire, HandleComesBackAsItWas) {
    const Handle handle = sample_handle(3, 2);
    std::array<std::byte, kHandleBytes> bytes;
    encode(handle, bytes);
    set_attempt(bytes, 99);
    Handle back;
    ASSERT_EQ(decode(bytes, back), Decoded::Ok);
    EXPECT_EQ(back.listener, handle.listener);
    EXPECT_EQ(back.secret, handle.secret);
    EXPECT_EQ(back.attempt, 99U);
    ASSERT_EQ(back.endpoints.count, 5U);
    for (std::size_t i = 0; i < 5; ++i) {
        EXPECT_EQ(back.endpoints.entries[i].link, i);
        EXPECT_EQ(back.endpoints.entries[i].port, 40000 + i);
        EXPECT_EQ(back.endpoints.entries[i].address, handle.endpoints.entries[i].address);
    }
}

TEST(Wire, HandleKeepsAsManyEndpointsAsFit) {
    std::array<std::byte, kHandleBytes> bytes;
    Handle back;
    encode(sample_handle(16, 0), bytes);
    ASSERT_EQ(decode(bytes, back), Decoded::Ok);
    EXPECT_EQ(back.endpoints.count, 10U);
    EXPECT_EQ(back.total, 16U);
    encode(sample_handle(0, 16), bytes);
    ASSERT_EQ(decode(bytes, back), Decoded::Ok);
    EXPECT_EQ(back.endpoints.count, 4U);
}

TEST(Wire, OtherMagicAndVersionAreToldApart) {
    std::array<std::byte, kHandleBytes> bytes;
    encode(sample_handle(1, 0), bytes);
    Handle back;
    bytes[4] = std::byte{9};
    EXPECT_EQ(decode(bytes, back), Decoded::WrongVersion);
    EXPECT_EQ(back.version, 9);
    bytes[0] = std::byte{0};
    EXPECT_EQ(decode(bytes, back), Decoded::NotDeft);
}

TEST(Wire, HandleCountsAreChecked) {
    std::array<std::byte, kHandleBytes> bytes;
    Handle back;
    for (const int count : {0, 11, 17, 255}) {
        encode(sample_handle(1, 0), bytes);
        bytes[6] = static_cast<std::byte>(count);
        EXPECT_EQ(decode(bytes, back), Decoded::Malformed) << count;
    }
}

TEST(Wire, HelloAndWelcomeComeBackAsTheyWere) {
    Hello hello;
    hello.listener = 7;
    hello.connection = ~std::uint64_t{0};
    hello.incarnation = 3;
    hello.path = 1;
    hello.paths = 2;
    hello.speed_mbps = 100000;
    std::strcpy(hello.link, "eth0\nx");
    hello.flags = kFlagAlive;
    hello.home = {3, 4711, address("fd00::7")};
    std::array<std::byte, kHelloBytes> bytes;
    encode(hello, bytes);
    Hello back;
    ASSERT_EQ(decode(bytes, back), Decoded::Ok);
    EXPECT_EQ(back.connection, hello.connection);
    EXPECT_EQ(back.incarnation, 3U);
    EXPECT_EQ(back.path, 1);
    EXPECT_STREQ(back.link, "eth0");  // nothing unprintable reaches a log
    EXPECT_EQ(back.flags, kFlagAlive);
    EXPECT_EQ(back.kind, Hello::kTcp);
    EXPECT_EQ(back.home.link, 3);
    EXPECT_EQ(back.home.port, 4711);
    EXPECT_EQ(back.home.address, address("fd00::7"));
    hello.home = Endpoint{};
    encode(hello, bytes);
    ASSERT_EQ(decode(bytes, back), Decoded::Ok);
    EXPECT_EQ(back.home.address.family, 0) << "it is at home nowhere";

    Welcome welcome;
    welcome.completed = 5;
    welcome.posted = 9;
    welcome.endpoints = sample_handle(2, 1).endpoints;
    std::array<std::byte, kWelcomeBytes> answer;
    encode(welcome, answer);
    Welcome heard;
    ASSERT_EQ(decode(answer, heard), Decoded::Ok);
    EXPECT_EQ(heard.posted, 9U);
    EXPECT_EQ(heard.endpoints.count, 3U);
    welcome.completed = 10;
    encode(welcome, answer);
    EXPECT_EQ(decode(answer, heard), Decoded::Malformed);
}

// The kind stands behind the largest endpoint, where the first releases put zeros.
TEST(Wire, AHelloSaysItsKindWhateverItsHome) {
    for (const char* home : {"fd00::7", "10.0.0.7", ""}) {
        Hello hello;
        hello.paths = 1;
        hello.kind = 3;
        if (home[0] != '\0') {
            hello.home = {3, 4711, address(home)};
        }
        std::array<std::byte, kHelloBytes> bytes;
        encode(hello, bytes);
        Hello back;
        ASSERT_EQ(decode(bytes, back), Decoded::Ok);
        EXPECT_EQ(back.kind, 3);
        EXPECT_EQ(back.home.address, hello.home.address);
    }
}

TEST(Wire, AHandleSaysItsFeatures) {
    Handle handle = sample_handle(10, 0);
    std::array<std::byte, kHandleBytes> bytes;
    encode(handle, bytes);
    for (std::size_t i = 44; i < 48; ++i) {
        EXPECT_EQ(bytes[i], std::byte{0}) << "as the first releases had it";
    }
    handle.features = kFeatureGrants;
    encode(handle, bytes);
    Handle back;
    ASSERT_EQ(decode(bytes, back), Decoded::Ok);
    EXPECT_EQ(back.features, kFeatureGrants);
}

TEST(Wire, AHandleSaysWhichLinksAreReserves) {
    Handle handle = sample_handle(3, 0);
    handle.first_reserve = 2;
    std::array<std::byte, kHandleBytes> bytes;
    encode(handle, bytes);
    Handle back;
    ASSERT_EQ(decode(bytes, back), Decoded::Ok);
    EXPECT_EQ(back.first_reserve, 2);
    bytes[47] = std::byte{kMaxLinks};
    EXPECT_EQ(decode(bytes, back), Decoded::Malformed);
}

PortList sample_ports(std::size_t roce, std::size_t ib) {
    PortList ports;
    for (std::size_t i = 0; i < roce + ib; ++i) {
        Port& port = ports.entries[ports.count++];
        if (i < roce) {
            port.layer = Port::Layer::Ethernet;
            port.gid[10] = port.gid[11] = 0xff;
            port.gid[12] = 10;
        } else {
            port.gid[0] = 0xfe;
        }
        port.gid[15] = static_cast<std::uint8_t>(i + 1);
    }
    return ports;
}

void expect_equal(const PortList& back, const PortList& ports, std::size_t count) {
    ASSERT_EQ(back.count, count);
    for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(back.entries[i].layer, ports.entries[i].layer) << i;
        EXPECT_EQ(back.entries[i].gid, ports.entries[i].gid) << i;
    }
}

// Behind the endpoints, as many as there is room for.
TEST(Wire, AHandleAndAWelcomeNamePorts) {
    std::array<std::byte, kHandleBytes> bytes;
    Handle handle = sample_handle(2, 0);
    handle.ports = sample_ports(6, 1);
    handle.total_ports = 7;
    encode(handle, bytes);
    Handle back;
    ASSERT_EQ(decode(bytes, back), Decoded::Ok);
    expect_equal(back.ports, handle.ports, 7);
    EXPECT_EQ(back.endpoints.count, 2U);
    handle.ports = sample_ports(8, 8);
    handle.total_ports = 16;
    encode(handle, bytes);
    ASSERT_EQ(decode(bytes, back), Decoded::Ok);
    expect_equal(back.ports, handle.ports, 9);
    EXPECT_EQ(back.total_ports, 16);

    Welcome welcome;
    welcome.ports = handle.ports;
    welcome.endpoints = sample_handle(0, 16).endpoints;
    std::array<std::byte, kWelcomeBytes> answer;
    encode(welcome, answer);
    Welcome heard;
    ASSERT_EQ(decode(answer, heard), Decoded::Ok);
    expect_equal(heard.ports, handle.ports, 16);
    EXPECT_EQ(heard.endpoints.count, 16U);
    welcome.endpoints.count = 32;  // which leaves room for some
    for (std::size_t i = 16; i < 32; ++i) {
        welcome.endpoints.entries[i] = welcome.endpoints.entries[i - 16];
    }
    encode(welcome, answer);
    ASSERT_EQ(decode(answer, heard), Decoded::Ok);
    expect_equal(heard.ports, handle.ports, 5);
}

TEST(Wire, PortsThatCannotBeAreRefused) {
    std::array<std::byte, kHandleBytes> bytes;
    Handle handle = sample_handle(1, 0);
    handle.ports = sample_ports(1, 1);
    handle.total_ports = 2;
    Handle back;
    const auto decoded = [&](std::size_t at, int value) {
        encode(handle, bytes);
        bytes[at] = static_cast<std::byte>(value);
        return decode(bytes, back);
    };
    EXPECT_EQ(decoded(47, 0), Decoded::Ok);
    EXPECT_EQ(decoded(45, 17), Decoded::Malformed) << "more than there may be";
    EXPECT_EQ(decoded(45, 3), Decoded::Malformed) << "more than in all";
    EXPECT_EQ(decoded(46, 17), Decoded::Malformed) << "in all, more than there may be";
    EXPECT_EQ(decoded(56, 0x84), Decoded::Malformed) << "no such link layer";
    EXPECT_EQ(decoded(1 + 56 + 4, 0), Decoded::Malformed) << "nor this one";
    Hello hello;
    hello.paths = 1;
    hello.kind = Hello::kPort;
    hello.remote_port = 16;
    std::array<std::byte, kHelloBytes> first;
    encode(hello, first);
    Hello heard;
    EXPECT_EQ(decode(first, heard), Decoded::Malformed);
    hello.remote_port = 15;
    encode(hello, first);
    ASSERT_EQ(decode(first, heard), Decoded::Ok);
    EXPECT_EQ(heard.remote_port, 15);
}

TEST(Wire, HelloPathMustBeOneOfItsPaths) {
    std::array<std::byte, kHelloBytes> bytes;
    Hello back;
    for (const auto& [path, paths] : {std::pair{2, 2}, {0, 0}, {0, 17}, {16, 16}}) {
        Hello hello;
        hello.path = static_cast<std::uint16_t>(path);
        hello.paths = static_cast<std::uint16_t>(paths);
        encode(hello, bytes);
        EXPECT_EQ(decode(bytes, back), Decoded::Malformed) << path << " of " << paths;
    }
}

ChunkHeader sample_chunk() {
    ChunkHeader header;
    header.chunk.message = 77;
    header.chunk.total = 1000000;
    header.chunk.chunk_size = 65536;
    header.chunk.index = 15;
    header.chunk.offset = 15 * 65536;
    header.chunk.length = 1000000 - 15 * 65536;
    return header;
}

TEST(Wire, ChunkHeaderComesBackAsItWas) {
    std::array<std::byte, kChunkBytes> bytes;
    encode(sample_chunk(), bytes);
    ChunkHeader back;
    ASSERT_EQ(decode(bytes, back), Decoded::Ok);
    EXPECT_EQ(back.chunk.message, 77U);
    EXPECT_EQ(back.chunk.offset, 15U * 65536);
    EXPECT_EQ(back.chunk.length, 1000000U - 15 * 65536);
}

TEST(Wire, ChunkOutsideItsMessageIsRefused) {
    const auto refused = [](auto change) {
        ChunkHeader header = sample_chunk();
        change(header.chunk);
        std::array<std::byte, kChunkBytes> bytes;
        encode(header, bytes);
        ChunkHeader back;
        return decode(bytes, back) == Decoded::Malformed;
    };
    EXPECT_TRUE(refused([](Chunk& chunk) { ++chunk.length; }));
    EXPECT_TRUE(refused([](Chunk& chunk) { --chunk.length; }));
    EXPECT_TRUE(refused([](Chunk& chunk) { ++chunk.offset; }));
    EXPECT_TRUE(refused([](Chunk& chunk) { chunk.index = 64; }));
    EXPECT_TRUE(refused([](Chunk& chunk) { chunk.chunk_size = 0; }));
    EXPECT_TRUE(refused([](Chunk& chunk) { chunk.total = ~std::uint64_t{0}; }));
    EXPECT_TRUE(refused([](Chunk& chunk) { chunk.total = 0; }));
    EXPECT_TRUE(refused([](Chunk& chunk) { chunk.total = 15 * 65536; }));
}

TEST(Wire, AProbeIsNoChunk) {
    ChunkHeader header;
    header.type = FrameType::Probe;
    header.chunk.message = kProbe;
    std::array<std::byte, kChunkBytes> bytes;
    ChunkHeader back;
    for (const std::uint32_t length : {0U, 1U, kMaxProbe, kMaxProbe + 1}) {
        header.chunk.length = length;
        encode(header, bytes);
        const bool fits = length > 0 && length <= kMaxProbe;
        ASSERT_EQ(decode(bytes, back), fits ? Decoded::Ok : Decoded::Malformed) << length;
        EXPECT_EQ(back.chunk.message, kProbe);
    }
    header.chunk.length = 1;
    header.chunk.message = 5;
    encode(header, bytes);
    EXPECT_EQ(decode(bytes, back), Decoded::Malformed);
    ChunkHeader chunk = sample_chunk();
    chunk.chunk.message = kProbe;
    encode(chunk, bytes);
    EXPECT_EQ(decode(bytes, back), Decoded::Malformed);
}

TEST(Wire, ControlComesBackAsItWas) {
    Control control;
    control.kind = Control::Kind::PathDown;
    control.path = 3;
    control.received = 1;
    control.completed = 2;
    control.posted = 3;
    std::array<std::byte, kControlBytes> bytes;
    encode(control, bytes);
    Control back;
    ASSERT_EQ(decode(bytes, back), Decoded::Ok);
    EXPECT_EQ(back.kind, Control::Kind::PathDown);
    EXPECT_EQ(back.posted, 3U);
    control.completed = 4;  // more than was ever posted
    encode(control, bytes);
    EXPECT_EQ(decode(bytes, back), Decoded::Malformed);
}

TEST(Wire, FenceAndItsAnswerComeBackAsTheyWere) {
    ChunkHeader header;
    header.type = FrameType::Fence;
    header.chunk.index = 15;
    header.chunk.message = 0xffffffff;
    std::array<std::byte, kChunkBytes> asked;
    encode(header, asked);
    ChunkHeader heard;
    ASSERT_EQ(decode(asked, heard), Decoded::Ok);
    EXPECT_EQ(heard.type, FrameType::Fence);
    EXPECT_EQ(heard.chunk.index, 15);
    EXPECT_EQ(heard.chunk.message, 0xffffffffU);
    header.chunk.message = std::uint64_t{1} << 32;  // no incarnation
    encode(header, asked);
    EXPECT_EQ(decode(asked, heard), Decoded::Malformed);
    header.chunk.message = 1;
    header.chunk.index = kMaxPaths;
    encode(header, asked);
    EXPECT_EQ(decode(asked, heard), Decoded::Malformed);

    Control control;
    control.kind = Control::Kind::Fenced;
    control.path = 2;
    control.received = std::uint64_t{1} << 40;
    control.incarnation = 0xffffffff;
    std::array<std::byte, kControlBytes> bytes;
    encode(control, bytes);
    Control back;
    back.completed = back.posted = 9;
    ASSERT_EQ(decode(bytes, back), Decoded::Ok);
    EXPECT_EQ(back.kind, Control::Kind::Fenced);
    EXPECT_EQ(back.path, 2);
    EXPECT_EQ(back.received, control.received);
    EXPECT_EQ(back.incarnation, 0xffffffffU);
    EXPECT_EQ(back.completed, 0U);
    EXPECT_EQ(back.posted, 0U);
    bytes[16] = std::byte{1};  // an incarnation of 33 bits
    seal(bytes);
    EXPECT_EQ(decode(bytes, back), Decoded::Malformed);
}

// Whatever the bytes: an answer, and values within their limits.
TEST(Wire, RandomBytesNeverPassTheirLimits) {
    std::mt19937_64 random(1);
    std::array<std::byte, kWelcomeBytes> noise;
    for (int round = 0; round < 20000; ++round) {
        for (std::byte& byte : noise) {
            byte = static_cast<std::byte>(random());
        }
        const auto with_head = [&](std::initializer_list<int> head) {
            std::size_t at = 0;
            for (const int value : head) {
                noise[at++] = static_cast<std::byte>(value);
            }
        };
        with_head({0x44, 0x45, 0x46, 0x54, kVersion, 0, static_cast<int>(random() % 18)});
        Handle handle;
        if (decode(std::span<const std::byte, kHandleBytes>(noise.data(), kHandleBytes), handle) ==
            Decoded::Ok) {
            EXPECT_LE(handle.endpoints.count, kMaxLinks);
        }
        with_head({0xF7, 0xDE, 1, 0});
        seal(std::span(noise).first<kChunkBytes>());
        ChunkHeader header;
        if (decode(std::span<const std::byte, kChunkBytes>(noise.data(), kChunkBytes), header) ==
            Decoded::Ok) {
            EXPECT_LE(header.chunk.offset + header.chunk.length, header.chunk.total);
        }
    }
}

template <std::size_t N, class T>
void expect_damage_is_noticed(const std::array<std::byte, N>& frame, T&& value,
                              std::size_t magic_bits) {
    ASSERT_EQ(decode(frame, value), Decoded::Ok);
    for (std::size_t bits = 1; bits <= 2; ++bits) {
        for (std::size_t bit = 0; bit + bits <= 8 * N; ++bit) {
            auto bad = frame;
            for (std::size_t i = bit; i < bit + bits; ++i) {
                bad[i / 8] ^= static_cast<std::byte>(1 << i % 8);
            }
            const Decoded decoded = decode(bad, value);
            EXPECT_NE(decoded, Decoded::Ok) << bits << " from bit " << bit;
            if (bits == 1) {
                EXPECT_EQ(decoded, bit < magic_bits ? Decoded::NotDeft : Decoded::Damaged) << bit;
            }
        }
    }
}

// Any one flipped bit, and any two next to each other, of every frame, whatever checksums the bytes
// of the job have.
TEST(Wire, DamagedFramesAreNoticed) {
    for (const std::uint8_t flags : {std::uint8_t{0}, kFlagChecksum}) {
        ChunkHeader header;
        header.flags = flags;
        header.checksum = flags != 0 ? 0x12345678 : 0;
        header.chunk.message = 5;
        header.chunk.total = header.chunk.length = 1000;
        header.chunk.chunk_size = 1024;
        std::array<std::byte, kChunkBytes> chunk;
        encode(header, chunk);
        expect_damage_is_noticed(chunk, ChunkHeader(), 16);
    }
    ChunkHeader last;
    last.type = FrameType::Bye;
    std::array<std::byte, kChunkBytes> bye;
    encode(last, bye);
    expect_damage_is_noticed(bye, ChunkHeader(), 16);
    Control control;
    control.received = 70;
    control.completed = 12;
    control.posted = 20;
    std::array<std::byte, kControlBytes> frame;
    encode(control, frame);
    expect_damage_is_noticed(frame, Control(), 16);
    Hello hello;
    hello.paths = 2;
    hello.connection = 9;
    std::array<std::byte, kHelloBytes> first;
    encode(hello, first);
    expect_damage_is_noticed(first, Hello(), 32);
    Welcome welcome;
    welcome.completed = 98;
    welcome.posted = 100;
    welcome.endpoints = sample_handle(2, 1).endpoints;
    std::array<std::byte, kWelcomeBytes> answer;
    encode(welcome, answer);
    expect_damage_is_noticed(answer, Welcome(), 32);
}

TEST(Wire, SecretsAreComparedWhole) {
    Secret a{};
    Secret b{};
    EXPECT_TRUE(equal_secrets(a, b));
    for (std::size_t i = 0; i < a.size(); ++i) {
        b = a;
        b[i] ^= 1;
        EXPECT_FALSE(equal_secrets(a, b)) << i;
    }
}

}  // namespace
}  // namespace deft::net::wire
