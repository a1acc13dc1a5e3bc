// SPDX-License-Identifier: Apache-2.0
#include "plugin/core/crc32c.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

namespace deft::net {
namespace {

// RFC 3720, appendix B.4, and the check value of the CRC catalogue.
TEST(Crc32c, KnownValues) {
    std::vector<unsigned char> bytes(32, 0);
    EXPECT_EQ(crc32c(0, bytes.data(), bytes.size()), 0x8a9136aaU);
    std::fill(bytes.begin(), bytes.end(), 0xff);
    EXPECT_EQ(crc32c(0, bytes.data(), bytes.size()), 0x62a8ab43U);
    std::iota(bytes.begin(), bytes.end(), 0);
    EXPECT_EQ(crc32c(0, bytes.data(), bytes.size()), 0x46dd794eU);
    EXPECT_EQ(crc32c(0, "123456789", 9), 0xe3069283U);
    EXPECT_EQ(crc32c(0, nullptr, 0), 0U);
}

TEST(Crc32c, InstructionAndTableAgreeWhereverItIsCut) {
    std::mt19937 random(5);
    std::vector<unsigned char> bytes(40000);
    for (unsigned char& each : bytes) {
        each = static_cast<unsigned char>(random());
    }
    for (int i = 0; i < 500; ++i) {
        const std::size_t begin = random() % 9;
        const std::size_t size =
            i < 100 ? static_cast<std::size_t>(i) : random() % (bytes.size() - begin);
        const std::size_t cut = size == 0 ? 0 : random() % size;
        const std::uint32_t whole = crc32c(0, bytes.data() + begin, size);
        EXPECT_EQ(whole, crc32c_by_table(0, bytes.data() + begin, size));
        EXPECT_EQ(whole, crc32c(crc32c(0, bytes.data() + begin, cut), bytes.data() + begin + cut,
                                size - cut));
    }
}

}  // namespace
}  // namespace deft::net
