// SPDX-License-Identifier: Apache-2.0
#include "shim/cuda/pinned_pool.h"

#include <gtest/gtest.h>
#include <cstdlib>
#include <set>

namespace deft::cuda {
namespace {

std::set<void*> g_alive;  // what a driver has pinned, and no reset context has taken

int allocate(void** memory, std::size_t bytes, unsigned flags) {
    EXPECT_EQ(flags, kHostAllocPortable);
    static std::set<void*> all;  // never freed, so that no address comes twice
    *memory = std::malloc(bytes);
    all.insert(*memory);
    g_alive.insert(*memory);
    return kSuccess;
}

Execution driver() {
    Execution execution;
    execution.MemHostAlloc = allocate;
    execution.MemHostGetFlags = [](unsigned*, void* memory) -> int {
        return g_alive.count(memory) == 1 ? static_cast<int>(kSuccess) : 1;
    };
    return execution;
}

const auto kContext = reinterpret_cast<Context>(std::uintptr_t{16});
const auto kOther = reinterpret_cast<Context>(std::uintptr_t{32});

void* taken(PinnedPool& pool, const Execution& driver, Context context, std::size_t bytes) {
    void* memory = nullptr;
    EXPECT_EQ(pool.take(driver, context, bytes, memory), kSuccess);
    return memory;
}

TEST(PinnedPool, KeepsBlocksByContextAndSize) {
    PinnedPool pool;
    const Execution execution = driver();
    void* const first = taken(pool, execution, kContext, 64);
    void* const second = taken(pool, execution, kContext, 64);
    EXPECT_NE(first, second);
    pool.give_back(kContext, 64, first);
    pool.give_back(kContext, 64, second);
    const std::size_t made = g_alive.size();
    EXPECT_NE(taken(pool, execution, kOther, 64), second);
    EXPECT_NE(taken(pool, execution, kContext, 32), second);
    EXPECT_EQ(g_alive.size(), made + 2);
    EXPECT_EQ(taken(pool, execution, kContext, 64), second);
    EXPECT_EQ(taken(pool, execution, kContext, 64), first);
    EXPECT_EQ(g_alive.size(), made + 2);
}

TEST(PinnedPool, WhatWentWithItsContextIsNotUsedAgain) {
    PinnedPool pool;
    const Execution execution = driver();
    void* const gone = taken(pool, execution, kContext, 64);
    pool.give_back(kContext, 64, gone);
    g_alive.clear();
    void* const fresh = taken(pool, execution, kContext, 64);
    EXPECT_NE(fresh, gone);
    pool.give_back(kContext, 64, fresh);
    EXPECT_EQ(taken(pool, execution, kContext, 64), fresh);
}

TEST(PinnedPool, WithoutAWayToAskEachBlockIsNew) {
    PinnedPool pool;
    Execution execution = driver();
    execution.MemHostGetFlags = nullptr;
    void* const first = taken(pool, execution, kContext, 64);
    pool.give_back(kContext, 64, first);
    EXPECT_NE(taken(pool, execution, kContext, 64), first);
    execution.MemHostAlloc = [](void**, std::size_t, unsigned) -> int { return 2; };
    void* memory = nullptr;
    EXPECT_EQ(pool.take(execution, kContext, 64, memory), 2);
}

}  // namespace
}  // namespace deft::cuda
