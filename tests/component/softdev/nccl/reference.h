// SPDX-License-Identifier: Apache-2.0
// What collectives should give, computed in double, and the fixture that runs them under one
// algorithm and protocol.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "tests/component/softdev/nccl/ranks.h"
#include "tests/component/softdev/nccl/values.h"

namespace softdev::test {

// A contribution that every type holds exactly, and whose sums and products over 4 ranks it holds
// too.
inline double value_at(int rank, size_t index) {
    return static_cast<double>((index * 7 + static_cast<size_t>(rank) * 3) % 3) + 1;
}

inline std::vector<std::byte> encode(ncclDataType_t type, size_t count,
                                     const std::function<double(size_t)>& value) {
    std::vector<std::byte> bytes(count * size_of(type));
    for (size_t i = 0; i < count; ++i) {
        put(type, bytes.data() + i * size_of(type), value(i));
    }
    return bytes;
}

inline double combine(ncclRedOp_t op, ncclDataType_t type, int nranks,
                      const std::function<double(int)>& value) {
    double result = value(0);
    for (int rank = 1; rank < nranks; ++rank) {
        const double next = value(rank);
        switch (op) {
            case ncclProd:
                result *= next;
                break;
            case ncclMax:
                result = std::max(result, next);
                break;
            case ncclMin:
                result = std::min(result, next);
                break;
            default:
                result += next;
        }
    }
    if (op == ncclAvg) {
        result = is_integer(type) ? std::trunc(result / nranks) : result / nranks;
    }
    return result;
}

// Averages are inexact where the number of ranks is no power of two, and the 8-bit types do not
// hold all sums.
inline double tolerance(ncclRedOp_t op, ncclDataType_t type, int nranks, double expected) {
    const bool inexact = op == ncclAvg || type == ncclFloat8e4m3 || type == ncclFloat8e5m2;
    return inexact ? 2.0 * (nranks + 1) * unit_roundoff(type) * std::abs(expected) : 0;
}

inline void expect_values(ncclDataType_t type, const std::vector<std::byte>& got, size_t offset,
                          size_t count, const std::function<double(size_t)>& expected,
                          const std::function<double(double)>& allowed, const std::string& what) {
    for (size_t i = 0; i < count; ++i) {
        const double is = get(type, got.data() + (offset + i) * size_of(type));
        const double should = expected(i);
        if (!(std::abs(is - should) <= allowed(should))) {
            ADD_FAILURE() << what << ": element " << i << " of " << count << " is " << is
                          << ", not " << should;
            return;
        }
    }
}

inline double exact(double) {
    return 0;
}

struct Setting {
    const char* algorithm;
    const char* protocol;
    friend void PrintTo(const Setting& s, std::ostream* out) {
        *out << s.algorithm << " " << s.protocol;
    }
};

// A number of ranks, an algorithm and a protocol.
class Collectives : public ::testing::TestWithParam<std::tuple<int, Setting>> {
protected:
    void SetUp() override {
        setenv("NCCL_ALGO", std::get<1>(GetParam()).algorithm, 1);
        setenv("NCCL_PROTO", std::get<1>(GetParam()).protocol, 1);
    }
    void TearDown() override {
        unsetenv("NCCL_ALGO");
        unsetenv("NCCL_PROTO");
    }
    int nranks() const { return std::get<0>(GetParam()); }
};

inline std::string test_name(const ::testing::TestParamInfo<std::tuple<int, Setting>>& info) {
    return std::to_string(std::get<0>(info.param)) + "ranks" + std::get<1>(info.param).algorithm +
           std::get<1>(info.param).protocol;
}

inline auto all_settings() {
    return ::testing::Values(Setting{"Ring", "Simple"}, Setting{"Ring", "LL"},
                             Setting{"Ring", "LL128"}, Setting{"Tree", "Simple"},
                             Setting{"Tree", "LL"}, Setting{"Tree", "LL128"});
}

}  // namespace softdev::test
