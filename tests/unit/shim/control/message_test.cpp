// SPDX-License-Identifier: Apache-2.0
// What directors say to each other survives the wire, and nothing else is taken.
#include "shim/control/message.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/hash.h"

namespace deft::director {
namespace {

Order full_order() {
    Order order;
    order.kind = Kind::Open;
    order.stage = 7;
    order.signature = 0x1234;
    order.plan = "{\"x\": 1}";
    order.prediction = "lead:0.9";
    order.iterations = 150;
    order.ordinal = 88;
    order.begin = 102;
    order.keep = 3;
    order.patience_ms = 6000;
    order.lanes.resize(2);
    order.lanes[1].internal[5] = 42;
    return order;
}

TEST(Message, TheKillSwitchTravels) {
    for (const bool on : {true, false}) {
        std::vector<std::byte> bytes = encode(Halted{on});
        Halted halted{!on};
        Staged staged;
        Pressed pressed;
        ASSERT_TRUE(decode(bytes, halted));
        EXPECT_EQ(halted.on, on);
        EXPECT_FALSE(decode(bytes, staged));
        EXPECT_FALSE(decode(bytes, pressed));
        bytes.back() = std::byte{2};
        EXPECT_FALSE(decode(bytes, halted));
        bytes.pop_back();
        EXPECT_FALSE(decode(bytes, halted));
    }
}

TEST(Message, OrderSurvivesTheWire) {
    const Order order = full_order();
    Order back;
    ASSERT_TRUE(decode(encode(order), back));
    EXPECT_EQ(back.kind, Kind::Open);
    EXPECT_EQ(back.stage, 7U);
    EXPECT_EQ(back.signature, 0x1234U);
    EXPECT_EQ(back.plan, order.plan);
    EXPECT_EQ(back.prediction, "lead:0.9");
    EXPECT_EQ(back.iterations, 150U);
    EXPECT_EQ(back.ordinal, 88U);
    EXPECT_EQ(back.begin, 102U);
    EXPECT_EQ(back.keep, 3U);
    EXPECT_EQ(back.patience_ms, 6000U);
    ASSERT_EQ(back.lanes.size(), 2U);
    EXPECT_EQ(back.lanes[1].internal[5], 42);
}

TEST(Message, EveryKindOfOrderIsKnown) {
    for (const Kind kind : {Kind::Stage, Kind::Arm, Kind::Forward, Kind::Open, Kind::Drop,
                            Kind::Discard, Kind::Close, Kind::Rehearse}) {
        Order order;
        order.kind = kind;
        Order back;
        ASSERT_TRUE(decode(encode(order), back));
        EXPECT_EQ(back.kind, kind);
    }
}

// Three alike and one that is not: only the calls before tell where an iteration begins.
TEST(Message, AnswerSurvivesTheWire) {
    Staged staged{9, 77, Step::Refused, true, "why", true};
    Staged back;
    ASSERT_TRUE(decode(encode(staged), back));
    EXPECT_EQ(back.stage, 9U);
    EXPECT_EQ(back.ordinal, 77U);
    EXPECT_EQ(back.step, Step::Refused);
    EXPECT_TRUE(back.may_pass);
    EXPECT_TRUE(back.timed_out);
    EXPECT_EQ(back.reason, "why");
}

// Ranks of two builds of one release read each other's messages.
TEST(Message, TheBytesOnTheWireStay) {
    const std::string staged = std::string("S\x09\x09\0\0\0\0\0\0\0", 10) +
                               std::string("M\0\0\0\0\0\0\0", 8) + std::string("\0\x01\x01", 3) +
                               std::string("\x03\0\0\0\0\0\0\0why", 11);
    const std::vector<std::byte> bytes = encode(Staged{9, 77, Step::Refused, true, "why", true});
    ASSERT_EQ(bytes.size(), staged.size());
    EXPECT_EQ(std::memcmp(bytes.data(), staged.data(), staged.size()), 0);
    const std::vector<std::byte> order = encode(full_order());
    EXPECT_EQ(order.size(), 348U);
    EXPECT_EQ(fnv64(order), 0x21bc01423f3df0e6U);  // of the same bytes, written by hand
}

TEST(Message, NothingShorterLongerOrDamagedIsTaken) {
    const std::vector<std::byte> order = encode(full_order());
    const std::vector<std::byte> staged = encode(Staged{1, 2, Step::Ready, false, "x"});
    Order order_back;
    Staged staged_back;
    for (std::size_t size = 0; size < order.size(); ++size) {
        EXPECT_FALSE(decode(std::span(order).first(size), order_back)) << size;
    }
    for (std::size_t size = 0; size < staged.size(); ++size) {
        EXPECT_FALSE(decode(std::span(staged).first(size), staged_back)) << size;
    }
    auto longer = order;
    longer.push_back({});
    EXPECT_FALSE(decode(longer, order_back));
    auto unknown = order;
    unknown[2] = std::byte{99};  // the kind
    EXPECT_FALSE(decode(unknown, order_back));
    EXPECT_FALSE(decode(staged, order_back));
}

TEST(Message, AProofIsNoLongerThanWhatIsSaidOfIt) {
    Proof proof;
    proof.who = "0.1.0";
    proof.why = std::string(1000, 'x');
    Proof back;
    ASSERT_TRUE(decode(encode(proof), back));
    EXPECT_EQ(back.who, proof.who);
    EXPECT_EQ(back.why, proof.why.substr(0, 256));
    // Of a peer that says more nothing is kept: 8 bytes before each text are its size.
    std::vector<std::byte> longer = encode(proof);
    longer.push_back(std::byte{'x'});
    longer[4 + 8 + proof.who.size()] = std::byte{1};  // 257, little-endian
    EXPECT_FALSE(decode(longer, back));
}

}  // namespace
}  // namespace deft::director
