// SPDX-License-Identifier: Apache-2.0
// A message on its way allocates nothing.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "tests/component/plugin/tcp_pair.h"

namespace {
thread_local bool counting = false;
thread_local std::size_t allocations = 0;
}  // namespace

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // gcc inlines only one half of the pair
#endif

// Replaced for the whole test program: counts what this thread allocates while it is told to.
void* operator new(std::size_t size) {
    allocations += counting ? 1 : 0;
    if (void* memory = std::malloc(size == 0 ? 1 : size)) {
        return memory;
    }
    throw std::bad_alloc();
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
    allocations += counting ? 1 : 0;
    return std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* memory) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}

namespace deft::net::testing {
namespace {

TEST(HotPath, MessagesAllocateNothing) {
    for (const auto& [links, checksum] : {std::pair{1, false}, {2, false}, {1, true}, {2, true}}) {
        ConnectionOptions options;
        options.checksum = checksum;
        TcpPair pair(static_cast<std::size_t>(links), 30 * kSecond, options);
        ASSERT_TRUE(pair.establish());
        std::vector<std::byte> buffer(1 << 20);
        std::vector<std::vector<std::byte>> data;
        for (const std::size_t size : {0, 8, 2048, 5000, 40000, 65536, 100000, 1 << 20}) {
            data.push_back(bytes_of(size, 1));
        }
        std::size_t failed = 0;
        allocations = 0;
        counting = true;
        for (int round = 0; round < 50; ++round) {
            for (const auto& message : data) {
                failed +=
                    pair.transfer(message, buffer) == static_cast<long>(message.size()) ? 0 : 1;
            }
        }
        counting = false;
        EXPECT_EQ(failed, 0U);
        EXPECT_EQ(allocations, 0U) << links << " links";
    }
    // The counter itself works.
    counting = true;
    void* volatile memory = ::operator new(4);
    counting = false;
    ::operator delete(memory);
    EXPECT_GT(allocations, 0U);
}

}  // namespace
}  // namespace deft::net::testing
