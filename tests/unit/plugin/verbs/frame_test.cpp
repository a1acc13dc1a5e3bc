// SPDX-License-Identifier: Apache-2.0
#include "plugin/verbs/frame.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "plugin/core/chunk_rules.h"
#include "plugin/verbs/queue_pair.h"

namespace deft::net {
namespace {

using Bytes = std::array<std::byte, kVerbsFrameBytes>;

VerbsFrame again(const VerbsFrame& frame) {
    Bytes bytes;
    encode(frame, bytes);
    VerbsFrame read;
    EXPECT_TRUE(decode(bytes, read));
    EXPECT_EQ(read.kind, frame.kind);
    return read;
}

TEST(VerbsFrame, KeepsEveryField) {
    VerbsFrame frame;
    frame.kind = VerbsFrameKind::Written;
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

    frame.kind = VerbsFrameKind::Control;
    frame.control = {Control::Kind::Fenced, 3, 0x1122334455, 77, 5, 6};
    const Control control = again(frame).control;
    EXPECT_EQ(control.kind, Control::Kind::Fenced);
    EXPECT_EQ(control.path, 3);
    EXPECT_EQ(control.received, 0x1122334455U);
    EXPECT_EQ(control.incarnation, 77U);
    EXPECT_EQ(control.completed, 5U);
    EXPECT_EQ(control.posted, 6U);

    frame.kind = VerbsFrameKind::Grant;
    frame.grant = {9, 0x7000'0000'0000, 1 << 20, 0xabcdef01, true};
    const Grant grant = again(frame).grant;
    EXPECT_EQ(grant.message, 9U);
    EXPECT_EQ(grant.address, 0x7000'0000'0000U);
    EXPECT_EQ(grant.capacity, 1U << 20);
    EXPECT_EQ(grant.key, 0xabcdef01U);
    EXPECT_TRUE(grant.on_gpu);
}

TEST(VerbsFrame, AFenceNamesAPathAndAnIncarnation) {
    VerbsFrame frame;
    frame.kind = VerbsFrameKind::Fence;
    frame.control.path = 15;
    frame.control.incarnation = 0x12345678;
    Bytes bytes;
    encode(frame, bytes);
    VerbsFrame read;
    ASSERT_TRUE(decode(bytes, read));
    EXPECT_EQ(read.kind, VerbsFrameKind::Fence);
    EXPECT_EQ(read.control.path, 15);
    EXPECT_EQ(read.control.incarnation, 0x12345678U);
}

TEST(VerbsFrame, WhatCannotBeIsRefused) {
    const auto refused = [](const VerbsFrame& frame) {
        Bytes bytes;
        encode(frame, bytes);
        VerbsFrame read;
        return !decode(bytes, read);
    };
    VerbsFrame frame;
    frame.kind = VerbsFrameKind::Carried;
    frame.chunk.total = frame.chunk.chunk_size = 100;
    frame.chunk.length = 101;
    EXPECT_TRUE(refused(frame)) << "longer than its message";
    frame.chunk.length = 100;
    EXPECT_FALSE(refused(frame));
    frame.chunk.message = kProbe;
    EXPECT_TRUE(refused(frame));
    frame.kind = VerbsFrameKind::Grant;
    frame.grant = {1, ~std::uint64_t{0} - 7, 8, 1};
    EXPECT_TRUE(refused(frame)) << "wraps around";
    frame.kind = VerbsFrameKind::Control;
    frame.control.completed = 2;
    frame.control.posted = 1;
    EXPECT_TRUE(refused(frame));
    frame.kind = static_cast<VerbsFrameKind>(9);
    EXPECT_TRUE(refused(frame));
}

// Whatever comes, an accepted chunk lies inside of its message.
TEST(VerbsFrame, NoiseIsNoFrameThatReachesOutside) {
    std::mt19937 random(7);
    for (int i = 0; i < 100'000; ++i) {
        VerbsFrame frame;
        frame.kind = VerbsFrameKind::Written;
        Bytes bytes;
        encode(frame, bytes);
        for (int changes = 0; changes < 6; ++changes) {
            bytes[2 + random() % (bytes.size() - 2)] = static_cast<std::byte>(random());
        }
        VerbsFrame read;
        if (decode(bytes, read) && read.kind == VerbsFrameKind::Written) {
            ASSERT_LE(read.chunk.offset, read.chunk.total);
            ASSERT_LE(read.chunk.length, read.chunk.total - read.chunk.offset);
        }
    }
}

// Neighbouring chunks that were written as one piece. What comes along is one chunk.
TEST(VerbsFrame, ARunOfChunksIsWhole) {
    VerbsFrame frame;
    frame.kind = VerbsFrameKind::Written;
    frame.chunk = {.total = 5 * 4096 + 100, .offset = 4096, .chunk_size = 4096, .index = 1};
    const auto decodes = [&](std::uint32_t length) {
        frame.chunk.length = length;
        Bytes bytes;
        encode(frame, bytes);
        VerbsFrame read;
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
    frame.kind = VerbsFrameKind::Carried;
    EXPECT_TRUE(decodes(4096));
    EXPECT_FALSE(decodes(2 * 4096));
    EXPECT_EQ(bits_of(Chunk{}), 1U) << "a message of no bytes has one chunk";
    const Chunk most{.chunk_size = 128, .length = 64 * 128};
    EXPECT_EQ(bits_of(most), ~std::uint64_t{0});
}

TEST(VerbsAddressBytes, KeepEveryField) {
    VerbsAddress address;
    address.qp = 0xabcdef;
    address.lid = 77;
    address.mtu = DEFT_VERBS_MTU_4096;
    address.layer = DEFT_VERBS_LINK_LAYER_ETHERNET;
    address.gid.raw[15] = 9;
    address.ece = {0x15b3, 0x80000001, 3};
    std::array<std::byte, kVerbsAddressBytes> bytes;
    encode(address, bytes);
    VerbsAddress read;
    ASSERT_TRUE(decode(bytes, read));
    EXPECT_EQ(read.qp, address.qp);
    EXPECT_EQ(read.lid, address.lid);
    EXPECT_EQ(read.mtu, address.mtu);
    EXPECT_EQ(read.layer, address.layer);
    EXPECT_EQ(read.gid.raw[15], 9);
    EXPECT_EQ(read.ece.vendor_id, address.ece.vendor_id);
    EXPECT_EQ(read.ece.options, address.ece.options);
    EXPECT_EQ(read.ece.comp_mask, address.ece.comp_mask);
    bytes[7] = std::byte{1};  // a number of 25 bits
    EXPECT_FALSE(decode(bytes, read));
    encode(address, bytes);
    bytes[0] ^= std::byte{1};
    EXPECT_FALSE(decode(bytes, read));
}

}  // namespace
}  // namespace deft::net
