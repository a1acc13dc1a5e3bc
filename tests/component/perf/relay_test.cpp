// SPDX-License-Identifier: Apache-2.0
// The relay of perf/faults: every impairment happens, is counted, and nothing else happens. Frames
// are made here and time is a number.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "perf/common/relay/direction.h"
#include "perf/common/relay/impairments.h"
#include "perf/common/relay/packet.h"

namespace relay {
namespace {

constexpr Nanoseconds kMillisecond = 1'000'000;
constexpr std::size_t kHeaders = 14 + 20 + 20;
constexpr std::size_t kFull = 1514;

// An Ethernet frame with IPv4 and TCP, right checksum; `number` is in its sequence number.
Frame segment(std::uint32_t number, std::size_t bytes = kFull) {
    Frame frame(bytes);
    frame[12] = 0x08;
    frame[14] = 0x45;
    const std::size_t total = bytes - 14;
    frame[16] = static_cast<unsigned char>(total >> 8);
    frame[17] = static_cast<unsigned char>(total);
    frame[23] = 6;
    for (std::size_t i = 26; i < 34; ++i) {
        frame[i] = static_cast<unsigned char>(10 + i);
    }
    for (int i = 0; i < 4; ++i) {
        frame[38 + i] = static_cast<unsigned char>(number >> (24 - 8 * i));
    }
    frame[46] = 0x50;
    frame[47] = 0x10;  // ACK
    for (std::size_t i = kHeaders; i < bytes; ++i) {
        frame[i] = static_cast<unsigned char>(i * 7 + number);
    }
    std::uint32_t sum = 6 + static_cast<std::uint32_t>(bytes - 34);
    for (std::size_t at = 26; at < bytes; at += 2) {
        sum += frame[at] << 8 | (at + 1 < bytes ? frame[at + 1] : 0);
    }
    while (sum >> 16 != 0) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[50] = static_cast<unsigned char>(~sum >> 8);
    frame[51] = static_cast<unsigned char>(~sum);
    return frame;
}

std::uint32_t number_of(const Frame& frame) {
    return static_cast<std::uint32_t>(frame[38]) << 24 | frame[39] << 16 | frame[40] << 8 |
           frame[41];
}

struct Arrival {
    Nanoseconds at;
    Frame frame;
};

// Offers `count` segments, one each `apart`, and takes what is due at every step.
std::vector<Arrival> pass(Direction& direction, std::uint32_t count, Nanoseconds apart = 100'000,
                          std::size_t bytes = kFull) {
    std::vector<Arrival> arrivals;
    Frame frame;
    Nanoseconds now = 0;
    for (std::uint32_t i = 0; i < count; ++i, now += apart) {
        direction.offer(segment(i, bytes), now);
        while (direction.take(now, frame)) {
            arrivals.push_back({now, frame});
        }
    }
    while (direction.next() != Direction::kNever) {
        now = std::max(now, direction.next());
        direction.take(now, frame);
        arrivals.push_back({now, frame});
    }
    return arrivals;
}

std::vector<std::uint32_t> numbers(const std::vector<Arrival>& arrivals) {
    std::vector<std::uint32_t> list;
    for (const Arrival& each : arrivals) {
        list.push_back(number_of(each.frame));
    }
    return list;
}

int bits_that_differ(const Frame& one, const Frame& other) {
    int count = 0;
    for (std::size_t i = 0; i < one.size(); ++i) {
        count += __builtin_popcount(one[i] ^ other[i]);
    }
    return count;
}

TEST(Relay, PassesEverythingAsItIsWithoutImpairments) {
    Direction direction(1);
    const std::vector<Arrival> arrivals = pass(direction, 1000);
    ASSERT_EQ(arrivals.size(), 1000U);
    for (std::uint32_t i = 0; i < 1000; ++i) {
        EXPECT_EQ(arrivals[i].frame, segment(i));
    }
    EXPECT_EQ(direction.counters().forwarded_bytes, 1000 * kFull);
}

TEST(Relay, LosesTheShareThatIsAskedForAndTheSameOnesForASeed) {
    Direction first(7);
    Direction again(7);
    Direction other(8);
    for (Direction* each : {&first, &again, &other}) {
        ASSERT_EQ(impair(each->impairments, {"loss", "0.05"}), "");
    }
    const auto one = numbers(pass(first, 10000));
    EXPECT_EQ(first.counters().lost + one.size(), 10000U);
    EXPECT_NEAR(static_cast<double>(first.counters().lost), 500, 90);
    EXPECT_EQ(one, numbers(pass(again, 10000)));
    EXPECT_NE(one, numbers(pass(other, 10000)));
}

TEST(Relay, LosesAcknowledgementsAloneWhereThatIsAskedFor) {
    Direction direction(3);
    ASSERT_EQ(impair(direction.impairments, {"ackloss", "1"}), "");
    EXPECT_EQ(pass(direction, 100).size(), 100U);  // they carry bytes
    EXPECT_TRUE(pass(direction, 100, 100'000, kHeaders).empty());
    EXPECT_EQ(direction.counters().acknowledgements_lost, 100U);
}

TEST(Relay, NeverTakesASynForAnAcknowledgement) {
    Frame frame = segment(1, kHeaders);
    EXPECT_TRUE(layout_of(frame).pure_acknowledgement);
    for (const unsigned flag : {0x01U, 0x02U, 0x04U}) {
        frame[47] = static_cast<unsigned char>(0x10 | flag);
        EXPECT_FALSE(layout_of(frame).pure_acknowledgement);
    }
}

TEST(Relay, DuplicatesAndReorders) {
    Direction twice(1);
    ASSERT_EQ(impair(twice.impairments, {"duplicate", "0.1"}), "");
    const std::size_t passed = pass(twice, 5000).size();
    EXPECT_EQ(passed, 5000 + twice.counters().duplicated);
    EXPECT_NEAR(static_cast<double>(twice.counters().duplicated), 500, 90);

    Direction shuffled(1);
    ASSERT_EQ(impair(shuffled.impairments, {"reorder", "0.02", "3"}), "");
    auto order = numbers(pass(shuffled, 5000));
    ASSERT_EQ(order.size(), 5000U);
    std::uint64_t overtaken = 0;
    for (std::size_t i = 1; i < order.size(); ++i) {
        overtaken += order[i] < order[i - 1];
    }
    EXPECT_GT(overtaken, 50U);
    EXPECT_LE(overtaken, shuffled.counters().held_back);
    std::sort(order.begin(), order.end());
    std::vector<std::uint32_t> all(5000);
    std::iota(all.begin(), all.end(), 0U);
    EXPECT_EQ(order, all);
}

TEST(Relay, DelaysAndJittersWithoutReordering) {
    Direction direction(1);
    ASSERT_EQ(impair(direction.impairments, {"delay", "2"}), "");
    ASSERT_EQ(impair(direction.impairments, {"jitter", "5"}), "");
    const auto arrivals = pass(direction, 2000);
    ASSERT_EQ(arrivals.size(), 2000U);
    Nanoseconds most = 0;
    for (std::uint32_t i = 0; i < arrivals.size(); ++i) {
        ASSERT_EQ(number_of(arrivals[i].frame), i);
        const Nanoseconds took = arrivals[i].at - i * Nanoseconds{100'000};
        EXPECT_GE(took, 2 * kMillisecond);
        most = std::max(most, took);
    }
    EXPECT_GT(most, 6 * kMillisecond);
    EXPECT_LE(most, 7 * kMillisecond + 100'000);
}

TEST(Relay, ABitErrorIsOneBitAndTheChecksumTells) {
    Direction direction(5);
    ASSERT_EQ(impair(direction.impairments, {"biterrors", "0.2"}), "");
    const auto arrivals = pass(direction, 2000);
    std::uint64_t damaged = 0;
    for (std::uint32_t i = 0; i < arrivals.size(); ++i) {
        const int differ = bits_that_differ(arrivals[i].frame, segment(i));
        ASSERT_LE(differ, 1);
        damaged += differ;
    }
    EXPECT_EQ(damaged, direction.counters().bit_errors);
    EXPECT_NEAR(static_cast<double>(damaged), 400, 80);
    for (std::uint64_t bit = 8 * 40; bit < 8 * 100; ++bit) {  // in the payload
        Frame frame = segment(1);
        flip_a_bit(frame, layout_of(frame), bit);
        EXPECT_FALSE(tcp_checksum_is_right(frame, layout_of(frame)));
    }
}

TEST(Relay, ASilentBitErrorIsOneBitOfThePayloadAndTheChecksumIsRight) {
    for (const std::size_t bytes : {kFull, kFull - 1, kHeaders + 1}) {
        Direction direction(6);
        ASSERT_EQ(impair(direction.impairments, {"silenterrors", "0.5"}), "");
        const auto arrivals = pass(direction, 500, 100'000, bytes);
        std::uint64_t damaged = 0;
        for (std::uint32_t i = 0; i < arrivals.size(); ++i) {
            const Frame& frame = arrivals[i].frame;
            const Frame sent = segment(i, bytes);
            ASSERT_TRUE(tcp_checksum_is_right(sent, layout_of(sent)));
            ASSERT_TRUE(tcp_checksum_is_right(frame, layout_of(frame)));
            const Frame payload(frame.begin() + kHeaders, frame.end());
            damaged += bits_that_differ(payload, Frame(sent.begin() + kHeaders, sent.end()));
        }
        EXPECT_EQ(damaged, direction.counters().silent_bit_errors);
        EXPECT_GT(damaged, 150U);
    }
}

TEST(Relay, ForgetsTheConnectionsOfBothDirectionsAndPassesNewOnes) {
    Direction direction(1);
    EXPECT_EQ(pass(direction, 5).size(), 5U);
    Frame back = segment(1);
    std::swap_ranges(back.begin() + 26, back.begin() + 30, back.begin() + 30);
    std::swap_ranges(back.begin() + 34, back.begin() + 36, back.begin() + 36);
    EXPECT_EQ(layout_of(back).connection, layout_of(segment(1)).connection);
    Frame other = segment(1);
    other[35] = 99;  // another port
    EXPECT_NE(layout_of(other).connection, layout_of(segment(1)).connection);
    ASSERT_EQ(impair(direction.impairments, {"forget", "on"}), "");
    EXPECT_TRUE(pass(direction, 5).empty());
    EXPECT_EQ(direction.counters().forgotten, 5U);
    Frame out;
    direction.offer(other, kMillisecond);
    EXPECT_TRUE(direction.take(kMillisecond, out));
    ASSERT_EQ(impair(direction.impairments, {"none"}), "");
    EXPECT_EQ(pass(direction, 5).size(), 5U);
}

TEST(Relay, ResetsAreRightTcp) {
    Direction direction(4);
    ASSERT_EQ(impair(direction.impairments, {"resets", "0.1"}), "");
    std::uint64_t resets = 0;
    for (const Arrival& each : pass(direction, 1000)) {
        ASSERT_TRUE(tcp_checksum_is_right(each.frame, layout_of(each.frame)));
        resets += (each.frame[47] & 0x04) != 0;
    }
    EXPECT_EQ(resets, direction.counters().resets);
    EXPECT_GT(resets, 50U);
}

TEST(Relay, AHoleSwallowsWhatIsLargerAndNothingElse) {
    Direction direction(1);
    ASSERT_EQ(impair(direction.impairments, {"hole", "1000"}), "");
    EXPECT_EQ(pass(direction, 10, 100'000, 14 + 1000).size(), 10U);
    EXPECT_TRUE(pass(direction, 10, 100'000, 14 + 1001).empty());
    EXPECT_EQ(direction.counters().in_hole, 10U);
}

TEST(Relay, ABlackHoleSwallowsArpToo) {
    Direction direction(1);
    Frame arp(60);
    arp[12] = 0x08;
    arp[13] = 0x06;
    Frame out;
    ASSERT_EQ(impair(direction.impairments, {"loss", "1"}), "");
    direction.offer(arp, 0);
    EXPECT_TRUE(direction.take(0, out));
    ASSERT_EQ(impair(direction.impairments, {"blackhole", "on"}), "");
    direction.offer(arp, 0);
    EXPECT_FALSE(direction.take(kMillisecond, out));
    EXPECT_EQ(direction.counters().in_black_hole, 1U);
    ASSERT_EQ(impair(direction.impairments, {"none"}), "");
    EXPECT_EQ(pass(direction, 10).size(), 10U);
}

TEST(Relay, TheRateIsWhatIsAskedForAndALongerQueueIsDropped) {
    Direction direction(1);
    ASSERT_EQ(impair(direction.impairments, {"rate", "100"}), "");
    const auto arrivals = pass(direction, 5000, 60'000);  // offered: twice the rate
    const double seconds = static_cast<double>(arrivals.back().at) * 1e-9;
    const double bits = 8.0 * static_cast<double>(direction.counters().forwarded_bytes);
    EXPECT_NEAR(bits / seconds, 100e6, 2e6);
    EXPECT_EQ(direction.counters().overflowed + arrivals.size(), 5000U);
    EXPECT_GT(direction.counters().overflowed, 2000U);
    // The queue's delay, not more.
    for (const Arrival& each : arrivals) {
        EXPECT_LE(each.at - number_of(each.frame) * Nanoseconds{60'000}, 21 * kMillisecond);
    }
}

TEST(Relay, TakesNoFrameForMoreThanItIs) {
    const Frame whole = segment(1);
    for (std::size_t bytes = 0; bytes < kHeaders + 4; ++bytes) {
        const Frame part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes));
        EXPECT_FALSE(layout_of(part).ip) << bytes;
    }
    Frame wrong = whole;
    wrong[46] = 0xf0;  // a TCP header of 60 bytes is fine, one beyond the packet is not
    EXPECT_TRUE(layout_of(wrong).tcp);
    wrong = segment(1, kHeaders);
    wrong[46] = 0xf0;
    EXPECT_FALSE(layout_of(wrong).tcp);
    Frame fragment = whole;
    fragment[20] = 0x20;
    EXPECT_TRUE(layout_of(fragment).ip);
    EXPECT_FALSE(layout_of(fragment).tcp);
}

TEST(Relay, SaysWhatIsWrongWithAnImpairment) {
    Impairments impairments;
    const std::vector<std::vector<std::string>> wrong = {{},
                                                         {"lose", "0.1"},
                                                         {"loss"},
                                                         {"loss", "1.5"},
                                                         {"loss", "x"},
                                                         {"reorder", "0.1"},
                                                         {"hole", "-1"},
                                                         {"blackhole", "maybe"}};
    for (const auto& words : wrong) {
        EXPECT_NE(impair(impairments, words), "");
    }
}

}  // namespace
}  // namespace relay
