// SPDX-License-Identifier: Apache-2.0
// Paths that write into memory which the receiver has granted: alone, next to streams, and when
// they die; on a virtual clock.
#include <gtest/gtest.h>

#include "tests/component/plugin/core/granted_job.h"

namespace deft::net::testing {
namespace {

std::uint64_t landed_late(const FakeWire& wire) {
    std::uint64_t sum = 0;
    for (const auto& pair : wire.pairs) {
        sum += pair->landed_late;
    }
    return sum;
}

std::uint64_t kept_out(const FakeWire& wire) {
    std::uint64_t sum = 0;
    for (const auto& pair : wire.pairs) {
        sum += pair->kept_out;
    }
    return sum;
}

std::uint64_t read_changed(const FakeWire& wire) {
    std::uint64_t sum = 0;
    for (const auto& pair : wire.pairs) {
        sum += pair->changed;
    }
    return sum;
}

TEST(Granted, MessagesOfAnySizeGoOverAGrantedPathAlone) {
    FakeWire wire({granted_link(10)});
    ASSERT_TRUE(wire.establish());
    GrantedJobOptions options;
    options.messages = 200;
    options.size = [](std::size_t message) {
        constexpr std::size_t kSizes[] = {0, 1, 8, 4096, 4097, 65536, 70000, 512 * 1024};
        return kSizes[message % std::size(kSizes)];
    };
    GrantedJob job(wire, options);
    ASSERT_TRUE(job.run()) << wire.sender->failure().text;
    EXPECT_EQ(wire.links[0].connections, 1);
    EXPECT_LE(wire.links[0].told, 100U) << "its own completions are the acknowledgements";
}

// Grants take the place of credit: the link is as busy as with raw writes.
TEST(Granted, AloneItIsAsFastAsItsLink) {
    FakeWire wire({granted_link(10)});
    ASSERT_TRUE(wire.establish());
    GrantedJobOptions options;
    options.messages = 400;
    options.size = [](std::size_t) { return 512 * 1024; };
    options.longest_step = 5 * kMicrosecond;
    GrantedJob job(wire, options);
    ASSERT_TRUE(job.run());
    const double raw = 400 * 524288.0 / (10 * kGbit);
    EXPECT_LE(static_cast<double>(job.elapsed()) / 1e9, raw / 0.95);
}

TEST(Granted, ItAndAStreamShareMessagesByTheirRates) {
    FakeWire wire({granted_link(2), link(1)});
    ASSERT_TRUE(wire.establish());
    GrantedJobOptions options;
    options.messages = 400;
    options.size = [](std::size_t) { return 512 * 1024; };
    options.longest_step = 5 * kMicrosecond;
    GrantedJob job(wire, options);
    ASSERT_TRUE(job.run());
    const double raw = 400 * 524288.0 / (3 * kGbit);
    EXPECT_LE(static_cast<double>(job.elapsed()) / 1e9, raw / 0.9);
    EXPECT_GT(wire.counters[0]->bytes_sent.load(), 3 * wire.counters[1]->bytes_sent.load() / 2);
    EXPECT_EQ(wire.counters[0]->resent_bytes.load() + wire.counters[1]->resent_bytes.load(), 0U);
}

// What the measurements found: 65,536 of 65,536 bytes of a reused buffer overwritten, if nobody
// puts the receiver's queue pair into the error state first.
TEST(Granted, ALateWriteOfADeadPathFindsNoBufferThatWasUsedAgain) {
    FakeWire wire({granted_link(1), link(1)});
    wire.links[0].late = 30 * kMillisecond;
    wire.links[0].retries_for = 20 * kMillisecond;
    ASSERT_TRUE(wire.establish());
    GrantedJobOptions options;
    options.messages = 300;
    options.size = [](std::size_t) { return 512 * 1024; };
    options.each_step = [&](Nanos since) {
        wire.links[0].black_hole = since > 100 * kMillisecond && since < 400 * kMillisecond;
    };
    GrantedJob job(wire, options);
    ASSERT_TRUE(job.run()) << wire.sender->failure().text;
    job.look_back(kSecond);
    EXPECT_GT(kept_out(wire), 0U) << "nothing was late";
    EXPECT_EQ(landed_late(wire), 0U);
    EXPECT_EQ(job.changed(), 0U);
    EXPECT_GT(wire.counters[0]->resent_bytes.load(), 0U);
    EXPECT_GE(wire.links[0].connections, 2);
    EXPECT_LE(job.longest_stall(), kSecond);
}

// The receiver has everything, and the sender's queue pair dies for want of acknowledgements: the
// fence says how much came, and that is not written a second time.
TEST(Granted, LostAcknowledgementsMakeNothingComeTwice) {
    FakeWire wire({granted_link(1), link(1)});
    wire.links[0].retries_for = 20 * kMillisecond;
    ASSERT_TRUE(wire.establish());
    GrantedJobOptions options;
    options.messages = 100;
    options.size = [](std::size_t) { return 512 * 1024; };
    bool lost = false;
    options.each_step = [&](Nanos since) {
        wire.links[0].acks_lost = since > 50 * kMillisecond && since < 150 * kMillisecond;
        lost = lost || wire.sender->state(0) != PathState::Up;
    };
    GrantedJob job(wire, options);
    ASSERT_TRUE(job.run()) << wire.sender->failure().text;
    job.look_back(kSecond);
    EXPECT_TRUE(lost);
    EXPECT_EQ(read_changed(wire), 0U) << "a request was done with its work request open";
}

// No other path is left to ask on: the next connection of the same path is the question.
TEST(Granted, TheOnlyPathIsFencedByItsNextConnection) {
    FakeWire wire({granted_link(1)});
    wire.links[0].late = 500 * kMillisecond;
    wire.links[0].retries_for = 20 * kMillisecond;
    wire.links[0].fence_takes = 3 * kMillisecond;
    ASSERT_TRUE(wire.establish());
    GrantedJobOptions options;
    options.messages = 100;
    options.each_step = [&](Nanos since) {
        wire.links[0].black_hole = since > 50 * kMillisecond && since < 100 * kMillisecond;
    };
    GrantedJob job(wire, options);
    ASSERT_TRUE(job.run()) << wire.sender->failure().text;
    job.look_back(kSecond);
    EXPECT_GT(kept_out(wire), 0U);
    EXPECT_GE(wire.links[0].connections, 2);
}

// A stream's chunk goes over a granted path only once the receiver reads that stream no more.
TEST(Granted, ALostStreamIsFencedBeforeItsChunksAreWritten) {
    FakeWire wire({granted_link(1), link(1)});
    ASSERT_TRUE(wire.establish());
    GrantedJobOptions options;
    options.messages = 200;
    options.size = [](std::size_t) { return 512 * 1024; };
    options.each_step = [&](Nanos since) {
        const bool out = since > 50 * kMillisecond && since < 700 * kMillisecond;
        wire.links[1].black_hole = out;
    };
    GrantedJob job(wire, options);
    ASSERT_TRUE(job.run()) << wire.sender->failure().text;
    job.look_back(kSecond);
    EXPECT_GT(wire.counters[1]->resent_bytes.load(), 0U);
    EXPECT_LE(job.longest_stall(), kSecond);
}

// The sender's memory stays untouched until its queue pair is in the error state, however soon
// another path has brought the message.
TEST(Granted, ASendIsDoneOnlyWhenNoWorkRequestOfItIsOpen) {
    FakeWire wire({granted_link(1), link(4)});
    wire.links[0].retries_for = 20 * kMillisecond;
    wire.links[0].retract_takes = 200 * kMillisecond;
    ASSERT_TRUE(wire.establish());
    GrantedJobOptions options;
    options.depth = 1;
    options.messages = 10;
    options.size = [](std::size_t) { return 512 * 1024; };
    Nanos lost = 0;
    options.each_step = [&](Nanos since) {
        wire.links[0].acks_lost = since > 5 * kMillisecond && lost == 0;
        if (lost == 0 && wire.sender->state(0) != PathState::Up) {
            lost = since;
        }
    };
    GrantedJob job(wire, options);
    ASSERT_TRUE(job.run());
    EXPECT_GT(lost, 0);
    EXPECT_GE(job.elapsed(), lost + 200 * kMillisecond);
    EXPECT_EQ(read_changed(wire), 0U);
}

TEST(Granted, MemoryThatIsNotRegisteredGoesByAStream) {
    for (const int end : {0, 1}) {
        FakeWire wire({granted_link(4), link(1)});
        wire.links[0].no_memory[end] = true;
        ASSERT_TRUE(wire.establish());
        GrantedJobOptions options;
        GrantedJob job(wire, options);
        ASSERT_TRUE(job.run());
        EXPECT_EQ(wire.counters[0]->bytes_sent.load(), 0U);
    }
    FakeWire wire({granted_link(4), link(1)});
    ASSERT_TRUE(wire.establish());
    GrantedJobOptions options;
    options.registered = false;
    GrantedJob job(wire, options);
    ASSERT_TRUE(job.run());
    EXPECT_EQ(wire.counters[0]->bytes_sent.load(), 0U);
}

// A receiver that has failed, or whose memory NCCL takes back, lets nothing in any more.
TEST(Granted, NothingLandsInMemoryThatWasTakenBack) {
    FakeWire wire({granted_link(1), link(1)});
    wire.links[0].late = 20 * kMillisecond;
    wire.links[1].black_hole = false;
    ASSERT_TRUE(wire.establish());
    std::vector<std::byte> data(1 << 20);
    std::vector<std::byte> buffer(1 << 20);
    std::string problem;
    const Region from(Memory{data.data(), data.size()}, wire.sender->domains(), problem);
    const Region to(Memory{buffer.data(), buffer.size()}, wire.receiver->domains(), problem);
    ASSERT_TRUE(wire.receiver->irecv(buffer.data(), buffer.size(), false, wire.now, &to));
    ASSERT_TRUE(wire.sender->isend(data.data(), data.size(), wire.now, &from));
    for (int i = 0; i < 200; ++i, wire.now += 10 * kMicrosecond) {
        wire.sender->progress(wire.now);
        wire.receiver->progress(wire.now);
    }
    ASSERT_GT(wire.counters[0]->bytes_sent.load(), 0U);
    wire.receiver->release(buffer.data(), buffer.size());
    std::fill(buffer.begin(), buffer.end(), std::byte{0xDD});
    for (int i = 0; i < 1000; ++i, wire.now += kMillisecond) {
        wire.nics();
        wire.sender->progress(wire.now);
    }
    EXPECT_EQ(std::count(buffer.begin(), buffer.end(), std::byte{0xDD}),
              static_cast<std::ptrdiff_t>(buffer.size()));
    EXPECT_TRUE(wire.receiver->failure());
}

TEST(Granted, AMessageLargerThanItsBufferFails) {
    FakeWire wire({granted_link(1)});
    ASSERT_TRUE(wire.establish());
    std::vector<std::byte> data(1 << 20);
    std::string problem;
    const Region from(Memory{data.data(), data.size()}, wire.sender->domains(), problem);
    const Region to(Memory{data.data(), data.size()}, wire.receiver->domains(), problem);
    ASSERT_TRUE(wire.receiver->irecv(data.data(), 100000, false, wire.now, &to));
    ASSERT_TRUE(wire.sender->isend(data.data(), 100001, wire.now, &from));
    for (int i = 0; i < 100 && !wire.sender->failure(); ++i, wire.now += 10 * kMicrosecond) {
        wire.sender->progress(wire.now);
        wire.receiver->progress(wire.now);
    }
    EXPECT_TRUE(wire.sender->failure());
}

TEST(Regions, TheSameMemoryIsRegisteredOnceAndGoneWithItsLastHolder) {
    const bool refuses = false;
    const auto domain = std::make_shared<FakeDomain>(&refuses);
    const auto other = std::make_shared<FakeDomain>(&refuses);
    const std::vector<std::shared_ptr<Domain>> both{domain, other};
    std::vector<std::byte> data(4096);
    std::string problem;
    auto first = std::make_unique<Region>(Memory{data.data(), 4096}, both, problem);
    auto second = std::make_unique<Region>(Memory{data.data(), 4096}, both, problem);
    const Region half(Memory{data.data(), 2048}, both, problem);
    EXPECT_EQ(first->in(domain.get()), second->in(domain.get()));
    EXPECT_NE(first->in(domain.get()), half.in(domain.get()));
    EXPECT_NE(first->in(domain.get()), first->in(other.get()));
    EXPECT_EQ(domain->live(), 2U);
    first.reset();
    EXPECT_EQ(domain->live(), 2U);
    EXPECT_EQ(domain->held(), 2U);
    second.reset();
    EXPECT_EQ(domain->live(), 1U) << "keys of memory that NCCL has taken back";
    const Region again(Memory{data.data(), 4096}, both, problem);
    EXPECT_EQ(domain->made(), 3U) << "what was there before may be mapped anew";
    EXPECT_TRUE(problem.empty());
}

TEST(Regions, OneDomainThatRefusesLeavesTheOthers) {
    const bool refuses[] = {false, true};
    const std::vector<std::shared_ptr<Domain>> both{std::make_shared<FakeDomain>(&refuses[1]),
                                                    std::make_shared<FakeDomain>(&refuses[0])};
    std::byte data[64];
    std::string problem;
    const Region region(Memory{data, sizeof(data)}, both, problem);
    EXPECT_EQ(region.in(both[0].get()), nullptr);
    EXPECT_NE(region.in(both[1].get()), nullptr);
    EXPECT_EQ(region.in(nullptr), nullptr);
    EXPECT_EQ(problem, "out of memory");
}

}  // namespace
}  // namespace deft::net::testing
