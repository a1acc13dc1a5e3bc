// SPDX-License-Identifier: Apache-2.0
// What NCCL has since 2.28 that the software device does, or refuses as NCCL does without the
// hardware.
#include <cstdint>

#include "tests/component/softdev/nccl/ranks.h"

extern "C" {
#if NCCL_VERSION_CODE < 22900
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void** pointer);
ncclResult_t ncclSignal(int peer, int signal, int context, unsigned int flags, ncclComm_t comm,
                        cudaStream_t stream);
#endif
#if NCCL_VERSION_CODE < 22907
typedef int ncclCommMemStat_t;
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t ncclCommResume(ncclComm_t comm);
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t which, uint64_t* value);
#endif
// Of nccl_device.h.
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void** pointer);
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void** pointer);
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const void* wanted, void* made);
}

namespace softdev::test {
namespace {

constexpr int kSuspendMemory = 1;
constexpr int kSuspended = 1;
constexpr int kTotal = 3;

uint64_t statistic(ncclComm_t comm, int which) {
    uint64_t value = ~uint64_t{0};
    EXPECT_EQ(ncclCommMemStats(comm, static_cast<ncclCommMemStat_t>(which), &value), ncclSuccess);
    return value;
}

TEST(Suspend, RefusesCallsUntilItIsResumed) {
    run_ranks(3, [](Rank& self) {
        expect_sum(self, self.comm, 3);
        EXPECT_EQ(ncclCommResume(self.comm), ncclInvalidUsage) << "it is not suspended";
        for (int times = 0; times < 2; ++times) {
            EXPECT_GT(statistic(self.comm, kTotal), 0u) << "it has buffers";
            EXPECT_EQ(statistic(self.comm, kSuspended), 0u);
            NC(ncclCommSuspend(self.comm, kSuspendMemory));
            EXPECT_EQ(statistic(self.comm, kSuspended), 1u);
            Device<int> data(std::vector<int>(10, 1));
            EXPECT_EQ(ncclAllReduce(data.get(), data.get(), 10, ncclInt32, ncclSum, self.comm,
                                    self.nccl_stream()),
                      ncclInvalidUsage);
            EXPECT_EQ(ncclCommSuspend(self.comm, kSuspendMemory), ncclInvalidUsage) << "twice";
            NC(ncclCommResume(self.comm));
            expect_sum(self, self.comm, 3);
        }
    });
}

TEST(Suspend, NothingIsAskedForNothing) {
    run_ranks(2, [](Rank& self) {
        NC(ncclCommSuspend(self.comm, 0));
        expect_sum(self, self.comm, 2);
        EXPECT_EQ(ncclCommMemStats(self.comm, static_cast<ncclCommMemStat_t>(99), nullptr),
                  ncclInvalidArgument);
    });
}

TEST(Suspend, ACommunicatorMayEndSuspended) {
    run_ranks(2, [](Rank& self) {
        expect_sum(self, self.comm, 2);
        NC(ncclCommSuspend(self.comm, kSuspendMemory));
    });
}

TEST(Windows, TellTheirMemoryAndNoPeers) {
    run_ranks(2, [](Rank& self) {
        void* memory = nullptr;
        NC(ncclMemAlloc(&memory, 1 << 16));
        ncclWindow_t window = nullptr;
        NC(ncclCommWindowRegister(self.comm, memory, 1 << 16, &window, NCCL_WIN_COLL_SYMMETRIC));
        void* found = nullptr;
        NC(ncclWinGetUserPtr(self.comm, window, &found));
        EXPECT_EQ(found, memory);
        NC(ncclGetPeerDevicePointer(window, 64, self.rank, &found));
        EXPECT_EQ(found, static_cast<char*>(memory) + 64);
        NC(ncclGetPeerDevicePointer(window, 64, 1 - self.rank, &found));
        EXPECT_EQ(found, nullptr);
        EXPECT_EQ(ncclGetPeerDevicePointer(window, 64, 2, &found), ncclInvalidArgument);
        NC(ncclGetLsaMultimemDevicePointer(window, 0, &found));
        EXPECT_EQ(found, nullptr);
        NC(ncclCommWindowDeregister(self.comm, window));
        EXPECT_EQ(ncclGetLsaMultimemDevicePointer(window, 0, &found), ncclInvalidArgument);
        NC(ncclMemFree(memory));
    });
}

TEST(OneSided, IsRefusedAndChangesNothing) {
    run_ranks(2, [](Rank& self) {
        EXPECT_EQ(ncclSignal(1 - self.rank, 0, 0, 0, self.comm, self.nccl_stream()),
                  ncclInvalidUsage);
        EXPECT_EQ(ncclDevCommCreate(self.comm, nullptr, nullptr), ncclInvalidUsage);
        expect_sum(self, self.comm, 2);
    });
}

}  // namespace
}  // namespace softdev::test
