// SPDX-License-Identifier: Apache-2.0
// Making and ending communicators.
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <latch>

#include "tests/component/softdev/nccl/ranks.h"

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
    EXPECT_EQ(ncclCommInitAll(comms, 1000, nullptr), ncclUnhandledCudaError);
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

TEST(InitRank, FindsTwoSizes) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::atomic<int> failed{0};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
        threads.emplace_back([&, rank] {
            use_device(rank);
            ncclComm_t comm = nullptr;
            failed += ncclCommInitRank(&comm, 2 + rank, id, rank) == ncclInvalidUsage;
        });
    }
    for (auto& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(failed, 2);
}

// Runs of ranks meet at one id each; the runs are joined by a ring.
TEST(InitRankScalable, MeetsAtEveryNumberOfIds) {
    for (const int n : {2, 5}) {
        for (int count = 1; count <= n; ++count) {
            std::vector<ncclUniqueId> ids(static_cast<size_t>(count));
            for (auto& id : ids) {
                ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
            }
            std::vector<std::thread> threads;
            for (int rank = 0; rank < n; ++rank) {
                threads.emplace_back([&, rank] {
                    use_device(rank);
                    Rank self{rank, n, nullptr, nullptr};
                    CU(cuStreamCreate(&self.stream, CU_STREAM_NON_BLOCKING));
                    NC(ncclCommInitRankScalable(&self.comm, n, rank, count, ids.data(), nullptr));
                    int value = -1;
                    NC(ncclCommUserRank(self.comm, &value));
                    EXPECT_EQ(value, rank);
                    expect_sum(self, self.comm, n);
                    NC(ncclCommDestroy(self.comm));
                    CU(cuStreamDestroy(self.stream));
                });
            }
            for (auto& thread : threads) {
                thread.join();
            }
        }
    }
    ncclUniqueId ids[3] = {};
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRankScalable(&comm, 2, 0, 3, ids, nullptr), ncclInvalidArgument);
}

// Ranks of an id meet at that id's root and nowhere else: a root whose ranks do not come names
// them, and only them.
TEST(InitRankScalable, EachRootNamesItsOwnRanks) {
    setenv("SOFTDEV_DEADLINE", "3", 1);
    use_device(0);
    ncclUniqueId ids[2];
    ASSERT_EQ(ncclGetUniqueId(&ids[0]), ncclSuccess);
    ASSERT_EQ(ncclGetUniqueId(&ids[1]), ncclSuccess);
    ncclComm_t comm = nullptr;
    // Five ranks at two ids: 0, 1, 2 and 3, 4. Only rank 4 comes.
    EXPECT_EQ(ncclCommInitRankScalable(&comm, 5, 4, 2, ids, nullptr), ncclRemoteError);
    const std::string said = ncclGetLastError(nullptr);
    EXPECT_NE(said.find("ranks 3, 0 did not call ncclCommInitRank"), std::string::npos) << said;
    unsetenv("SOFTDEV_DEADLINE");
}

TEST(Nonblocking, GoesThroughInProgress) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::latch looked(1);  // at the child, before the other rank comes
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
            if (rank != 0) {
                looked.wait();
            }
            EXPECT_EQ(ncclCommSplit(self.comm, 0, rank, &child, nullptr), ncclSuccess);
            if (rank == 0) {
                EXPECT_EQ(child, nullptr) << "NCCL stores the handle when the split is complete";
                looked.count_down();
            }
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

// As CUDA waits before it frees memory: one after the other, the first would wait for the second.
TEST(Group, AbortsAllItsCommunicatorsAtOnce) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::barrier both(2);
    run_ranks(2, [&](Rank& self) {
        ncclComm_t second = nullptr;
        NC(ncclCommInitRank(&second, 2, id, self.rank));
        CUstream other = nullptr;
        ASSERT_EQ(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        Device<int> a(std::vector<int>(1000, 1));
        Device<int> b(std::vector<int>(1000, 1));
        const auto reduce = [&](Device<int>& data, ncclComm_t comm, CUstream stream) {
            NC(ncclAllReduce(data.get(), data.get(), 1000, ncclInt32, ncclSum, comm,
                             reinterpret_cast<cudaStream_t>(stream)));
        };
        reduce(a, self.comm, self.stream);
        reduce(b, second, other);
        self.sync();
        ASSERT_EQ(cuStreamSynchronize(other), CUDA_SUCCESS);
        both.arrive_and_wait();
        if (self.rank == 0) {  // rank 1 does not come
            reduce(a, self.comm, self.stream);
            reduce(b, second, other);
        }
        NC(ncclGroupStart());
        NC(ncclCommAbort(self.comm));
        NC(ncclCommAbort(second));
        NC(ncclGroupEnd());
        self.comm = nullptr;
        EXPECT_EQ(cuStreamQuery(self.stream), CUDA_SUCCESS) << "the abort has waited for it";
        EXPECT_EQ(cuStreamQuery(other), CUDA_SUCCESS);
        both.arrive_and_wait();
        cuStreamDestroy(other);
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
