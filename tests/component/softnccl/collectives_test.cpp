// SPDX-License-Identifier: Apache-2.0
// Results of every collective, type and operation against a reference computed in double.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include "tests/component/softnccl/ranks.h"
#include "tests/component/softnccl/values.h"

namespace softdev::test {
namespace {

// A contribution that every type holds exactly, and whose sums and products over 4 ranks it holds
// too.
double value_at(int rank, size_t index) {
    return static_cast<double>((index * 7 + static_cast<size_t>(rank) * 3) % 3) + 1;
}

std::vector<std::byte> encode(ncclDataType_t type, size_t count,
                              const std::function<double(size_t)>& value) {
    std::vector<std::byte> bytes(count * size_of(type));
    for (size_t i = 0; i < count; ++i) {
        put(type, bytes.data() + i * size_of(type), value(i));
    }
    return bytes;
}

double combine(ncclRedOp_t op, ncclDataType_t type, int nranks,
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
double tolerance(ncclRedOp_t op, ncclDataType_t type, int nranks, double expected) {
    const bool inexact = op == ncclAvg || type == ncclFloat8e4m3 || type == ncclFloat8e5m2;
    return inexact ? 2.0 * (nranks + 1) * unit_roundoff(type) * std::abs(expected) : 0;
}

void expect_values(ncclDataType_t type, const std::vector<std::byte>& got, size_t offset,
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

double exact(double) {
    return 0;
}

struct Setting {
    const char* algorithm;
    const char* protocol;
    friend void PrintTo(const Setting& s, std::ostream* out) {
        *out << s.algorithm << " " << s.protocol;
    }
};

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

const std::vector<ncclRedOp_t> kOps{ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};

TEST_P(Collectives, ReductionsOfEveryTypeAndOperation) {
    run_ranks(nranks(), [&](Rank& self) {
        for (const ncclDataType_t type : all_types()) {
            for (const ncclRedOp_t op : kOps) {
                for (const size_t count : {size_t{1}, size_t{333}}) {
                    const std::string what =
                        "type " + std::to_string(type) + " op " + std::to_string(op) + " count " +
                        std::to_string(count) + " rank " + std::to_string(self.rank);
                    const auto total = [&](size_t i) {
                        return combine(op, type, self.nranks,
                                       [&](int rank) { return value_at(rank, i); });
                    };
                    const auto allowed = [&](double v) {
                        return tolerance(op, type, self.nranks, v);
                    };
                    const auto own =
                        encode(type, count, [&](size_t i) { return value_at(self.rank, i); });
                    Device<std::byte> send(own), receive(own.size());

                    NC(ncclAllReduce(send.get(), receive.get(), count, type, op, self.comm,
                                     self.nccl_stream()));
                    self.sync();
                    expect_values(type, receive.host(), 0, count, total, allowed,
                                  "AllReduce " + what);
                    NC(ncclAllReduce(send.get(), send.get(), count, type, op, self.comm,
                                     self.nccl_stream()));
                    self.sync();
                    EXPECT_EQ(send.host(), receive.host()) << what;

                    send.set(own);
                    const int root = self.nranks - 1;
                    NC(ncclReduce(send.get(), self.rank == root ? receive.get() : nullptr, count,
                                  type, op, root, self.comm, self.nccl_stream()));
                    self.sync();
                    if (self.rank == root) {
                        expect_values(type, receive.host(), 0, count, total, allowed,
                                      "Reduce " + what);
                    }

                    const auto blocks = encode(type, count * self.nranks,
                                               [&](size_t i) { return value_at(self.rank, i); });
                    Device<std::byte> all(blocks);
                    const auto part = [&](size_t i) { return total(count * self.rank + i); };
                    NC(ncclReduceScatter(all.get(), receive.get(), count, type, op, self.comm,
                                         self.nccl_stream()));
                    self.sync();
                    expect_values(type, receive.host(), 0, count, part, allowed,
                                  "ReduceScatter " + what);
                    std::byte* own_part = all.get() + count * size_of(type) * self.rank;
                    NC(ncclReduceScatter(all.get(), own_part, count, type, op, self.comm,
                                         self.nccl_stream()));
                    self.sync();
                    expect_values(type, all.host(), count * self.rank, count, part, allowed,
                                  "in place " + what);
                }
            }
        }
    });
}

TEST_P(Collectives, CopiesOfEveryType) {
    run_ranks(nranks(), [&](Rank& self) {
        const int n = self.nranks;
        for (const ncclDataType_t type : all_types()) {
            const size_t count = 517;
            const size_t bytes = count * size_of(type);
            const auto own = encode(type, count, [&](size_t i) { return value_at(self.rank, i); });
            Device<std::byte> one(own), one_more(bytes), all(bytes * n), all_more(bytes * n);
            const auto of = [&](int rank) {
                return [rank](size_t i) { return value_at(rank, i); };
            };

            for (int root = 0; root < n; ++root) {
                NC(ncclBroadcast(self.rank == root ? one.get() : nullptr, one_more.get(), count,
                                 type, root, self.comm, self.nccl_stream()));
                self.sync();
                expect_values(type, one_more.host(), 0, count, of(root), exact, "Broadcast");
            }
            one_more.set(own);
            NC(ncclBcast(one_more.get(), count, type, 0, self.comm, self.nccl_stream()));
            NC(ncclAllGather(one.get(), all.get(), count, type, self.comm, self.nccl_stream()));
            self.sync();
            expect_values(type, one_more.host(), 0, count, of(0), exact, "Bcast");
            for (int rank = 0; rank < n; ++rank) {
                expect_values(type, all.host(), count * rank, count, of(rank), exact, "AllGather");
            }
            all_more.set(all.host());
            NC(ncclAllGather(all_more.get() + bytes * self.rank, all_more.get(), count, type,
                             self.comm, self.nccl_stream()));
            self.sync();
            EXPECT_EQ(all_more.host(), all.host());

            // Block j of rank r is value_at(r, i + j): what comes back is block r of every rank.
            all.set(encode(type, count * n,
                           [&](size_t i) { return value_at(self.rank, i % count + i / count); }));
            NC(ncclAlltoAll(all.get(), all_more.get(), count, type, self.comm, self.nccl_stream()));
            self.sync();
            for (int rank = 0; rank < n; ++rank) {
                expect_values(
                    type, all_more.host(), count * rank, count,
                    [&](size_t i) { return value_at(rank, i + self.rank); }, exact, "AlltoAll");
            }
            const int root = n / 2;
            const bool at_root = self.rank == root;
            NC(ncclGather(one.get(), at_root ? all_more.get() : nullptr, count, type, root,
                          self.comm, self.nccl_stream()));
            self.sync();
            for (int rank = 0; at_root && rank < n; ++rank) {
                expect_values(type, all_more.host(), count * rank, count, of(rank), exact,
                              "Gather");
            }
            NC(ncclScatter(at_root ? all.get() : nullptr, one_more.get(), count, type, root,
                           self.comm, self.nccl_stream()));
            self.sync();
            expect_values(
                type, one_more.host(), 0, count,
                [&](size_t i) { return value_at(root, i + self.rank); }, exact, "Scatter");
        }
    });
}

TEST_P(Collectives, SizesAroundTheSliceAndChunkBorders) {
    run_ranks(nranks(), [&](Rank& self) {
        const size_t mib = (1 << 20) / sizeof(float);
        for (const size_t count : {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{8191},
                                   size_t{16385}, mib - 1, mib, mib + 1, 3 * mib + 17}) {
            const auto own =
                encode(ncclFloat32, count, [&](size_t i) { return value_at(self.rank, i); });
            Device<std::byte> send(own), receive(own.size()), all(own.size() * self.nranks);
            const auto total = [&](size_t i) {
                return combine(ncclSum, ncclFloat32, self.nranks,
                               [&](int rank) { return value_at(rank, i); });
            };
            NC(ncclAllReduce(send.get(), receive.get(), count, ncclFloat32, ncclSum, self.comm,
                             self.nccl_stream()));
            NC(ncclAllGather(send.get(), all.get(), count, ncclFloat32, self.comm,
                             self.nccl_stream()));
            self.sync();
            const std::string what = "count " + std::to_string(count);
            expect_values(ncclFloat32, receive.host(), 0, count, total, exact, "AllReduce " + what);
            const auto gathered = all.host();
            for (int rank = 0; rank < self.nranks; ++rank) {
                expect_values(
                    ncclFloat32, gathered, count * rank, count,
                    [&](size_t i) { return value_at(rank, i); }, exact, "AllGather " + what);
            }
            NC(ncclReduceScatter(all.get(), receive.get(), count, ncclFloat32, ncclMax, self.comm,
                                 self.nccl_stream()));
            NC(ncclBroadcast(send.get(), send.get(), count, ncclFloat32, self.nranks - 1, self.comm,
                             self.nccl_stream()));
            self.sync();
            expect_values(
                ncclFloat32, send.host(), 0, count,
                [&](size_t i) { return value_at(self.nranks - 1, i); }, exact, "Broadcast " + what);
            expect_values(
                ncclFloat32, receive.host(), 0, count,
                [&](size_t i) { return value_at(self.rank, i); }, exact, "ReduceScatter " + what);
        }
    });
}

TEST_P(Collectives, AllRanksGetTheSameBits) {
    const size_t count = 100003;
    std::vector<std::vector<std::byte>> results(static_cast<size_t>(nranks()));
    for (const ncclDataType_t type : {ncclFloat32, ncclFloat16, ncclBfloat16, ncclFloat8e4m3}) {
        run_ranks(nranks(), [&](Rank& self) {
            std::mt19937 random(static_cast<unsigned>(self.rank) + 1);
            std::normal_distribution<double> values;
            Device<std::byte> data(encode(type, count, [&](size_t) { return values(random); }));
            NC(ncclAllReduce(data.get(), data.get(), count, type, ncclSum, self.comm,
                             self.nccl_stream()));
            self.sync();
            results[static_cast<size_t>(self.rank)] = data.host();
        });
        for (int rank = 1; rank < nranks(); ++rank) {
            EXPECT_EQ(results[0], results[static_cast<size_t>(rank)]) << "rank " << rank;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
    All, Collectives,
    ::testing::Combine(::testing::Values(1, 2, 3, 4),
                       ::testing::Values(Setting{"Ring", "Simple"}, Setting{"Ring", "LL"},
                                         Setting{"Tree", "Simple"}, Setting{"Tree", "LL"})),
    [](const auto& info) {
        return std::to_string(std::get<0>(info.param)) + "ranks" +
               std::get<1>(info.param).algorithm + std::get<1>(info.param).protocol;
    });

TEST(Messages, ExchangeInAGroup) {
    run_ranks(4, [](Rank& self) {
        for (const size_t count : {size_t{0}, size_t{1}, size_t{1000}, size_t{300001}}) {
            std::vector<int> out(count, self.rank), in(count, -1);
            std::vector<std::unique_ptr<Device<int>>> sends, receives;
            NC(ncclGroupStart());
            for (int peer = 0; peer < self.nranks; ++peer) {
                sends.push_back(
                    std::make_unique<Device<int>>(std::vector<int>(count, self.rank * 10 + peer)));
                receives.push_back(std::make_unique<Device<int>>(in));
                NC(ncclSend(sends.back()->get(), count, ncclInt32, peer, self.comm,
                            self.nccl_stream()));
                NC(ncclRecv(receives.back()->get(), count, ncclInt32, peer, self.comm,
                            self.nccl_stream()));
            }
            NC(ncclGroupEnd());
            self.sync();
            for (int peer = 0; peer < self.nranks; ++peer) {
                EXPECT_EQ(receives[static_cast<size_t>(peer)]->host(),
                          std::vector<int>(count, peer * 10 + self.rank));
            }
        }
    });
}

TEST(Messages, KeepTheirOrderBetweenTwoRanks) {
    run_ranks(2, [](Rank& self) {
        Device<int> a(std::vector<int>(50000, 1)), b(std::vector<int>(70000, 2));
        if (self.rank == 0) {
            NC(ncclGroupStart());
            NC(ncclSend(a.get(), 50000, ncclInt32, 1, self.comm, self.nccl_stream()));
            NC(ncclSend(b.get(), 70000, ncclInt32, 1, self.comm, self.nccl_stream()));
            NC(ncclGroupEnd());
            self.sync();
        } else {
            Device<int> x(50000), y(70000);
            NC(ncclRecv(x.get(), 50000, ncclInt32, 0, self.comm, self.nccl_stream()));
            NC(ncclRecv(y.get(), 70000, ncclInt32, 0, self.comm, self.nccl_stream()));
            self.sync();
            EXPECT_EQ(x.host(), std::vector<int>(50000, 1));
            EXPECT_EQ(y.host(), std::vector<int>(70000, 2));
        }
    });
}

TEST(Messages, ToItselfNeedAPartner) {
    run_ranks(1, [](Rank& self) {
        Device<int> a(std::vector<int>(10, 4)), b(10);
        EXPECT_EQ(ncclSend(a.get(), 10, ncclInt32, 0, self.comm, self.nccl_stream()),
                  ncclInvalidUsage);
        NC(ncclGroupStart());
        NC(ncclSend(a.get(), 10, ncclInt32, 0, self.comm, self.nccl_stream()));
        NC(ncclRecv(b.get(), 10, ncclInt32, 0, self.comm, self.nccl_stream()));
        NC(ncclGroupEnd());
        self.sync();
        EXPECT_EQ(b.host(), std::vector<int>(10, 4));
    });
}

TEST(UserReductions, MultiplyBeforeTheSum) {
    run_ranks(3, [](Rank& self) {
        const size_t count = 1000;
        std::vector<float> own(count, static_cast<float>(self.rank + 1));
        Device<float> data(own), result(count);
        float factor = static_cast<float>(self.rank + 2);
        ncclRedOp_t immediate;
        NC(ncclRedOpCreatePreMulSum(&immediate, &factor, ncclFloat32, ncclScalarHostImmediate,
                                    self.comm));
        factor = 100;  // read before the call returned
        NC(ncclGroupStart());
        NC(ncclAllReduce(data.get(), result.get(), count, ncclFloat32, immediate, self.comm,
                         self.nccl_stream()));
        NC(ncclRedOpDestroy(immediate, self.comm));  // allowed before the group ends
        NC(ncclGroupEnd());
        self.sync();
        EXPECT_EQ(result.host(), std::vector<float>(count, 1 * 2 + 2 * 3 + 3 * 4));

        Device<float> scalar(std::vector<float>{0.5f});
        ncclRedOp_t later;
        NC(ncclRedOpCreatePreMulSum(&later, scalar.get(), ncclFloat32, ncclScalarDevice,
                                    self.comm));
        scalar.set({2.0f});
        NC(ncclReduceScatter(data.get(), result.get(), count / 3, ncclFloat32, later, self.comm,
                             self.nccl_stream()));
        self.sync();
        EXPECT_EQ(result.host()[0], 2 * (1 + 2 + 3));
        EXPECT_EQ(ncclAllReduce(data.get(), data.get(), count, ncclFloat64, later, self.comm,
                                self.nccl_stream()),
                  ncclInvalidArgument);
        NC(ncclRedOpDestroy(later, self.comm));
        EXPECT_EQ(ncclRedOpDestroy(later, self.comm), ncclInvalidArgument);
        EXPECT_EQ(ncclRedOpDestroy(ncclSum, self.comm), ncclInvalidArgument);
        EXPECT_EQ(ncclAllReduce(data.get(), data.get(), count, ncclFloat32, later, self.comm,
                                self.nccl_stream()),
                  ncclInvalidArgument);
    });
}

TEST(Order, HoldsOverStreamsOfOneCommunicator) {
    run_ranks(2, [](Rank& self) {
        CUstream other = nullptr;
        CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
        const size_t count = 200000;
        Device<int> data(std::vector<int>(count, 1));
        // Each doubles what the one before left, alternating streams.
        for (int i = 0; i < 6; ++i) {
            NC(ncclAllReduce(
                data.get(), data.get(), count, ncclInt32, ncclSum, self.comm,
                i % 2 == 0 ? self.nccl_stream() : reinterpret_cast<cudaStream_t>(other)));
        }
        CU(cuStreamSynchronize(other));
        self.sync();
        EXPECT_EQ(data.host(), std::vector<int>(count, 64));
        CU(cuStreamDestroy(other));
    });
}

TEST(Group, SeveralCollectivesAndStreamsInOne) {
    run_ranks(2, [](Rank& self) {
        CUstream other = nullptr;
        CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
        Device<int> a(std::vector<int>(1000, 1)), b(std::vector<int>(100000, 2)),
            c(std::vector<int>(10, self.rank));
        NC(ncclGroupStart());
        NC(ncclAllReduce(a.get(), a.get(), 1000, ncclInt32, ncclSum, self.comm,
                         self.nccl_stream()));
        NC(ncclGroupStart());
        NC(ncclAllReduce(b.get(), b.get(), 100000, ncclInt32, ncclSum, self.comm,
                         reinterpret_cast<cudaStream_t>(other)));
        NC(ncclGroupEnd());
        EXPECT_EQ(a.host(), std::vector<int>(1000, 1)) << "started before the outermost end";
        NC(ncclBroadcast(c.get(), c.get(), 10, ncclInt32, 1, self.comm, self.nccl_stream()));
        NC(ncclGroupEnd());
        CU(cuStreamSynchronize(other));
        self.sync();
        EXPECT_EQ(a.host(), std::vector<int>(1000, 2));
        EXPECT_EQ(b.host(), std::vector<int>(100000, 4));
        EXPECT_EQ(c.host(), std::vector<int>(10, 1));
        CU(cuStreamDestroy(other));
    });
}

}  // namespace
}  // namespace softdev::test
