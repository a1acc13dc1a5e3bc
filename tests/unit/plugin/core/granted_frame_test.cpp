// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/granted_frame.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "plugin/core/chunk_rules.h"

namespace deft::net {
namespace {

using Bytes = std::array<std::byte, kGrantedFrameBytes>;

GrantedFrame again(const GrantedFrame& frame) {
    Bytes bytes;
    encode(frame, bytes);
    GrantedFrame read;
    EXPECT_TRUE(decode(bytes, read));
    EXPECT_EQ(read.kind, frame.kind);
    return read;
}

TEST(GrantedFrame, KeepsEveryField) {
    GrantedFrame frame;
    frame.kind = GrantedFrameKind::Written;
    frame.chunk.message = 0x1122334455667788;
    frame.chunk.total = 3'000'000'001;
    frame.chunk.chunk_size = 1 << 30;
    frame.chunk.index = 2;
    frame.chunk.offset = std::uint64_t{2} << 30;
    frame.chunk.length = static_cast<std::uint32_t>(frame.chunk.total - frame.chunk.offset);
    frame.chunk.kept = true;
    const Chunk chunk = again(frame).chunk;
    EXPECT_EQ(chunk.message, frame.chunk.message);
    EXPECT_EQ(chunk.total, frame.chunk.total);
    EXPECT_EQ(chunk.offset, frame.chunk.offset);
    EXPECT_EQ(chunk.chunk_size, frame.chunk.chunk_size);
    EXPECT_EQ(chunk.length, frame.chunk.length);
    EXPECT_EQ(chunk.index, frame.chunk.index);
    EXPECT_TRUE(chunk.kept);

    frame.kind = GrantedFrameKind::Control;
    frame.control = {Control::Kind::Fenced, 3, 0x1122334455, 77, 5, 6};
    const Control control = again(frame).control;
    EXPECT_EQ(control.kind, Control::Kind::Fenced);
    EXPECT_EQ(control.path, 3);
    EXPECT_EQ(control.received, 0x1122334455U);
    EXPECT_EQ(control.incarnation, 77U);
    EXPECT_EQ(control.completed, 5U);
    EXPECT_EQ(control.posted, 6U);

    frame.kind = GrantedFrameKind::Grant;
    frame.grant = {9, 0x7000'0000'0000, 1 << 20, 0xabcdef01, true};
    const Grant grant = again(frame).grant;
    EXPECT_EQ(grant.message, 9U);
    EXPECT_EQ(grant.address, 0x7000'0000'0000U);
    EXPECT_EQ(grant.capacity, 1U << 20);
    EXPECT_EQ(grant.key, 0xabcdef01U);
    EXPECT_TRUE(grant.on_gpu);
}

TEST(GrantedFrame, AFenceNamesAPathAndAnIncarnation) {
    GrantedFrame frame;
    frame.kind = GrantedFrameKind::Fence;
    frame.control.path = 15;
    frame.control.incarnation = 0x12345678;
    Bytes bytes;
    encode(frame, bytes);
    GrantedFrame read;
    ASSERT_TRUE(decode(bytes, read));
    EXPECT_EQ(read.kind, GrantedFrameKind::Fence);
    EXPECT_EQ(read.control.path, 15);
    EXPECT_EQ(read.control.incarnation, 0x12345678U);
}

TEST(GrantedFrame, WhatCannotBeIsRefused) {
    const auto refused = [](const GrantedFrame& frame) {
        Bytes bytes;
        encode(frame, bytes);
        GrantedFrame read;
        return !decode(bytes, read);
    };
    GrantedFrame frame;
    frame.kind = GrantedFrameKind::Carried;
    frame.chunk.total = frame.chunk.chunk_size = 100;
    frame.chunk.length = 101;
    EXPECT_TRUE(refused(frame)) << "longer than its message";
    frame.chunk.length = 100;
    EXPECT_FALSE(refused(frame));
    frame.chunk.message = kProbe;
    EXPECT_TRUE(refused(frame));
    frame.kind = GrantedFrameKind::Grant;
    frame.grant = {1, ~std::uint64_t{0} - 7, 8, 1};
    EXPECT_TRUE(refused(frame)) << "wraps around";
    frame.kind = GrantedFrameKind::Control;
    frame.control.completed = 2;
    frame.control.posted = 1;
    EXPECT_TRUE(refused(frame));
    frame.kind = static_cast<GrantedFrameKind>(9);
    EXPECT_TRUE(refused(frame));
}

// Whatever comes, an accepted chunk lies inside of its message.
TEST(GrantedFrame, NoiseIsNoFrameThatReachesOutside) {
    std::mt19937 random(7);
    for (int i = 0; i < 100'000; ++i) {
        GrantedFrame frame;
        frame.kind = GrantedFrameKind::Written;
        Bytes bytes;
        encode(frame, bytes);
        for (int changes = 0; changes < 6; ++changes) {
            bytes[2 + random() % (bytes.size() - 2)] = static_cast<std::byte>(random());
        }
        GrantedFrame read;
        if (decode(bytes, read) && read.kind == GrantedFrameKind::Written) {
            ASSERT_LE(read.chunk.offset, read.chunk.total);
            ASSERT_LE(read.chunk.length, read.chunk.total - read.chunk.offset);
        }
    }
}

// Neighbouring chunks that were written as one piece. What comes along is one chunk.
TEST(GrantedFrame, ARunOfChunksIsWhole) {
    GrantedFrame frame;
    frame.kind = GrantedFrameKind::Written;
    frame.chunk = {.total = 5 * 4096 + 100, .offset = 4096, .chunk_size = 4096, .index = 1};
    const auto decodes = [&](std::uint32_t length) {
        frame.chunk.length = length;
        Bytes bytes;
        encode(frame, bytes);
        GrantedFrame read;
        return decode(bytes, read);
    };
    EXPECT_TRUE(decodes(4096));
    EXPECT_EQ(bits_of(frame.chunk), 0b000010U);
    EXPECT_TRUE(decodes(3 * 4096));
    EXPECT_EQ(bits_of(frame.chunk), 0b001110U);
    EXPECT_TRUE(decodes(4 * 4096 + 100)) << "to the message's end";
    EXPECT_EQ(bits_of(frame.chunk), 0b111110U);
    for (const std::uint32_t length : {0U, 4095U, 4097U, 4U * 4096 + 99, 5U * 4096}) {
        EXPECT_FALSE(decodes(length)) << length;
    }
    frame.kind = GrantedFrameKind::Carried;
    EXPECT_TRUE(decodes(4096));
    EXPECT_FALSE(decodes(2 * 4096));
    EXPECT_EQ(bits_of(Chunk{}), 1U) << "a message of no bytes has one chunk";
    const Chunk most{.chunk_size = 128, .length = 64 * 128};
    EXPECT_EQ(bits_of(most), ~std::uint64_t{0});
}

}  // namespace
}  // namespace deft::net
