// SPDX-License-Identifier: Apache-2.0
// From which call on a table holds, under the threads that use it: hooks and agreement.
#include "shim/tuning/tuning_switch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

namespace deft::tuning {
namespace {

using agreement::Decision;

const Key kSum = key_of(Function::AllReduce, 1000, DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM);

std::unique_ptr<Table> fixed(std::uint64_t serial) {
    Order order;
    order.serial = serial;
    order.entries = {{kSum, {{DEFT_TUNER_TREE, DEFT_TUNER_LL, 0}}}};
    return std::make_unique<Table>(order);
}

class Decisions {
public:
    void decide(std::uint64_t serial, Decision decision) {
        const std::lock_guard lock(mutex_);
        decisions_[serial] = decision;
        changed_.notify_all();
    }
    Decision wait(std::uint64_t serial) {
        std::unique_lock lock(mutex_);
        waiting_ = true;
        changed_.notify_all();
        changed_.wait(lock, [&] { return decisions_.count(serial) != 0; });
        return decisions_[serial];
    }
    void await_waiter() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return waiting_; });
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::uint64_t, Decision> decisions_;
    bool waiting_ = false;
};

class TuningSwitchTest : public ::testing::Test {
protected:
    std::uint64_t order_at(std::uint64_t ordinal) {
        Pick pick;
        EXPECT_TRUE(switch_.call(kSum, {ordinal, 0}, pick));
        return pick.order;
    }

    Decisions decisions_;
    std::unique_ptr<Table> table_ = fixed(3);
    TuningSwitch switch_{0, [this](std::uint64_t serial, auto) { return decisions_.wait(serial); },
                         10};
};

TEST_F(TuningSwitchTest, HoldsFromTheNamedCallOn) {
    EXPECT_EQ(order_at(10), 0u);
    ASSERT_TRUE(switch_.name(3, 12, table_.get()));
    switch_.commit();
    EXPECT_TRUE(switch_.committed_ahead());
    EXPECT_EQ(order_at(11), 0u);
    EXPECT_EQ(order_at(12), 3u);
    EXPECT_EQ(order_at(13), 3u);
    EXPECT_TRUE(switch_.clear());
}

TEST_F(TuningSwitchTest, ACallThatHasBeenMadeIsRefused) {
    EXPECT_EQ(order_at(10), 0u);
    EXPECT_EQ(order_at(11), 0u);
    EXPECT_FALSE(switch_.name(3, 11, table_.get()));
    switch_.cancel(3);
    EXPECT_EQ(order_at(12), 0u);
}

TEST_F(TuningSwitchTest, ACancelledOneNeverHolds) {
    ASSERT_TRUE(switch_.name(3, 12, table_.get()));
    switch_.cancel(3);
    for (std::uint64_t ordinal = 10; ordinal < 20; ++ordinal) {
        EXPECT_EQ(order_at(ordinal), 0u);
    }
}

TEST_F(TuningSwitchTest, AGroupsCallsAreCountedAndMaySwitch) {
    ASSERT_TRUE(switch_.name(3, 11, table_.get()));
    switch_.commit();
    EXPECT_TRUE(switch_.count({10, 0}));
    EXPECT_TRUE(switch_.count({11, 0}));
    EXPECT_EQ(order_at(12), 3u);
}

TEST_F(TuningSwitchTest, WaitsForTheDecision) {
    for (const bool commit : {true, false}) {
        const std::uint64_t serial = commit ? 3 : 4;
        const std::unique_ptr<Table> table = fixed(serial);
        Decisions decisions;
        TuningSwitch waits(
            0, [&](std::uint64_t s, auto) { return decisions.wait(s); }, 10);
        ASSERT_TRUE(waits.name(serial, 10, table.get()));
        Pick pick;
        std::thread hook([&] { EXPECT_TRUE(waits.call(kSum, {10, 0}, pick)); });
        decisions.await_waiter();
        decisions.decide(serial, commit ? Decision::Commit : Decision::Cancel);
        hook.join();
        EXPECT_EQ(pick.order, commit ? serial : 0u);
    }
}

TEST_F(TuningSwitchTest, WithoutTheOthersTheCommunicatorFails) {
    ASSERT_TRUE(switch_.name(3, 10, table_.get()));
    decisions_.decide(3, Decision::Lost);
    Pick pick;
    EXPECT_FALSE(switch_.call(kSum, {10, 0}, pick));
    EXPECT_TRUE(switch_.failed());
    EXPECT_FALSE(switch_.call(kSum, {11, 0}, pick)) << "and stays so";
}

TEST_F(TuningSwitchTest, AnEndIsNoFailure) {
    ASSERT_TRUE(switch_.name(3, 10, table_.get()));
    switch_.end();
    decisions_.decide(3, Decision::Lost);
    Pick pick;
    EXPECT_FALSE(switch_.call(kSum, {10, 0}, pick));
    EXPECT_FALSE(switch_.failed());
}

// Two ranks with threads of their own, and a leader that names calls close ahead of them: both
// find the same table at every call. They go on until the leader has had enough turns.
TEST(TuningSwitchRace, TwoRanksFindTheSameAtEveryCall) {
    constexpr std::uint64_t kCalls = 40'000;
    constexpr int kCommits = 10;
    std::vector<std::unique_ptr<Table>> tables;
    std::vector<std::uint64_t> found[2];
    Decisions decisions;
    const auto wait = [&](std::uint64_t serial, auto) { return decisions.wait(serial); };
    TuningSwitch first(0, wait, 0);
    TuningSwitch second(1, wait, 0);
    TuningSwitch* const ranks[2] = {&first, &second};
    std::atomic<bool> done{false};
    std::atomic<int> committed{0};
    std::vector<std::thread> hooks;
    for (int rank = 0; rank < 2; ++rank) {
        hooks.emplace_back([&, rank] {
            for (std::uint64_t ordinal = 0; !done && (ordinal < kCalls || committed <= kCommits);
                 ++ordinal) {
                Pick pick;
                EXPECT_TRUE(ranks[rank]->call(kSum, {ordinal, 0}, pick));
                found[rank].push_back(pick.order);
                // As collectives do: no rank is far ahead.
                while (!done && ranks[1 - rank]->calls() + 50 < ordinal) {
                    std::this_thread::yield();
                }
            }
            done = true;
        });
    }
    std::mt19937 random(5);
    std::uint64_t serial = 0;
    while (!done) {
        ++serial;
        const std::uint64_t at = std::max(first.calls(), second.calls()) + random() % 60;
        tables.push_back(fixed(serial));
        tables.push_back(fixed(serial));
        bool all = true;
        for (int rank = 0; rank < 2; ++rank) {
            TuningSwitch& own = *ranks[rank];
            all = !own.committed_ahead() &&
                  own.name(serial, at,
                           tables[tables.size() - 1 - static_cast<std::size_t>(rank)].get()) &&
                  all;
            if (own.committed_ahead()) {
                all = false;
            }
        }
        for (TuningSwitch* const own : ranks) {
            all ? own->commit() : own->cancel(serial);
        }
        decisions.decide(serial, all ? Decision::Commit : Decision::Cancel);
        committed += all ? 1 : 0;
        while (!done && (!first.clear() || !second.clear())) {
            std::this_thread::yield();
        }
    }
    for (std::thread& hook : hooks) {
        hook.join();
    }
    const std::size_t both = std::min(found[0].size(), found[1].size());
    for (auto& of : found) {
        of.resize(both);
    }
    EXPECT_EQ(found[0], found[1]);
}

}  // namespace
}  // namespace deft::tuning
