// SPDX-License-Identifier: Apache-2.0
// Results of every collective, type and operation against a reference computed in double.
#include <random>

#include "tests/component/softdev/nccl/reference.h"

namespace softdev::test {
namespace {

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

INSTANTIATE_TEST_SUITE_P(All, Collectives,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), all_settings()),
                         test_name);

}  // namespace
}  // namespace softdev::test
