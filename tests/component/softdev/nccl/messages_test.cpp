// SPDX-License-Identifier: Apache-2.0
// Sends and receives, user reductions, and the order of calls over streams and groups.
#include <map>
#include <memory>

#include "tests/component/softdev/nccl/ranks.h"

namespace softdev::test {
namespace {

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
