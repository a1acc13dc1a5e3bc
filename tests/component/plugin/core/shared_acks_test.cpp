// SPDX-License-Identifier: Apache-2.0
// On a single path several messages share an acknowledgement, but none waits for one that may not
// come.
#include <gtest/gtest.h>

#include <deque>

#include "tests/component/plugin/core/traffic.h"

namespace deft::net::testing {
namespace {

constexpr std::size_t kSize = 80 * 1024;  // not done for the sender before it is acknowledged
// So many receives at once that the sender is told of all of them when they are posted: what comes
// for one of them carries no credit that would be urgent.
constexpr std::size_t kAllKnown = 10;

FakeLink quick() {
    FakeLink link;
    link.bytes_per_second = 4e9;
    link.latency = 2 * kMicrosecond;
    return link;
}

TrafficResult traffic(FakeWire& wire, std::size_t depth, std::size_t messages) {
    EXPECT_TRUE(wire.establish());
    TrafficOptions options;
    options.messages = messages;
    options.depth = depth;
    options.size = [](std::size_t) { return kSize; };
    const TrafficResult result = run_traffic(wire, options);
    EXPECT_TRUE(result.complete);
    return result;
}

FakeLink slow() {
    FakeLink link = quick();
    link.bytes_per_second = 2e9;
    return link;
}

std::uint64_t told(std::size_t paths, std::size_t depth, std::size_t messages) {
    FakeWire wire(std::vector<FakeLink>(paths, quick()));
    traffic(wire, depth, messages);
    std::uint64_t sum = 0;
    for (const FakeLink& link : wire.links) {
        sum += link.told;
    }
    return sum;
}

TEST(SharedAcks, OneForSeveralMessagesOnASinglePath) {
    EXPECT_LE(told(1, 8, 400), 180U);
}

TEST(SharedAcks, EachAtOnceWhereTheSenderWaitsForItOrMeasuresByIt) {
    EXPECT_GE(told(1, 1, 100), 100U);
    EXPECT_GE(told(2, 8, 100), 100U);
}

TEST(SharedAcks, LeaveTheSenderSomethingToGoOnWith) {
    for (std::size_t depth = 2; depth <= 8; ++depth) {
        FakeWire wire({slow()});
        const TrafficResult result = traffic(wire, depth, 200);
        EXPECT_GE(static_cast<double>(result.bytes) * 1e9 / static_cast<double>(result.elapsed),
                  0.85 * wire.links[0].bytes_per_second)
            << depth << " in flight";
    }
}

// One connection with `posted` receives and `sent` messages on their way.
struct Few {
    FakeWire wire{{quick()}};
    std::vector<std::byte> data = std::vector<std::byte>(kSize, std::byte{7});
    std::vector<std::vector<std::byte>> buffers;
    std::vector<Request*> sends;
    std::vector<Request*> receives;

    Few(std::size_t posted, std::size_t sent) : buffers(posted, std::vector<std::byte>(kSize)) {
        EXPECT_TRUE(wire.establish());
        for (auto& buffer : buffers) {
            receives.push_back(wire.receiver->irecv(buffer.data(), buffer.size(), false, wire.now));
        }
        wire.now += 100 * kMicrosecond;
        wire.sender->progress(wire.now);  // takes the credit
        for (std::size_t i = 0; i < sent; ++i) {
            sends.push_back(wire.sender->isend(data.data(), i == 0 ? kSize : 8, wire.now));
        }
    }
    // How many sends are found done, from the first on, within some time in which nobody calls the
    // receiver.
    std::size_t done() {
        std::size_t count = 0;
        for (int i = 0; i < 1000 && count < sends.size(); ++i, wire.now += kMicrosecond) {
            count += wire.sender->test(sends[count], wire.now, nullptr) ? 1 : 0;
        }
        return count;
    }
    // The receiver's caller waits for one of its requests for some time.
    bool arrived(std::size_t which, Nanos time) {
        for (const Nanos end = wire.now + time; wire.now < end; wire.now += kMicrosecond) {
            if (wire.receiver->test(receives[which], wire.now, nullptr)) {
                return true;
            }
        }
        return false;
    }
};

// NCCL has no reason to call a connection without requests again.
TEST(SharedAcks, TheLastPostedMessageIsToldAtOnce) {
    Few few(kAllKnown, kAllKnown);
    for (std::size_t i = 0; i < kAllKnown; ++i) {
        ASSERT_TRUE(few.arrived(i, kMillisecond));
    }
    EXPECT_EQ(few.done(), kAllKnown);
}

// The sender may have nothing more to send before it knows.
TEST(SharedAcks, NoneIsKeptForLong) {
    Few few(kAllKnown, 1);
    ASSERT_TRUE(few.arrived(0, kMillisecond));
    EXPECT_EQ(few.done(), 0U);
    EXPECT_FALSE(few.arrived(1, 400 * kMicrosecond));
    EXPECT_EQ(few.done(), 1U);
}

// The answer that a job has ready goes out before the frame.
TEST(SharedAcks, CreditForSmallMessagesWaitsForThePollButNotForLong) {
    FakeWire wire({quick()});
    ASSERT_TRUE(wire.establish());
    std::vector<std::vector<std::byte>> buffers(15, std::vector<std::byte>(8));
    std::size_t posted = 0;
    const auto post = [&](std::size_t count) {
        while (count-- > 0) {
            std::vector<std::byte>& buffer = buffers[posted++];
            EXPECT_NE(wire.receiver->irecv(buffer.data(), buffer.size(), false, wire.now), nullptr);
        }
        return wire.links[0].told;
    };
    const std::uint64_t before = wire.links[0].told;
    EXPECT_EQ(post(13), before);
    EXPECT_EQ(post(1), before + 1) << "nobody polls";
    wire.receiver->progress(wire.now);
    EXPECT_EQ(post(1), before + 1);

    FakeWire polled({quick()});
    ASSERT_TRUE(polled.establish());
    const std::uint64_t none = polled.links[0].told;
    for (std::size_t i = 0; i < 12; ++i) {
        EXPECT_EQ(polled.links[0].told, none) << i;
        (void)polled.receiver->irecv(buffers[i].data(), 8, false, polled.now);
        polled.receiver->progress(polled.now);
    }
    EXPECT_EQ(polled.links[0].told, none + 1);
}

// What came before its receive was posted has used up credit too: the sender goes on with the
// message after it only once it knows that they were posted.
TEST(SharedAcks, CreditForWhatCameEarlyIsToldBeforeTheSenderNeedsIt) {
    for (const std::size_t size : {1, 100, 2000, 4096, 6000, 8192}) {
        for (const std::size_t capacity : {std::size_t{8192}, kSize}) {
            SCOPED_TRACE(std::to_string(size) + " into " + std::to_string(capacity));
            FakeWire wire({quick()});
            ASSERT_TRUE(wire.establish());
            const std::vector<std::byte> data(size, std::byte{7});
            std::vector<std::byte> buffer(capacity);
            std::deque<Request*> sends;  // as many as there is room for
            const auto step = [&] {
                if (Request* const send = wire.sender->isend(data.data(), size, wire.now)) {
                    sends.push_back(send);
                }
                if (!sends.empty() && wire.sender->test(sends.front(), wire.now, nullptr)) {
                    sends.pop_front();
                }
                wire.now += kMicrosecond;
            };
            for (int received = 0; received < 200; ++received) {
                for (int i = 0; i < 300; ++i) {
                    step();
                    wire.receiver->progress(wire.now);
                }
                Request* const receive =
                    wire.receiver->irecv(buffer.data(), capacity, false, wire.now);
                ASSERT_NE(receive, nullptr);
                const Nanos end = wire.now + kSecond;
                while (!wire.receiver->test(receive, wire.now, nullptr)) {
                    ASSERT_LT(wire.now, end) << received;
                    step();
                }
            }
        }
    }
}

// It came before its receive was posted, and again over the path that was made anew: the welcome
// could not know of it, and no other acknowledgement is due.
TEST(SharedAcks, WhatComesTwiceIsToldAtOnce) {
    FakeWire wire({quick()});
    wire.links[0].latency = 10 * kMillisecond;
    ASSERT_TRUE(wire.establish());
    const auto drive = [&](Nanos time) {
        for (const Nanos end = wire.now + time; wire.now < end; wire.now += kMillisecond) {
            wire.sender->progress(wire.now);
            wire.receiver->progress(wire.now);
        }
    };
    std::vector<std::byte> data(100, std::byte{7});
    std::vector<std::byte> buffer(data.size());
    Request* const send = wire.sender->isend(data.data(), data.size(), wire.now);
    ASSERT_NE(send, nullptr);
    drive(20 * kMillisecond);
    EXPECT_TRUE(wire.sender->test(send, wire.now, nullptr)) << "the kernel has it";
    wire.links[0].carrier = false;
    drive(20 * kMillisecond);
    wire.links[0].carrier = true;
    while (wire.links[0].connections < 2) {
        drive(kMillisecond);
        ASSERT_LT(wire.now, 20 * kSecond);
    }
    EXPECT_GT(wire.counters[0]->resent_bytes.load(), 0U);
    Request* const receive = wire.receiver->irecv(buffer.data(), buffer.size(), false, wire.now);
    ASSERT_NE(receive, nullptr);
    EXPECT_TRUE(wire.receiver->test(receive, wire.now, nullptr)) << "it came the first time";
    EXPECT_EQ(buffer, data);
    EXPECT_TRUE(wire.sender->busy());
    drive(30 * kMillisecond);
    EXPECT_FALSE(wire.sender->busy());
}

// The way there and back takes longer than that, and a look is a system call.
TEST(SharedAcks, TheFirstTestAfterASendDoesNotLookForAny) {
    Few few(kAllKnown, 0);
    FakeWire& wire = few.wire;
    for (const std::size_t size : {std::size_t{8}, kSize}) {
        Request* const send = wire.sender->isend(few.data.data(), size, wire.now);
        ASSERT_NE(send, nullptr);
        const std::uint64_t before = wire.links[0].looks;
        const bool done = wire.sender->test(send, wire.now, nullptr);
        EXPECT_EQ(done, size == 8);
        EXPECT_EQ(wire.links[0].looks, before);
        if (!done) {
            (void)wire.sender->test(send, wire.now, nullptr);
            EXPECT_EQ(wire.links[0].looks, before + 1) << "the second does";
        }
    }
}

TEST(SharedAcks, TheWelcomeTellsWhatALostPathOwed) {
    Few few(kAllKnown, 1);
    ASSERT_TRUE(few.arrived(0, kMillisecond));
    few.wire.links[0].carrier = false;
    for (int i = 0; i < 20; ++i, few.wire.now += kMillisecond) {
        few.wire.sender->progress(few.wire.now);
    }
    few.wire.links[0].carrier = true;
    for (int i = 0; i < 3000 && few.wire.sender->state(0) != PathState::Up; ++i) {
        few.wire.sender->progress(few.wire.now);
        few.wire.receiver->progress(few.wire.now);
        few.wire.now += kMillisecond;
    }
    EXPECT_EQ(few.done(), 1U);  // the welcome says what is complete
}

}  // namespace
}  // namespace deft::net::testing
