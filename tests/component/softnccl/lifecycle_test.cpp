// SPDX-License-Identifier: Apache-2.0
// Making and ending communicators.
#include <atomic>
#include <chrono>
#include <cstdlib>

#include "tests/component/softnccl/ranks.h"

namespace softdev::test {
namespace {

using namespace std::chrono_literals;

// Polls a nonblocking communicator; the result it comes to.
ncclResult_t wait_ready(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (state == ncclInProgress && std::chrono::steady_clock::now() < until) {
        EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
        std::this_thread::sleep_for(1ms);
    }
    return state;
}

void expect_sum(Rank& self, ncclComm_t comm, int nranks) {
    const size_t count = 1000;
    Device<int> data(std::vector<int>(count, 1));
    NC(ncclAllReduce(data.get(), data.get(), count, ncclInt32, ncclSum, comm, self.nccl_stream()));
    self.sync();
    EXPECT_EQ(data.host(), std::vector<int>(count, nranks));
}

TEST(InitAll, MakesRanksOfOneProcess) {
    use_device(0);
    const int n = 4;
    std::vector<ncclComm_t> comms(n);
    const std::vector<int> devices{3, 1, 0, 2};
    ASSERT_EQ(ncclCommInitAll(comms.data(), n, devices.data()), ncclSuccess)
        << ncclGetLastError(nullptr);
    std::vector<CUstream> streams(n);
    std::vector<std::unique_ptr<Device<int>>> data;
    for (int i = 0; i < n; ++i) {
        int value = -1;
        EXPECT_EQ(ncclCommUserRank(comms[i], &value), ncclSuccess);
        EXPECT_EQ(value, i);
        EXPECT_EQ(ncclCommCuDevice(comms[i], &value), ncclSuccess);
        EXPECT_EQ(value, devices[i]);
        EXPECT_EQ(ncclCommCount(comms[i], &value), ncclSuccess);
        EXPECT_EQ(value, n);
        use_device(devices[i]);
        ASSERT_EQ(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        data.push_back(std::make_unique<Device<int>>(std::vector<int>(5000, i)));
    }
    // One thread drives all ranks: only a group lets their first collective connect.
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (int i = 0; i < n; ++i) {
        ASSERT_EQ(ncclAllReduce(data[i]->get(), data[i]->get(), 5000, ncclInt32, ncclSum, comms[i],
                                reinterpret_cast<cudaStream_t>(streams[i])),
                  ncclSuccess);
    }
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
    for (int i = 0; i < n; ++i) {
        ASSERT_EQ(cuStreamSynchronize(streams[i]), CUDA_SUCCESS);
        use_device(devices[i]);
        EXPECT_EQ(data[i]->host(), std::vector<int>(5000, 6));
        EXPECT_EQ(ncclCommDestroy(comms[i]), ncclSuccess);
        data[i].reset();
        ASSERT_EQ(cuStreamDestroy(streams[i]), CUDA_SUCCESS);
    }
}

TEST(InitAll, RefusesBadDevices) {
    ncclComm_t comms[2];
    const int twice[] = {1, 1};
    EXPECT_EQ(ncclCommInitAll(comms, 2, twice), ncclInvalidUsage);
    const int missing[] = {0, 1000};
    EXPECT_EQ(ncclCommInitAll(comms, 2, missing), ncclInvalidArgument);
    EXPECT_EQ(ncclCommInitAll(comms, 1000, nullptr), ncclInvalidArgument);
}

TEST(InitRank, RefusesBadArguments) {
    use_device(0);
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument);
    EXPECT_EQ(ncclCommInitRank(&comm, 0, id, 0), ncclInvalidArgument);
    EXPECT_EQ(ncclCommInitRank(nullptr, 1, id, 0), ncclInvalidArgument);
    EXPECT_EQ(comm, nullptr);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.minCTAs = 8;
    config.maxCTAs = 4;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument);
    config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 7;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument);
    config = NCCL_CONFIG_INITIALIZER;
    config.magic = 1;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument);
    // An older application's shorter structure: what follows it is not read.
    config = NCCL_CONFIG_INITIALIZER;
    config.size = 24;
    config.version = 21400;
    config.maxCTAs = -5;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

TEST(InitRank, RefusesAnUnknownNetwork) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.netName = "nosuchnet";
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
        threads.emplace_back([&, rank] {
            use_device(rank);
            ncclComm_t comm = nullptr;
            ncclConfig_t own = config;
            EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &own), ncclInvalidUsage);
            EXPECT_EQ(comm, nullptr);
        });
    }
    for (auto& thread : threads) {
        thread.join();
    }
}

TEST(InitRank, FindsRanksOnOneDevice) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
        threads.emplace_back([&, rank] {
            use_device(0);
            ncclComm_t comm = nullptr;
            EXPECT_EQ(ncclCommInitRank(&comm, 2, id, rank), ncclInvalidUsage);
        });
    }
    for (auto& thread : threads) {
        thread.join();
    }
    EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("Duplicate GPU"), std::string::npos);
}

TEST(InitRank, FindsTwoVersionsAndTwoSizes) {
    for (const bool sizes : {false, true}) {
        ncclUniqueId id;
        ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
        std::atomic<int> failed{0};
        std::vector<std::thread> threads;
        for (int rank = 0; rank < 2; ++rank) {
            threads.emplace_back([&, rank] {
                use_device(rank);
                ncclComm_t comm = nullptr;
                failed +=
                    ncclCommInitRank(&comm, sizes ? 2 + rank : 2, id, rank) == ncclInvalidUsage;
            });
            if (!sizes && rank == 0) {
                // The first rank has checked in with its version when the second one comes with
                // another.
                std::this_thread::sleep_for(500ms);
                setenv("SOFTDEV_NCCL_VERSION", "22703", 1);
            }
        }
        for (auto& thread : threads) {
            thread.join();
        }
        unsetenv("SOFTDEV_NCCL_VERSION");
        EXPECT_EQ(failed, 2);
    }
}

TEST(InitRankScalable, TakesSeveralIds) {
    const int n = 4;
    std::vector<ncclUniqueId> ids(3);
    for (auto& id : ids) {
        ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    }
    std::vector<std::thread> threads;
    for (int rank = 0; rank < n; ++rank) {
        threads.emplace_back([&, rank] {
            use_device(rank);
            Rank self{rank, n, nullptr, nullptr};
            CU(cuStreamCreate(&self.stream, CU_STREAM_NON_BLOCKING));
            NC(ncclCommInitRankScalable(&self.comm, n, rank, 3, ids.data(), nullptr));
            expect_sum(self, self.comm, n);
            NC(ncclCommDestroy(self.comm));
            CU(cuStreamDestroy(self.stream));
        });
    }
    for (auto& thread : threads) {
        thread.join();
    }
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRankScalable(&comm, 2, 0, 3, ids.data(), nullptr), ncclInvalidArgument);
}

TEST(Nonblocking, GoesThroughInProgress) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
        threads.emplace_back([&, rank] {
            use_device(rank);
            Rank self{rank, 2, nullptr, nullptr};
            CU(cuStreamCreate(&self.stream, CU_STREAM_NON_BLOCKING));
            ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
            config.blocking = 0;
            ASSERT_EQ(ncclCommInitRankConfig(&self.comm, 2, id, rank, &config), ncclInProgress);
            ASSERT_NE(self.comm, nullptr);
            ASSERT_EQ(wait_ready(self.comm), ncclSuccess);
            Device<int> data(std::vector<int>(1000, 1));
            EXPECT_EQ(ncclAllReduce(data.get(), data.get(), 1000, ncclInt32, ncclSum, self.comm,
                                    self.nccl_stream()),
                      ncclInProgress);
            ASSERT_EQ(wait_ready(self.comm), ncclSuccess);
            self.sync();
            EXPECT_EQ(data.host(), std::vector<int>(1000, 2));
            ncclComm_t child = nullptr;
            EXPECT_EQ(ncclCommSplit(self.comm, 0, rank, &child, nullptr), ncclInProgress);
            ASSERT_EQ(wait_ready(self.comm), ncclSuccess);
            ASSERT_NE(child, nullptr);
            ASSERT_EQ(wait_ready(child), ncclSuccess);
            EXPECT_EQ(ncclCommFinalize(child), ncclInProgress);
            ASSERT_EQ(wait_ready(child), ncclSuccess);
            EXPECT_EQ(ncclCommDestroy(child), ncclSuccess);
            EXPECT_EQ(ncclCommFinalize(self.comm), ncclInProgress);
            ASSERT_EQ(wait_ready(self.comm), ncclSuccess);
            EXPECT_EQ(ncclCommDestroy(self.comm), ncclSuccess);
            CU(cuStreamDestroy(self.stream));
        });
    }
    for (auto& thread : threads) {
        thread.join();
    }
}

TEST(Nonblocking, IsNotReadyWhileInProgress) {
    use_device(0);
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
    int count = 0;
    EXPECT_EQ(ncclCommCount(comm, &count), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(&count, &count, 1, ncclInt32, ncclSum, comm, nullptr),
              ncclInvalidArgument);
    EXPECT_EQ(ncclCommDestroy(comm), ncclInvalidArgument);
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);  // the other rank never came
}

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
    run_ranks(3, [](Rank& self) {
        Device<int> data(std::vector<int>(100000, 1));
        expect_sum(self, self.comm, 3);
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

TEST(Finalize, EndsUseBeforeDestroy) {
    run_ranks(2, [](Rank& self) {
        Device<int> data(std::vector<int>(1000, 1));
        NC(ncclAllReduce(data.get(), data.get(), 1000, ncclInt32, ncclSum, self.comm,
                         self.nccl_stream()));
        NC(ncclCommFinalize(self.comm));
        self.sync();
        EXPECT_EQ(data.host(), std::vector<int>(1000, 2));
        EXPECT_EQ(ncclAllReduce(data.get(), data.get(), 10, ncclInt32, ncclSum, self.comm,
                                self.nccl_stream()),
                  ncclInvalidArgument);
        EXPECT_EQ(ncclCommFinalize(self.comm), ncclInvalidArgument);
    });
}

TEST(Registration, KeepsItsHandles) {
    run_ranks(1, [](Rank& self) {
        void* memory = nullptr;
        NC(ncclMemAlloc(&memory, 8192));
        void* handle = nullptr;
        NC(ncclCommRegister(self.comm, memory, 8192, &handle));
        EXPECT_NE(handle, nullptr);
        NC(ncclCommDeregister(self.comm, handle));
        EXPECT_EQ(ncclCommDeregister(self.comm, handle), ncclInvalidArgument);
        EXPECT_EQ(ncclCommRegister(self.comm, nullptr, 8192, &handle), ncclInvalidArgument);
        ncclWindow_t window = nullptr;
        auto* aligned =
            reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory) + 4095) / 4096 * 4096);
        NC(ncclCommWindowRegister(self.comm, aligned, 1024, &window, NCCL_WIN_COLL_SYMMETRIC));
        NC(ncclCommWindowDeregister(self.comm, window));
        EXPECT_EQ(ncclCommWindowRegister(self.comm, aligned + 1, 100, &window, NCCL_WIN_DEFAULT),
                  ncclInvalidArgument);
        NC(ncclMemFree(memory));
        EXPECT_EQ(ncclMemAlloc(&memory, 0), ncclInvalidArgument);
    });
}

TEST(Group, MakesCommunicatorsOfOneThread) {
    use_device(0);
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    ncclComm_t comms[3] = {};
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (int rank = 0; rank < 3; ++rank) {
        use_device(rank);
        ASSERT_EQ(ncclCommInitRank(&comms[rank], 3, id, rank), ncclSuccess);
    }
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
    for (ncclComm_t comm : comms) {
        EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
    }
}

}  // namespace
}  // namespace softdev::test
