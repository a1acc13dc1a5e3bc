// SPDX-License-Identifier: Apache-2.0
// Communicators made from others: split, shrink, and after a revoke.
#include <barrier>
#include <latch>

#include "tests/component/softdev/nccl/ranks.h"

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
    std::barrier both(2);
    run_ranks(2, [&both](Rank& self) {
        expect_sum(self, self.comm, 2);
        // A sum may be over here before its last bytes are sent, and those a revoke would keep.
        both.arrive_and_wait();
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

// Until the communicator's operation is over: its result.
ncclResult_t wait_for(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
        std::this_thread::yield();
    }
    return state;
}

// As run_ranks(), with communicators that do not block.
void run_nonblocking(int nranks, const std::function<void(Rank&)>& body) {
    ncclUniqueId id;
    NC(ncclGetUniqueId(&id));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < nranks; ++rank) {
        threads.emplace_back([&, rank] {
            use_device(rank);
            Rank self{rank, nranks, nullptr, nullptr};
            CU(cuStreamCreate(&self.stream, CU_STREAM_NON_BLOCKING));
            ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
            config.blocking = 0;
            ASSERT_EQ(ncclCommInitRankConfig(&self.comm, nranks, id, rank, &config),
                      ncclInProgress);
            ASSERT_EQ(wait_for(self.comm), ncclSuccess);
            body(self);
            EXPECT_EQ(ncclCommAbort(self.comm), ncclSuccess);
            CU(cuStreamDestroy(self.stream));
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

// As NCCL 2.24 to 2.30: the answer is that to the beginning, and the handle comes later.
TEST(Nonblocking, DerivationsAreOnlyBegun) {
    std::latch looked(1);  // at the children, before the others come
    run_nonblocking(3, [&](Rank& self) {
        ncclComm_t split = nullptr;
        ncclComm_t none = nullptr;
        ncclComm_t shrunk = nullptr;
        ncclComm_t grouped = nullptr;
        const auto see_none = [&](const ncclComm_t& child) {
            if (self.rank == 0) {
                EXPECT_EQ(__atomic_load_n(&child, __ATOMIC_ACQUIRE), nullptr);
            }
        };
        if (self.rank != 0) {
            looked.wait();
        }
        EXPECT_EQ(ncclCommSplit(self.comm, 0, self.rank, &split, nullptr), ncclSuccess);
        see_none(split);
        if (self.rank == 0) {
            looked.count_down();
        }
        ASSERT_EQ(wait_for(self.comm), ncclSuccess);
        ASSERT_NE(split, nullptr);
        EXPECT_EQ(
            ncclCommSplit(self.comm, self.rank == 0 ? NCCL_SPLIT_NOCOLOR : 1, 0, &none, nullptr),
            ncclSuccess);
        ASSERT_EQ(wait_for(self.comm), ncclSuccess);
        EXPECT_EQ(none == nullptr, self.rank == 0);
        NC(ncclGroupStart());
        EXPECT_EQ(ncclCommSplit(self.comm, 0, self.rank, &grouped, nullptr), ncclSuccess);
        EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
        ASSERT_EQ(wait_for(self.comm), ncclSuccess);
        ASSERT_NE(grouped, nullptr);
        int without[] = {2};
        if (self.rank != 2) {
            EXPECT_EQ(ncclCommShrink(self.comm, without, 1, &shrunk, nullptr, NCCL_SHRINK_DEFAULT),
                      ncclSuccess);
            ASSERT_EQ(wait_for(self.comm), ncclSuccess);
            ASSERT_NE(shrunk, nullptr);
        }
        for (ncclComm_t child : {split, none, grouped, shrunk}) {
            if (child != nullptr) {
                ASSERT_EQ(wait_for(child), ncclSuccess);
                EXPECT_EQ(ncclCommAbort(child), ncclSuccess);
            }
        }
    });
}

TEST(Split, LeavesAChildThatHasFailedToItsCaller) {
    const auto fail = [](Rank& self, bool share) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.netName = "nosuchnet";
        config.splitShare = share ? 1 : 0;
        ncclComm_t child = nullptr;
        EXPECT_EQ(ncclCommSplit(self.comm, 0, self.rank, &child, &config), ncclInvalidUsage);
        ASSERT_NE(child, nullptr);
        EXPECT_EQ(ncclCommDestroy(child), ncclSuccess);
        expect_sum(self, self.comm, 2);
    };
    for (const bool share : {false, true}) {
        run_ranks(2, [&](Rank& self) { fail(self, share); });
    }
    run_nonblocking(2, [](Rank& self) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.netName = "nosuchnet";
        ncclComm_t child = nullptr;
        EXPECT_EQ(ncclCommSplit(self.comm, 0, self.rank, &child, &config), ncclSuccess);
        EXPECT_EQ(wait_for(self.comm), ncclInvalidUsage);
        ASSERT_NE(child, nullptr);
        EXPECT_EQ(ncclCommAbort(child), ncclSuccess);
    });
}

}  // namespace
}  // namespace softdev::test
