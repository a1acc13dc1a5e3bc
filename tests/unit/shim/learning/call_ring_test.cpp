// SPDX-License-Identifier: Apache-2.0
#include "shim/learning/call_ring.h"

#include <gtest/gtest.h>
#include <memory>
#include <thread>
#include <vector>

namespace deft {
namespace {

CallRecord numbered(std::uint64_t number, std::uint32_t producer = 0) {
    CallRecord record;
    record.count = number;
    record.comm_serial = producer;
    return record;
}

TEST(CallRing, KeepsTheOrder) {
    const auto ring = std::make_unique<CallRing>();
    CallRecord record;
    EXPECT_FALSE(ring->pop(record));
    for (std::uint64_t round = 0; round < 3; ++round) {
        for (std::uint64_t i = 0; i < 5000; ++i) {
            ASSERT_TRUE(ring->push(numbered(i)));
        }
        for (std::uint64_t i = 0; i < 5000; ++i) {
            ASSERT_TRUE(ring->pop(record));
            ASSERT_EQ(record.count, i);
        }
        EXPECT_FALSE(ring->pop(record));
    }
    EXPECT_EQ(ring->lost(), 0u);
}

TEST(CallRing, LosesAndCountsWhenFull) {
    const auto ring = std::make_unique<CallRing>();
    for (std::uint64_t i = 0; i < CallRing::kCapacity; ++i) {
        ASSERT_TRUE(ring->push(numbered(i)));
    }
    EXPECT_FALSE(ring->push(numbered(99)));
    EXPECT_EQ(ring->lost(), 1u);
    CallRecord record;
    ASSERT_TRUE(ring->pop(record));
    EXPECT_EQ(record.count, 0u);
    EXPECT_TRUE(ring->push(numbered(100)));
}

TEST(CallRing, ManyProducersEachInOrder) {
    constexpr std::uint32_t kProducers = 4;
    constexpr std::uint64_t kCalls = 50000;
    const auto ring = std::make_unique<CallRing>();
    std::vector<std::thread> producers;
    std::atomic<std::uint32_t> running{kProducers};
    for (std::uint32_t producer = 0; producer < kProducers; ++producer) {
        producers.emplace_back([&ring, &running, producer] {
            for (std::uint64_t i = 1; i <= kCalls; ++i) {
                ring->push(numbered(i, producer));
            }
            --running;
        });
    }
    std::vector<std::uint64_t> last(kProducers, 0);
    std::uint64_t taken = 0;
    CallRecord record;
    for (;;) {
        const bool done = running == 0;
        while (ring->pop(record)) {
            ASSERT_GT(record.count, last[record.comm_serial]);
            last[record.comm_serial] = record.count;
            ++taken;
        }
        if (done) {
            break;
        }
        std::this_thread::yield();
    }
    for (std::thread& producer : producers) {
        producer.join();
    }
    EXPECT_EQ(taken + ring->lost(), kProducers * kCalls);
}

}  // namespace
}  // namespace deft
