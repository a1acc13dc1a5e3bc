// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "softdev/cuda/narrow_float.h"
#include "softdev/nccl/reduce.h"
#include "tests/component/softdev/nccl/values.h"

namespace softdev {
namespace {

using namespace nccl;

bool same(float a, float b) {
    return (std::isnan(a) && std::isnan(b)) ||
           std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// Every bit pattern, against the toolkit's conversions.
TEST(NarrowFloat, WidensAsTheToolkitDoes) {
    for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
        const auto u16 = static_cast<uint16_t>(bits);
        ASSERT_TRUE(same(widen(Half{u16}), __half2float(std::bit_cast<__half>(u16)))) << bits;
        ASSERT_TRUE(same(widen(Bfloat{u16}), __bfloat162float(std::bit_cast<__nv_bfloat16>(u16))))
            << bits;
    }
    for (uint32_t bits = 0; bits < 1 << 8; ++bits) {
        const auto u8 = static_cast<uint8_t>(bits);
        __nv_fp8_e4m3 a;
        __nv_fp8_e5m2 b;
        a.__x = u8;
        b.__x = u8;
        ASSERT_TRUE(same(widen(E4m3{u8}), static_cast<float>(a))) << bits;
        ASSERT_TRUE(same(widen(E5m2{u8}), static_cast<float>(b))) << bits;
    }
}

TEST(NarrowFloat, NarrowsAsTheToolkitDoes) {
    std::mt19937 random(7);
    std::vector<uint32_t> patterns;
    for (int i = 0; i < 2000000; ++i) {
        patterns.push_back(static_cast<uint32_t>(random()));
    }
    // Around every value that a narrow type has: ties and their neighbours.
    for (uint32_t high = 0; high < 1 << 16; ++high) {
        for (const uint32_t low :
             {0x0u, 0x1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, 0x1000u, 0x0fffu, 0x1001u}) {
            patterns.push_back(high << 16 | low);
        }
    }
    for (const uint32_t pattern : patterns) {
        const float value = std::bit_cast<float>(pattern);
        if (std::isnan(value)) {
            continue;
        }
        Half half;
        Bfloat bfloat;
        E4m3 e4m3;
        E5m2 e5m2;
        narrow(value, half);
        narrow(value, bfloat);
        narrow(value, e4m3);
        narrow(value, e5m2);
        ASSERT_EQ(half.bits, std::bit_cast<uint16_t>(__float2half_rn(value))) << value;
        ASSERT_EQ(bfloat.bits, std::bit_cast<uint16_t>(__float2bfloat16_rn(value))) << value;
        ASSERT_EQ(e4m3.bits, __nv_fp8_e4m3(value).__x) << value;
        ASSERT_EQ(e5m2.bits, __nv_fp8_e5m2(value).__x) << value;
    }
}

TEST(NarrowFloat, KeepsNan) {
    const float nan = std::nanf("");
    Half half;
    Bfloat bfloat;
    E4m3 e4m3;
    E5m2 e5m2;
    narrow(nan, half);
    narrow(nan, bfloat);
    narrow(nan, e4m3);
    narrow(nan, e5m2);
    EXPECT_TRUE(std::isnan(widen(half)));
    EXPECT_TRUE(std::isnan(widen(bfloat)));
    EXPECT_TRUE(std::isnan(widen(e4m3)));
    EXPECT_TRUE(std::isnan(widen(e5m2)));
}

// The fast conversions of blocks agree with the scalar ones: lengths around the vector width.
TEST(Reduce, HalfBlocksRoundOncePerOperation) {
    std::mt19937 random(3);
    std::uniform_real_distribution<float> values(-30000, 30000);
    for (size_t n : {1u, 7u, 8u, 9u, 1023u, 1024u, 1025u, 3000u}) {
        std::vector<Half> a(n), b(n), out(n);
        for (size_t i = 0; i < n; ++i) {
            narrow(values(random), a[i]);
            narrow(values(random), b[i]);
        }
        const void* inputs[] = {b.data()};
        reduce(make_reduction(ncclSum, ncclFloat16, 2), out.data(), nullptr, a.data(), false,
               inputs, 1, false, n);
        for (size_t i = 0; i < n; ++i) {
            Half expected;
            narrow(widen(a[i]) + widen(b[i]), expected);
            ASSERT_EQ(out[i].bits, expected.bits) << i;
        }
    }
}

TEST(Reduce, IntegersWrapAndAverageTowardsZero) {
    const std::vector<int8_t> a{127, -128, -7, 5};
    const std::vector<int8_t> b{1, -1, 0, 2};
    std::vector<int8_t> out(4), second(4);
    const void* inputs[] = {b.data()};
    reduce(make_reduction(ncclSum, ncclInt8, 2), out.data(), second.data(), a.data(), false, inputs,
           1, true, 4);
    EXPECT_EQ(out, (std::vector<int8_t>{-128, 127, -7, 7}));
    EXPECT_EQ(second, out);
    reduce(make_reduction(ncclAvg, ncclInt8, 2), out.data(), nullptr, a.data(), true, inputs, 1,
           true, 4);
    EXPECT_EQ(out, (std::vector<int8_t>{-64, 63, -3, 3}));
    // More ranks than the type can hold.
    reduce(make_reduction(ncclAvg, ncclInt8, 300), out.data(), nullptr, a.data(), true, inputs, 1,
           true, 4);
    EXPECT_EQ(out, (std::vector<int8_t>{0, 0, 0, 0}));
}

TEST(Reduce, MaxAndMinPreferTheNumber) {
    const float nan = std::nanf("");
    const std::vector<float> a{nan, 1, nan, -0.0f};
    const std::vector<float> b{2, nan, nan, 5};
    std::vector<float> out(4);
    const void* inputs[] = {b.data()};
    reduce(make_reduction(ncclMax, ncclFloat32, 2), out.data(), nullptr, a.data(), false, inputs, 1,
           true, 4);
    EXPECT_EQ(out[0], 2);
    EXPECT_EQ(out[1], 1);
    EXPECT_TRUE(std::isnan(out[2]));
    EXPECT_EQ(out[3], 5);
}

TEST(Reduce, WorksInPlaceOnEitherInput) {
    std::vector<float> a(5000), b(5000);
    for (size_t i = 0; i < a.size(); ++i) {
        a[i] = static_cast<float>(i);
        b[i] = 3;
    }
    const void* inputs[] = {b.data()};
    reduce(make_reduction(ncclSum, ncclFloat32, 2), b.data(), nullptr, a.data(), false, inputs, 1,
           true, a.size());
    reduce(make_reduction(ncclSum, ncclFloat32, 2), a.data(), nullptr, a.data(), false, inputs, 1,
           true, a.size());
    for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_EQ(b[i], static_cast<float>(i) + 3);
        ASSERT_EQ(a[i], 2 * static_cast<float>(i) + 3);
    }
}

}  // namespace
}  // namespace softdev
