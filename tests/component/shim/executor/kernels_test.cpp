// SPDX-License-Identifier: Apache-2.0
// The kernels (here their CPU twins) against the toolkit's own conversions, for every type, odd
// sizes and misaligned addresses. Built against the real driver it tests the PTX the same way.
#include <cmath>
#include <random>

#include "shim/executor/kernels.h"
#include "tests/component/softdev/nccl/ranks.h"
#include "tests/component/softdev/nccl/values.h"

namespace deft::executor::test {
namespace {

using softdev::test::Device;
using softdev::test::get;
using softdev::test::put;
using softdev::test::size_of;

class Kernel : public ::testing::TestWithParam<ncclDataType_t> {
protected:
    void SetUp() override {
        softdev::test::use_device(0);
        ASSERT_EQ(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        CUcontext context = nullptr;
        ASSERT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
        std::string problem;
        ASSERT_NE(cuda::Execution::get(), nullptr);
        ASSERT_TRUE(kernels_.load(*cuda::Execution::get(), reinterpret_cast<cuda::Context>(context),
                                  stream(), problem))
            << problem;
        ASSERT_TRUE(element_of(GetParam(), element_));
    }
    void TearDown() override { cuStreamDestroy(stream_); }

    cuda::Stream stream() const { return reinterpret_cast<cuda::Stream>(stream_); }
    std::vector<std::byte> random(std::size_t count) {
        std::vector<std::byte> bytes(count * size_of(GetParam()));
        for (std::size_t i = 0; i < count; ++i) {
            put(GetParam(), bytes.data() + i * size_of(GetParam()),
                std::ldexp(normal_(engine_), static_cast<int>(engine_() % 12) - 6));
        }
        return bytes;
    }
    double value(const std::vector<std::byte>& bytes, std::size_t i) const {
        return get(GetParam(), bytes.data() + i * size_of(GetParam()));
    }
    // As the kernels define it: float arithmetic but for double, one rounding when stored.
    double rounded(double x) const {
        std::vector<std::byte> one(8);
        put(GetParam(), one.data(), x);
        return get(GetParam(), one.data());
    }
    double number(double x) const { return GetParam() == ncclFloat64 ? x : double(float(x)); }
    static cuda::DevicePointer at(const Device<std::byte>& device, std::size_t offset) {
        return reinterpret_cast<cuda::DevicePointer>(device.get()) + offset;
    }

    CUstream stream_ = nullptr;
    Kernels kernels_;
    Element element_ = Element::F32;
    std::mt19937_64 engine_{11};
    std::normal_distribution<double> normal_;
};

TEST_P(Kernel, AccumulateScalesAndAdds) {
    for (const std::size_t count : {1U, 7U, 1000U, 70001U}) {
        for (const std::size_t skip : {0U, 1U}) {
            const auto a = random(count);
            const auto b = random(count);
            Device<std::byte> to(a);
            Device<std::byte> from(b);
            const std::size_t offset = skip * size_of(GetParam());
            const std::size_t n = count - skip;
            ASSERT_EQ(
                kernels_.accumulate(element_, at(to, offset), at(from, offset), 0.7, n, stream()),
                0);
            ASSERT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
            const auto result = to.host();
            for (std::size_t i = 0; i < count; ++i) {
                const double wanted =
                    i < skip ? value(a, i)
                             : rounded(number(number(number(0.7) * value(a, i)) + value(b, i)));
                ASSERT_EQ(value(result, i), wanted) << i << " of " << count;
            }
        }
    }
}

TEST_P(Kernel, CombineTakesWhatIsThere) {
    for (const std::size_t count : {5U, 4099U, 270001U}) {
        // A large one is written in another way if nothing is added to what is there.
        const int step = count == 270001U ? 3 : 1;
        for (int have = 0; have < 8; have += step) {
            const bool add = (have & 1) != 0;
            const bool has_y = (have & 2) != 0;
            const bool has_z = (have & 4) != 0;
            const auto t = random(count), x = random(count), y = random(count), z = random(count);
            Device<std::byte> dt(t), dx(x), dy(y), dz(z);
            ASSERT_EQ(kernels_.combine(element_, at(dt, 0), at(dx, 0), has_y ? at(dy, 0) : 0,
                                       has_z ? at(dz, 0) : 0, 3, -3.3, 1.1, count, add, stream()),
                      0);
            ASSERT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
            const auto result = dt.host();
            for (std::size_t i = 0; i < count; ++i) {
                double sum = number(number(3) * value(x, i));
                if (has_y) {
                    sum = number(sum + number(number(-3.3) * value(y, i)));
                }
                if (has_z) {
                    sum = number(sum + number(number(1.1) * value(z, i)));
                }
                if (add) {
                    sum = number(value(t, i) + sum);
                }
                ASSERT_EQ(value(result, i), rounded(sum)) << i << " of " << count;
            }
        }
    }
}

TEST_P(Kernel, CorrelateMultipliesAndKeeps) {
    for (const std::size_t count : {1U, 5U, 4099U}) {
        for (int have = 0; have < 4; ++have) {
            const bool has_y = (have & 1) != 0;
            const bool has_z = (have & 2) != 0;
            const auto x = random(count), y = random(count), z = random(count);
            Device<std::byte> dx(x), dy(y), dz(z);
            Device<double> out(std::vector<double>(5, 0.5));
            ASSERT_EQ(
                kernels_.correlate(element_, at(dx, 0), has_y ? at(dy, 0) : 0,
                                   has_z ? at(dz, 0) : 0, at(dz, 0), count,
                                   reinterpret_cast<cuda::DevicePointer>(out.get()), stream()),
                0);
            ASSERT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
            double wanted[5] = {};
            for (std::size_t i = 0; i < count; ++i) {
                const double a = value(x, i);
                const double b = has_y ? value(y, i) : 0;
                const double c = has_z ? value(z, i) : 0;
                const double products[5] = {a * a, a * b, b * b, a * c, c * c};
                for (int n = 0; n < 5; ++n) {
                    wanted[n] += products[n];
                }
            }
            const auto sums = out.host();
            for (int n = 0; n < 5; ++n) {
                EXPECT_NEAR(sums[n], 0.5 + wanted[n], 1e-9 * static_cast<double>(count)) << n;
            }
            EXPECT_TRUE(dz.host() == x) << "it takes the place of what was kept";
        }
    }
}

TEST_P(Kernel, SquareCountsWhatIsNotFinite) {
    const std::size_t count = 50021;
    auto values = random(count);
    double wanted = 0;
    for (std::size_t i = 0; i < count; ++i) {
        if (i % 10007 == 3) {
            put(GetParam(), values.data() + i * size_of(GetParam()),
                i % 2 == 0 ? std::nan("") : -HUGE_VAL);
        } else {
            wanted += value(values, i) * value(values, i);
        }
    }
    Device<std::byte> x(values);
    Device<double> sum(std::vector<double>{1.5});
    Device<std::uint64_t> bad(std::vector<std::uint64_t>{2});
    ASSERT_EQ(
        kernels_.square(element_, at(x, 0), count, reinterpret_cast<cuda::DevicePointer>(sum.get()),
                        reinterpret_cast<cuda::DevicePointer>(bad.get()), stream()),
        0);
    ASSERT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
    EXPECT_NEAR(sum.host()[0], wanted + 1.5, 1e-9 * wanted);
    EXPECT_EQ(bad.host()[0], 2U + 5U);
}

TEST_P(Kernel, SquareOfEveryLengthAndPlace) {
    for (const std::size_t count : {1U, 3U, 4U, 15U, 16U, 17U, 511U, 512U, 513U, 1040U}) {
        for (const std::size_t skip : {0U, 1U}) {
            const std::size_t at_bad[] = {skip, (skip + count) / 2, skip + count - 1};
            for (const std::size_t last_bad : at_bad) {
                // What lies before and behind is not looked at.
                auto values = random(skip + count + 1);
                const auto spoil = [&](std::size_t i, double with) {
                    put(GetParam(), values.data() + i * size_of(GetParam()), with);
                };
                spoil(0, HUGE_VAL);
                spoil(skip + count, HUGE_VAL);
                spoil(last_bad, -std::nan(""));
                double wanted = 0;
                std::uint64_t wanted_bad = 0;
                for (std::size_t i = skip; i < skip + count; ++i) {
                    const double v = value(values, i);
                    wanted += std::isfinite(v) ? v * v : 0;
                    wanted_bad += std::isfinite(v) ? 0 : 1;
                }
                Device<std::byte> x(values);
                Device<double> sum(std::vector<double>{0});
                Device<std::uint64_t> bad(std::vector<std::uint64_t>{0});
                ASSERT_EQ(
                    kernels_.square(element_, at(x, skip * size_of(GetParam())), count,
                                    reinterpret_cast<cuda::DevicePointer>(sum.get()),
                                    reinterpret_cast<cuda::DevicePointer>(bad.get()), stream()),
                    0);
                ASSERT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
                ASSERT_NEAR(sum.host()[0], wanted, 1e-12 * wanted) << count << " from " << skip;
                ASSERT_EQ(bad.host()[0], wanted_bad) << count << " from " << skip;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Types, Kernel,
                         ::testing::Values(ncclFloat32, ncclFloat64, ncclBfloat16, ncclFloat16));

// The software device looks at names alone: it would not see a text that is packed wrongly.
TEST(KernelsPtx, IsUnpackedAsItWas) {
    const std::string ptx =
#include "shim/executor/kernels_ptx.inc"
        ;
    EXPECT_EQ(kernels_ptx(), ptx);
}

}  // namespace
}  // namespace deft::executor::test
