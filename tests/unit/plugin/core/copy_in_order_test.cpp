// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/copy_in_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/component/plugin/flag_reader.h"
#include "tests/sanitizers.h"

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

TEST_P(CopyInOrder, AFlagNeverComesBeforeItsLine) {
#ifdef TEST_THREAD_SANITIZER
    GTEST_SKIP() << "two threads at one place on purpose";
#endif
    constexpr std::size_t kBytes = 32768;
    constexpr std::uint64_t kRounds = 300;
    std::vector<std::uint64_t> from(kBytes / sizeof(std::uint64_t));
    FlagReader gpu(kBytes, kRounds);
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
        std::fill(from.begin(), from.end(), round);
        copy_in_order(GetParam(), gpu.data(), reinterpret_cast<const std::byte*>(from.data()),
                      kBytes);
        ASSERT_TRUE(gpu.wait(round));
    }
    EXPECT_EQ(gpu.early(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Ways, CopyInOrder,
                         ::testing::Values(OrderedCopy::Avx, OrderedCopy::Sse,
                                           OrderedCopy::Fences));

}  // namespace
}  // namespace deft::net::testing
