// SPDX-License-Identifier: Apache-2.0
// What the device does wrong on purpose: each fault is seen to happen, and does what it says.
#include <algorithm>
#include <functional>

#include "tests/component/softdev/verbs/fixture.h"

namespace softdev::verbs::testing {
namespace {

// Faults of one test, and how often one of them was injected in it.
class Faults {
public:
    Faults(const char* text, const char* counted)
        : counted_(counted), before_(softverbs_injected(counted)) {
        EXPECT_EQ(softverbs_set_faults(text), 0);
    }
    ~Faults() { softverbs_set_faults(""); }
    long injected() const { return softverbs_injected(counted_) - before_; }

private:
    const char* counted_;
    long before_;
};

void wait_until(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!done() && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(done());
}

// Memory while the device may be at it: what a program must not do, and these tests do on purpose.
[[gnu::noinline, gnu::no_sanitize("thread")]] char seen(const Side& side, std::size_t offset) {
    return *const_cast<const volatile char*>(&side.memory[offset]);
}
[[gnu::noinline, gnu::no_sanitize("thread")]] void change(Side& side, char value) {
    *const_cast<volatile char*>(&side.memory[0]) = value;
}

TEST(Faults, NonsenseIsRefused) {
    EXPECT_EQ(softverbs_set_faults("lose_packets=1"), EINVAL);
    EXPECT_EQ(softverbs_set_faults("resend=101%"), EINVAL);
    EXPECT_EQ(softverbs_injected("lose_packets"), -1);
}

TEST(Faults, LostAcknowledgements) {
    Pair pair;
    pair.connect(17, 1);
    Faults faults("lose_acks=1", "lose_acks");
    pair.left.memory[5] = 9;
    ASSERT_EQ(pair.right.receive(1, {}), 0);
    ASSERT_EQ(pair.left.rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 1, pair.left.sge(5, 1), pair.right, 0), 0);
    EXPECT_EQ(pair.right.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.right.memory[0], 9);
    EXPECT_EQ(pair.left.next().status, IBV_WC_RETRY_EXC_ERR);
    EXPECT_EQ(faults.injected(), 1);
}

// A write of one byte, 9, is on its way for a second; its queue pair is in the error state, and the
// request flushed, before it arrives.
void flush_a_late_write(Pair& pair) {
    pair.connect();
    Faults faults("late_write=1,late_write_ms=1000", "late_write");
    pair.left.memory[0] = 9;
    ASSERT_EQ(pair.left.write(1, pair.left.sge(0, 1), pair.right, 0), 0);
    wait_until([&] { return faults.injected() == 1; });
    ASSERT_EQ(pair.left.go(IBV_QPS_ERR), 0);
    EXPECT_EQ(pair.left.next().status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(seen(pair.right, 0), 0);
}

// The bytes land all the same.
TEST(Faults, AWriteAfterTheFlush) {
    Pair pair;
    flush_a_late_write(pair);
    wait_until([&] { return seen(pair.right, 0) == 9; });
}

// The receiver's error state is a fence.
TEST(Faults, NoWriteAfterTheReceiversFence) {
    Pair pair;
    flush_a_late_write(pair);
    ASSERT_EQ(pair.right.go(IBV_QPS_ERR), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    EXPECT_EQ(seen(pair.right, 0), 0);
}

TEST(Faults, TheBufferIsReadAgain) {
    Pair pair;
    pair.connect();
    Faults faults("resend=1,resend_ms=1000", "resend");
    pair.left.memory[0] = 1;
    ASSERT_EQ(pair.left.write(1, pair.left.sge(0, 1), pair.right, 0), 0);
    wait_until([&] { return faults.injected() == 1; });
    change(pair.left, 2);  // too early: the request is not completed
    EXPECT_EQ(pair.left.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.right.memory[0], 2);
}

TEST(Faults, RegistrationFails) {
    Pair pair;
    Faults faults("reg_fails=2", "reg_fails");
    ibv_mr* const first = ibv_reg_mr(pair.left.pd, pair.left.memory.data(), 64, 0);
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(ibv_reg_mr(pair.left.pd, pair.left.memory.data(), 64, 0), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_EQ(faults.injected(), 1);
    ibv_dereg_mr(first);
}

TEST(Faults, ModifyTakesItsTime) {
    Pair pair;
    Faults faults("modify_slow=1,modify_slow_ms=100", "modify_slow");
    ASSERT_EQ(pair.left.init(), 0);
    const auto before = std::chrono::steady_clock::now();
    ASSERT_EQ(pair.left.rtr(pair.right), 0);
    EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(100));
    EXPECT_EQ(faults.injected(), 1);
}

// Out of order, but complete when a completion says so, and not before.
TEST(Faults, WritesArePlacedOutOfOrder) {
    Pair pair;
    pair.connect();
    Faults faults("shuffle=100%", "shuffle");
    std::fill(pair.left.memory.begin(), pair.left.memory.end(), 7);
    for (int round = 0; round < 3; ++round) {
        std::fill(pair.right.memory.begin(), pair.right.memory.end(), 0);
        ASSERT_EQ(pair.right.receive(1, {}), 0);
        ASSERT_EQ(pair.left.write(1, pair.left.sge(0, 1 << 18), pair.right, 0, 0), 0);
        ASSERT_EQ(pair.left.write(2, pair.left.sge(0, 1 << 18), pair.right, 1 << 18, 0), 0);
        ASSERT_EQ(pair.left.rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 3, {}, pair.right, 0), 0);
        EXPECT_EQ(pair.right.next().status, IBV_WC_SUCCESS);
        EXPECT_EQ(std::count(pair.right.memory.begin(), pair.right.memory.end(), 7), 1 << 19);
        EXPECT_EQ(pair.left.next().status, IBV_WC_SUCCESS);
    }
    EXPECT_EQ(faults.injected(), 6);
}

// A write's bytes may come after those of a later one.
TEST(Faults, WhatWasWrittenLastIsThereFirst) {
    Pair pair;
    pair.connect();
    Faults faults("shuffle=1", "shuffle");
    bool inverted = false;
    for (char round = 1; round < 50 && !inverted; ++round) {
        softverbs_set_faults("shuffle=1");
        change(pair.left, round);
        ASSERT_EQ(pair.left.write(1, pair.left.sge(0, 1), pair.right, 0, 0), 0);
        ASSERT_EQ(pair.left.write(2, pair.left.sge(0, 1), pair.right, 1), 0);
        EXPECT_EQ(pair.left.next().wr_id, 2U);
        // The second has arrived. The first may have, too, where this thread was kept waiting.
        inverted = seen(pair.right, 0) != round && seen(pair.right, 1) == round;
        wait_until([&] { return seen(pair.right, 0) == round; });
    }
    EXPECT_TRUE(inverted);
    EXPECT_GE(faults.injected(), 1);
}

TEST(Faults, ACompletionComesLongAfterItsData) {
    Pair pair;
    pair.connect();
    Faults faults("complete_late=1,complete_late_ms=1000", "complete_late");
    pair.left.memory[0] = 9;
    ASSERT_EQ(pair.right.receive(1, pair.right.sge(0, 1)), 0);
    ASSERT_EQ(pair.left.send(1, pair.left.sge(0, 1)), 0);
    EXPECT_EQ(pair.left.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(seen(pair.right, 0), 9);
    EXPECT_EQ(faults.injected(), 1);
    EXPECT_TRUE(pair.right.nothing_completed());
    EXPECT_EQ(pair.right.next().status, IBV_WC_SUCCESS);
}

}  // namespace
}  // namespace softdev::verbs::testing
