// SPDX-License-Identifier: Apache-2.0
#include "shim/cuda/pinned_pool.h"

#include <gtest/gtest.h>
#include <cstdlib>
#include <map>
#include <set>

namespace deft::cuda {
namespace {

// What a driver has pinned, and no reset context has taken; with a number, never the same twice.
std::map<void*, std::uint64_t> g_alive;
std::uint64_t g_last = 0;

int allocate(void** memory, std::size_t bytes, unsigned flags) {
    EXPECT_EQ(flags, kHostAllocPortable);
    static auto& all = *new std::set<void*>;  // never freed, so that no address comes twice
    *memory = std::malloc(bytes);
    all.insert(*memory);
    g_alive[*memory] = ++g_last;
    return kSuccess;
}

Execution driver() {
    Execution execution;
    execution.MemHostAlloc = allocate;
    execution.PointerGetAttribute = [](void* value, int attribute, DevicePointer pointer) -> int {
        EXPECT_EQ(attribute, kAttributeBufferId);
        const auto found = g_alive.find(reinterpret_cast<void*>(pointer));
        *static_cast<std::uint64_t*>(value) = found != g_alive.end() ? found->second : 0;
        return found != g_alive.end() ? static_cast<int>(kSuccess) : 1;
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
    pool.give_back(first);
    pool.give_back(second);
    const std::size_t made = g_alive.size();
    EXPECT_NE(taken(pool, execution, kOther, 64), second);
    EXPECT_NE(taken(pool, execution, kContext, 32), second);
    EXPECT_EQ(g_alive.size(), made + 2);
    EXPECT_EQ(taken(pool, execution, kContext, 64), first);
    EXPECT_EQ(taken(pool, execution, kContext, 64), second);
    EXPECT_EQ(g_alive.size(), made + 2);
}

TEST(PinnedPool, WhatWentWithItsContextIsNotUsedAgain) {
    PinnedPool pool;
    const Execution execution = driver();
    void* const gone = taken(pool, execution, kContext, 64);
    pool.give_back(gone);
    g_alive[gone] = ++g_last;  // is the job's now
    void* const fresh = taken(pool, execution, kContext, 64);
    EXPECT_NE(fresh, gone);
    int own = 0;
    pool.give_back(&own);  // not of the pool
    pool.give_back(fresh);
    EXPECT_EQ(taken(pool, execution, kContext, 64), fresh);
}

TEST(PinnedPool, WithoutAWayToAskEachBlockIsNew) {
    PinnedPool pool;
    Execution execution = driver();
    execution.PointerGetAttribute = nullptr;
    void* const first = taken(pool, execution, kContext, 64);
    pool.give_back(first);
    EXPECT_NE(taken(pool, execution, kContext, 64), first);
    execution.MemHostAlloc = [](void**, std::size_t, unsigned) -> int { return 2; };
    void* memory = nullptr;
    EXPECT_EQ(pool.take(execution, kContext, 64, memory), 2);
}

}  // namespace
}  // namespace deft::cuda
