// SPDX-License-Identifier: Apache-2.0
// Granted paths next to streams that are much slower, or that seem to be: which of them carry.
#include <gtest/gtest.h>

#include "tests/component/plugin/core/granted_job.h"

namespace deft::net::testing {
namespace {

GrantedJobOptions large_messages(std::size_t count) {
    GrantedJobOptions options;
    options.messages = count;
    options.size = [](std::size_t) { return 512 * 1024; };
    options.longest_step = 5 * kMicrosecond;
    return options;
}

// 1 % of the sum: from some moment on it gets nothing, and the fast one is as fast as alone.
TEST(MixedPaths, AMuchSlowerStreamIsKeptForFailOver) {
    FakeWire wire({granted_link(2), link(0.02)});
    wire.links[1].nominal_mbps = 100;
    ASSERT_TRUE(wire.establish());
    std::uint64_t at_half = 0;
    Nanos half = 0;
    GrantedJobOptions options = large_messages(1600);
    options.each_step = [&](Nanos since) {
        if (half == 0 && since > 1500 * kMillisecond) {
            half = since;
            at_half = wire.counters[0]->bytes_sent.load();
            EXPECT_LT(wire.counters[1]->bytes_sent.load(), at_half / 20);
        }
    };
    const std::uint64_t all = 1600 * std::uint64_t{512 * 1024};
    GrantedJob job(wire, options);
    ASSERT_TRUE(job.run());
    ASSERT_GT(half, 0);
    const double rest = static_cast<double>(all - at_half) / (2 * kGbit);
    EXPECT_LE(static_cast<double>(job.elapsed() - half) / 1e9, rest / 0.97);
    EXPECT_LT(wire.counters[1]->bytes_sent.load(), all / 100);
}

TEST(MixedPaths, ItCarriesAllWhileTheOthersAreGone) {
    FakeWire wire({granted_link(2), link(0.05)});
    wire.links[1].nominal_mbps = 50;
    ASSERT_TRUE(wire.establish());
    std::uint64_t at_loss = 0;
    GrantedJobOptions options = large_messages(600);
    options.each_step = [&](Nanos since) {
        const bool gone = since > 1200 * kMillisecond && since < 1800 * kMillisecond;
        if (gone && wire.links[0].carrier) {
            at_loss = wire.counters[1]->bytes_sent.load();
        }
        wire.links[0].carrier = !gone;
    };
    GrantedJob job(wire, options);
    ASSERT_TRUE(job.run()) << wire.sender->failure().text;
    EXPECT_EQ(job.changed(), 0U);
    EXPECT_GE(wire.links[0].connections, 2);
    EXPECT_GT(wire.counters[1]->bytes_sent.load(), at_loss + 512 * 1024);
}

// Nobody waits for a permission that cannot come.
TEST(MixedPaths, ItCarriesMemoryThatTheReceiverCouldNotRegister) {
    FakeWire wire({granted_link(2), link(0.05)});
    wire.links[0].no_memory[1] = true;
    wire.links[1].nominal_mbps = 50;
    ASSERT_TRUE(wire.establish());
    GrantedJob job(wire, large_messages(30));
    ASSERT_TRUE(job.run()) << wire.sender->failure().text;
    EXPECT_EQ(wire.counters[0]->bytes_sent.load(), 0U);
}

// Both have ways for the receiver's word; over the stream it comes sooner, and lets messages be
// sent for which there is no grant yet.
TEST(MixedPaths, CreditThatComesFirstOverASlowStreamDoesNotGiveItTheMessage) {
    FakeWire wire({granted_link(2, 100 * kMicrosecond), link(0.1, 5 * kMicrosecond)});
    wire.links[1].nominal_mbps = 100;
    ASSERT_TRUE(wire.establish());
    GrantedJob job(wire, large_messages(200));
    ASSERT_TRUE(job.run()) << wire.sender->failure().text;
    const double alone = 200 * 512 * 1024 / (2 * kGbit);
    EXPECT_LE(static_cast<double>(job.elapsed()) / 1e9, 1.05 * alone);
}

// What the grants were lost with, nobody has told the sender.
TEST(MixedPaths, GrantsThatDoNotComeHoldUpNoMessage) {
    FakeWire wire({granted_link(2), link(1)});
    wire.links[0].grants_lost = true;
    ASSERT_TRUE(wire.establish());
    GrantedJob job(wire, large_messages(20));
    ASSERT_TRUE(job.run()) << wire.sender->failure().text;
    EXPECT_EQ(wire.counters[0]->bytes_sent.load(), 0U);
    EXPECT_LE(job.longest_stall(), 100 * kMillisecond);
}

// A piece costs a card a request and its completion, and a stream the time of one that is slow.
TEST(MixedPaths, ACardGetsLargePiecesAndAStreamSmallOnes) {
    FakeWire wire({granted_link(10), link(1)});
    ASSERT_TRUE(wire.establish());
    GrantedJobOptions options = large_messages(400);
    options.capacity = 1 << 20;
    options.size = [](std::size_t) { return 1 << 20; };
    GrantedJob job(wire, options);
    ASSERT_TRUE(job.run()) << wire.sender->failure().text;
    const std::uint64_t by_card = wire.counters[0]->bytes_sent.load();
    const std::uint64_t by_stream = wire.counters[1]->bytes_sent.load();
    EXPECT_GE(by_card / wire.links[0].pieces, 256U * 1024);
    EXPECT_GT(by_stream, by_card / 20) << "the stream carries its share";
    EXPECT_LE(by_stream / wire.counters[1]->chunks_sent.load(), 80U * 1024);
    EXPECT_EQ(wire.counters[0]->resent_bytes.load() + wire.counters[1]->resent_bytes.load(), 0U);
}

// Every look at a stream, and every word over one, is a system call.
TEST(MixedPaths, AnIdleStreamCostsAFastCardNothing) {
    FakeWire wire({granted_link(10), link(0.02)});
    wire.links[1].nominal_mbps = 20;
    ASSERT_TRUE(wire.establish());
    GrantedJob job(wire, large_messages(400));
    ASSERT_TRUE(job.run()) << wire.sender->failure().text;
    const auto micros = static_cast<std::uint64_t>(job.elapsed() / kMicrosecond);
    EXPECT_LE(wire.links[1].looks, micros / 25);
    EXPECT_LE(wire.links[1].told, micros / 500);
}

// Where there is a faster way beside the wire, too, the stream has it while the card's is not up.
TEST(MixedPaths, AStreamHasTheWireOfAPathThatIsNotUp) {
    FakeLink shared = link(2);
    shared.gives_way_to = 1;
    FakeWire wire({granted_link(2), shared, link(1)});
    wire.links[0].carrier = false;
    ASSERT_TRUE(wire.establish());
    GrantedJob job(wire, large_messages(200));
    ASSERT_TRUE(job.run()) << wire.sender->failure().text;
    const std::uint64_t all = 200 * std::uint64_t{512 * 1024};
    EXPECT_EQ(wire.counters[0]->bytes_sent.load(), 0U);
    EXPECT_GT(wire.counters[1]->bytes_sent.load(), all / 2);
}

// However fast it seems to be.
TEST(MixedPaths, AStreamOnTheWireOfAnotherCarriesWhileThatIsGone) {
    FakeLink shared = link(2);
    shared.gives_way_to = 1;
    FakeWire wire({granted_link(2), shared});
    ASSERT_TRUE(wire.establish());
    std::uint64_t before = 0;
    std::uint64_t after = 0;
    GrantedJobOptions options = large_messages(500);
    options.each_step = [&](Nanos since) {
        const bool gone = since > 250 * kMillisecond && since < 500 * kMillisecond;
        const std::uint64_t sent = wire.counters[1]->bytes_sent.load();
        before = since < 250 * kMillisecond ? sent : before;
        after = since < 800 * kMillisecond ? sent : after;
        wire.links[0].carrier = !gone;
    };
    GrantedJob job(wire, options);
    ASSERT_TRUE(job.run()) << wire.sender->failure().text;
    EXPECT_GT(job.elapsed(), 900 * kMillisecond);
    EXPECT_EQ(before, 0U);
    EXPECT_GT(after, 0U);
    EXPECT_EQ(wire.counters[1]->bytes_sent.load(), after) << "the other was back";
}

// The card acknowledges without the receiver, whose process is busy elsewhere: that its stream is
// silent shows nothing.
TEST(MixedPaths, AReceiverThatDoesNotLookLosesNoStream) {
    FakeWire wire({granted_link(2), link(1)});
    ASSERT_TRUE(wire.establish());
    std::array<std::byte, 64> small{};
    std::array<Request*, 8> requests{};
    for (Request*& request : requests) {
        request = wire.sender->isend(small.data(), small.size(), wire.now);
        ASSERT_NE(request, nullptr);
    }
    for (const Nanos end = wire.now + 2 * kSecond; wire.now < end; wire.now += 100 * kMicrosecond) {
        wire.nics();
        wire.sender->progress(wire.now);
    }
    EXPECT_EQ(wire.links[1].connections, 1);
    EXPECT_EQ(wire.sender->state(1), PathState::Up);
}

}  // namespace
}  // namespace deft::net::testing
