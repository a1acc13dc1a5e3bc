// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/copy_in_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace deft::net::testing {
namespace {

class CopyInOrder : public ::testing::TestWithParam<OrderedCopy> {
protected:
    void SetUp() override {
        std::byte to{};
        const std::byte from{};
        if (!copy_in_order(GetParam(), &to, &from, 1)) {
            GTEST_SKIP() << "this processor has no such instructions";
        }
    }
};

TEST_P(CopyInOrder, CopiesEveryByteAndNoOther) {
    std::vector<std::byte> from(700);
    for (std::size_t i = 0; i < from.size(); ++i) {
        from[i] = static_cast<std::byte>(i % 251 + 1);
    }
    for (std::size_t offset = 0; offset < 40; ++offset) {
        for (std::size_t size = 0; size + offset + 1 < from.size(); size += size < 300 ? 1 : 37) {
            std::vector<std::byte> to(from.size() + 64);
            copy_in_order(GetParam(), to.data() + offset, from.data() + 1, size);
            ASSERT_TRUE(std::equal(from.begin() + 1, from.begin() + 1 + static_cast<int>(size),
                                   to.begin() + static_cast<int>(offset)));
            ASSERT_EQ(std::count(to.begin(), to.end(), std::byte{0}),
                      static_cast<std::ptrdiff_t>(to.size() - size));
        }
    }
}

// What a GPU does with LL128: it waits for the flag of a line, then takes what stands before it.
TEST_P(CopyInOrder, AFlagNeverComesBeforeItsLine) {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "two threads at one place on purpose";
#endif
    constexpr std::size_t kWords = 4096;  // of 32 KiB
    constexpr std::size_t kLine = 16;     // words, the last of which is the flag
    constexpr std::uint64_t kRounds = 300;
    struct alignas(128) Buffer {
        std::uint64_t words[kWords] = {};
    };
    const auto from = std::make_unique<Buffer>();
    const auto to = std::make_unique<Buffer>();
    std::atomic<std::uint64_t> taken = 0;
    std::uint64_t early = 0;
    std::thread gpu([&] {
        for (std::uint64_t round = 1; round <= kRounds; ++round) {
            for (std::size_t line = 0; line < kWords; line += kLine) {
                const auto word = [&](std::size_t at) {
                    return std::atomic_ref(to->words[line + at]).load(std::memory_order_acquire);
                };
                while (word(kLine - 1) != round) {
                }
                for (std::size_t at = 0; at < kLine - 1; ++at) {
                    early += word(at) == round ? 0 : 1;
                }
            }
            taken.store(round, std::memory_order_release);
        }
    });
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
        std::fill(std::begin(from->words), std::end(from->words), round);
        copy_in_order(GetParam(), reinterpret_cast<std::byte*>(to->words),
                      reinterpret_cast<const std::byte*>(from->words), sizeof(to->words));
        while (taken.load(std::memory_order_acquire) < round) {
            std::this_thread::yield();
        }
    }
    gpu.join();
    EXPECT_EQ(early, 0U);
}

INSTANTIATE_TEST_SUITE_P(Ways, CopyInOrder,
                         ::testing::Values(OrderedCopy::Avx, OrderedCopy::Sse,
                                           OrderedCopy::Fences));

}  // namespace
}  // namespace deft::net::testing
