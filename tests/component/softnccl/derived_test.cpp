// SPDX-License-Identifier: Apache-2.0
// Communicators made from others: split, shrink, and after a revoke.
#include <latch>

#include "tests/component/softnccl/ranks.h"

namespace softdev::test {
namespace {

TEST(Split, MakesGroupsByColorAndKey) {
    for (const bool share : {false, true}) {
        run_ranks(4, [&](Rank& self) {
            ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
            config.splitShare = share ? 1 : 0;
            ncclComm_t pair = nullptr;
            // Even and odd ranks, in reverse order.
            NC(ncclCommSplit(self.comm, self.rank % 2, -self.rank, &pair, &config));
            int rank = -1;
            int count = 0;
            NC(ncclCommUserRank(pair, &rank));
            NC(ncclCommCount(pair, &count));
            EXPECT_EQ(count, 2);
            EXPECT_EQ(rank, self.rank < 2 ? 1 : 0);
            expect_sum(self, pair, 2);
            expect_sum(self, self.comm, 4);
            ncclComm_t some = nullptr;
            NC(ncclCommSplit(self.comm, self.rank == 3 ? NCCL_SPLIT_NOCOLOR : 5, 0, &some,
                             nullptr));
            EXPECT_EQ(some == nullptr, self.rank == 3);
            if (some != nullptr) {
                expect_sum(self, some, 3);
                NC(ncclCommDestroy(some));
            }
            if (share && self.rank == 0) {
                // The child lives on after its parent.
                NC(ncclCommDestroy(self.comm));
                self.comm = nullptr;
            }
            expect_sum(self, pair, 2);
            NC(ncclCommDestroy(pair));
        });
    }
}

TEST(Split, RefusesBadColors) {
    run_ranks(1, [](Rank& self) {
        ncclComm_t child = nullptr;
        EXPECT_EQ(ncclCommSplit(self.comm, -7, 0, &child, nullptr), ncclInvalidArgument);
        EXPECT_EQ(ncclCommSplit(self.comm, 0, 0, nullptr, nullptr), ncclInvalidArgument);
    });
}

TEST(Shrink, LeavesOutRanks) {
    run_ranks(4, [](Rank& self) {
        int without[] = {1};
        if (self.rank != 1) {
            ncclComm_t child = nullptr;
            NC(ncclCommShrink(self.comm, without, 1, &child, nullptr, NCCL_SHRINK_DEFAULT));
            int rank = -1;
            NC(ncclCommUserRank(child, &rank));
            EXPECT_EQ(rank, self.rank == 0 ? 0 : self.rank - 1);
            expect_sum(self, child, 3);
            NC(ncclCommDestroy(child));
        }
        expect_sum(self, self.comm, 4);
        int itself[] = {self.rank};
        ncclComm_t child = nullptr;
        EXPECT_EQ(ncclCommShrink(self.comm, itself, 1, &child, nullptr, NCCL_SHRINK_DEFAULT),
                  ncclInvalidArgument);
        EXPECT_EQ(ncclCommShrink(self.comm, without, 0, &child, nullptr, NCCL_SHRINK_DEFAULT),
                  ncclInvalidArgument);
    });
}

TEST(Shrink, AbortsWhatRuns) {
    std::latch received(3);  // abort drops what other ranks have not received yet
    run_ranks(3, [&](Rank& self) {
        Device<int> data(std::vector<int>(100000, 1));
        expect_sum(self, self.comm, 3);
        received.arrive_and_wait();
        if (self.rank == 2) {
            // Never takes part in the next operation; leaves the way a failing rank does.
            NC(ncclCommAbort(self.comm));
            self.comm = nullptr;
            return;
        }
        NC(ncclAllReduce(data.get(), data.get(), 100000, ncclInt32, ncclSum, self.comm,
                         self.nccl_stream()));
        int without[] = {2};
        ncclComm_t child = nullptr;
        NC(ncclCommShrink(self.comm, without, 1, &child, nullptr, NCCL_SHRINK_ABORT));
        self.sync();
        expect_sum(self, child, 2);
        NC(ncclCommDestroy(child));
        NC(ncclCommAbort(self.comm));
        self.comm = nullptr;
    });
}

TEST(Revoke, StopsOperationsAndAllowsSplit) {
    run_ranks(2, [](Rank& self) {
        expect_sum(self, self.comm, 2);
        Device<int> data(std::vector<int>(100000, 1));
        if (self.rank == 0) {
            NC(ncclAllReduce(data.get(), data.get(), 100000, ncclInt32, ncclSum, self.comm,
                             self.nccl_stream()));
        }
        NC(ncclCommRevoke(self.comm, NCCL_REVOKE_DEFAULT));
        self.sync();
        EXPECT_EQ(ncclAllReduce(data.get(), data.get(), 10, ncclInt32, ncclSum, self.comm,
                                self.nccl_stream()),
                  ncclInvalidUsage);
        EXPECT_EQ(ncclCommFinalize(self.comm), ncclInvalidUsage);
        ncclComm_t child = nullptr;
        NC(ncclCommSplit(self.comm, 0, self.rank, &child, nullptr));
        expect_sum(self, child, 2);
        NC(ncclCommDestroy(child));
    });
}

}  // namespace
}  // namespace softdev::test
