// SPDX-License-Identifier: Apache-2.0
// Five to eight ranks: fewer sizes than collectives_test.cpp.
#include "tests/component/softdev/nccl/reference.h"

namespace softdev::test {
namespace {

using ManyRanks = Collectives;

TEST_P(ManyRanks, AllReduceOfEveryType) {
    run_ranks(nranks(), [](Rank& self) {
        const size_t count = 129;
        for (const ncclDataType_t type : all_types()) {
            for (const ncclRedOp_t op : {ncclSum, ncclMax, ncclMin, ncclAvg}) {
                Device<std::byte> data(
                    encode(type, count, [&](size_t i) { return value_at(self.rank, i); }));
                NC(ncclAllReduce(data.get(), data.get(), count, type, op, self.comm,
                                 self.nccl_stream()));
                self.sync();
                expect_values(
                    type, data.host(), 0, count,
                    [&](size_t i) {
                        return combine(op, type, self.nranks,
                                       [&](int rank) { return value_at(rank, i); });
                    },
                    [&](double v) { return tolerance(op, type, self.nranks, v); },
                    "type " + std::to_string(type) + " op " + std::to_string(op));
            }
        }
    });
}

TEST_P(ManyRanks, EveryCollective) {
    run_ranks(nranks(), [](Rank& self) {
        const int n = self.nranks;
        const auto ranks = static_cast<size_t>(n);
        const auto own = static_cast<size_t>(self.rank);
        for (const size_t count : {size_t{0}, size_t{1}, size_t{4099}, size_t{150001}}) {
            const auto stream = self.nccl_stream();
            const std::string what = "count " + std::to_string(count) + " ";
            const auto sum = [&](size_t i) {
                double total = 0;
                for (int rank = 0; rank < n; ++rank) {
                    total += value_at(rank, i);
                }
                return total;
            };
            const auto mine = encode(ncclFloat32, count * ranks,
                                     [&](size_t i) { return value_at(self.rank, i); });
            Device<std::byte> send(mine), receive(mine.size());
            NC(ncclAllReduce(send.get(), receive.get(), count, ncclFloat32, ncclSum, self.comm,
                             stream));
            self.sync();
            expect_values(ncclFloat32, receive.host(), 0, count, sum, exact, "AllReduce " + what);
            NC(ncclReduce(send.get(), receive.get(), count, ncclFloat32, ncclSum, n - 2, self.comm,
                          stream));
            self.sync();
            if (self.rank == n - 2) {
                expect_values(ncclFloat32, receive.host(), 0, count, sum, exact, "Reduce " + what);
            }
            NC(ncclReduceScatter(send.get(), receive.get(), count, ncclFloat32, ncclSum, self.comm,
                                 stream));
            self.sync();
            expect_values(
                ncclFloat32, receive.host(), 0, count,
                [&](size_t i) { return sum(own * count + i); }, exact, "ReduceScatter " + what);
            NC(ncclAllGather(send.get(), receive.get(), count, ncclFloat32, self.comm, stream));
            self.sync();
            for (int rank = 0; rank < n; ++rank) {
                expect_values(
                    ncclFloat32, receive.host(), static_cast<size_t>(rank) * count, count,
                    [&](size_t i) { return value_at(rank, i); }, exact, "AllGather " + what);
            }
            NC(ncclAlltoAll(send.get(), receive.get(), count, ncclFloat32, self.comm, stream));
            self.sync();
            for (int rank = 0; rank < n; ++rank) {
                expect_values(
                    ncclFloat32, receive.host(), static_cast<size_t>(rank) * count, count,
                    [&](size_t i) { return value_at(rank, own * count + i); }, exact,
                    "AlltoAll " + what);
            }
            NC(ncclBroadcast(send.get(), receive.get(), count, ncclFloat32, 1, self.comm, stream));
            self.sync();
            expect_values(
                ncclFloat32, receive.host(), 0, count, [&](size_t i) { return value_at(1, i); },
                exact, "Broadcast " + what);
        }
    });
}

INSTANTIATE_TEST_SUITE_P(
    All, ManyRanks,
    ::testing::Combine(::testing::Values(5, 6, 7, 8),
                       ::testing::Values(Setting{"Ring", "Simple"}, Setting{"Ring", "LL"},
                                         Setting{"Tree", "Simple"}, Setting{"Tree", "LL128"})),
    test_name);

}  // namespace
}  // namespace softdev::test
