// SPDX-License-Identifier: Apache-2.0
// Misuse that one rank can see by itself: stale handles, wrong memory, wrong stream order, groups.
#include <gmock/gmock.h>

#include <barrier>
#include <cstdint>
#include <latch>

#include "tests/component/softdev/nccl/strict.h"

namespace softdev::test {
namespace {

using ::testing::HasSubstr;
using Misuse = Strict;

TEST_F(Misuse, SaysUseOfAFreedCommunicator) {
    run_ranks(1, [](Rank& self) {
        ncclComm_t stale = self.comm;
        NC(ncclCommDestroy(self.comm));
        self.comm = nullptr;
        Device<int> data(10);
        int count = 0;
        EXPECT_EQ(ncclAllReduce(data.get(), data.get(), 10, ncclInt32, ncclSum, stale,
                                self.nccl_stream()),
                  ncclInvalidArgument);
        EXPECT_EQ(ncclCommCount(stale, &count), ncclInvalidArgument);
        EXPECT_EQ(ncclCommDestroy(stale), ncclInvalidArgument);
        EXPECT_EQ(ncclCommAbort(reinterpret_cast<ncclComm_t>(&count)), ncclInvalidArgument);
    });
    EXPECT_EQ(new_reports(), 4u);
    const std::string said = reports();
    EXPECT_THAT(said, HasSubstr("[rank 0] ncclAllReduce: rank 0 of 1: the communicator"));
    EXPECT_THAT(said, HasSubstr("was destroyed or aborted before"));
    EXPECT_THAT(said, HasSubstr("is no communicator"));
}

TEST_F(Misuse, RefusesFreedAndShortMemory) {
    run_ranks(1, [](Rank& self) {
        Device<int> data(10);
        EXPECT_NE(ncclAllReduce(data.get(), data.get(), 11, ncclInt32, ncclSum, self.comm,
                                self.nccl_stream()),
                  ncclSuccess);
        abort(self);
    });
    EXPECT_GE(new_reports(), 1u);
}

// Before anything is made of them: a wrapped byte count would pass, a large one fill the memory.
TEST_F(Misuse, RefusesCountsThatNoMemoryHolds) {
    run_ranks(1, [](Rank& self) {
        Device<float> data(10);
        for (const size_t count : {SIZE_MAX, size_t{1} << 62, size_t{1} << 61}) {
            EXPECT_EQ(ncclAllReduce(data.get(), data.get(), count, ncclFloat32, ncclSum, self.comm,
                                    self.nccl_stream()),
                      ncclInvalidArgument)
                << count;
        }
        expect_sum(self, self.comm, 1);
        EXPECT_EQ(ncclAllReduce(data.get(), data.get(), size_t{1} << 60, ncclFloat32, ncclSum,
                                self.comm, self.nccl_stream()),
                  ncclInvalidArgument);
        abort(self);
    });
    const std::string said = reports();
    EXPECT_THAT(said, HasSubstr("ncclAllReduce(count=1152921504606846976, float32, sum) runs "
                                "past the end"));
    EXPECT_THAT(said, HasSubstr("count 18446744073709551615 of float32 is more than memory can "
                                "hold"));
}

TEST_F(Misuse, SaysBuffersThatOverlap) {
    run_ranks(2, [](Rank& self) {
        Device<float> data(100);
        float* at = data.get();
        const auto stream = self.nccl_stream();
        const int other = 1 - self.rank;
        const auto refused = ncclInvalidUsage;
        EXPECT_EQ(ncclAllReduce(at, at + 1, 10, ncclFloat32, ncclSum, self.comm, stream), refused);
        EXPECT_EQ(ncclAllGather(at + 10 * other, at, 10, ncclFloat32, self.comm, stream), refused);
        EXPECT_EQ(
            ncclReduceScatter(at, at + 10 * other, 10, ncclFloat32, ncclSum, self.comm, stream),
            refused);
        EXPECT_EQ(ncclAlltoAll(at, at, 10, ncclFloat32, self.comm, stream), refused);
        // In place, side by side, and where a rank does not touch the buffer.
        NC(ncclAllGather(at + 10 * self.rank, at, 10, ncclFloat32, self.comm, stream));
        NC(ncclReduceScatter(at, at + 10 * self.rank, 10, ncclFloat32, ncclSum, self.comm, stream));
        NC(ncclAllReduce(at, at + 10, 10, ncclFloat32, ncclSum, self.comm, stream));
        NC(ncclBroadcast(self.rank == 0 ? at : at + 3, at, 10, ncclFloat32, 0, self.comm, stream));
        NC(ncclGather(at + 10 * self.rank, at, 10, ncclFloat32, 1, self.comm, stream));
        self.sync();
    });
    EXPECT_EQ(new_reports(), 8u);
    EXPECT_THAT(reports(), HasSubstr("ncclAlltoAll: sendbuff"));
}

TEST_F(Misuse, SaysAStreamThatIsNone) {
    run_ranks(1, [](Rank& self) {
        Device<float> data(10);
        CUstream gone = nullptr;
        CU(cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
        CU(cuStreamDestroy(gone));
        EXPECT_EQ(ncclAllReduce(data.get(), data.get(), 10, ncclFloat32, ncclSum, self.comm,
                                reinterpret_cast<cudaStream_t>(gone)),
                  ncclUnhandledCudaError);
        expect_sum(self, self.comm, 1);
    });
    EXPECT_EQ(new_reports(), 1u);
    EXPECT_THAT(reports(), HasSubstr("is no stream, or a destroyed one"));
}

// Two ranks that wait for each other in different calls: both calls are named.
TEST_F(Misuse, NamesTheCallsThatWaitForConnections) {
    run_ranks(2, [](Rank& self) {
        Device<float> data(10);
        EXPECT_EQ(self.rank == 0
                      ? ncclSend(data.get(), 10, ncclFloat32, 1, self.comm, self.nccl_stream())
                      : ncclAllReduce(data.get(), data.get(), 10, ncclFloat32, ncclSum, self.comm,
                                      self.nccl_stream()),
                  ncclRemoteError);
        abort(self);
    });
    const std::string said = reports();
    EXPECT_THAT(said, HasSubstr("now in ncclSend(count=10, float32, root=1)"));
    EXPECT_THAT(said, HasSubstr("now in ncclAllReduce(count=10, float32, sum)"));
}

TEST_F(Misuse, NamesTheRankThatDoesNotSplit) {
    run_ranks(2, [](Rank& self) {
        Device<float> data(10);
        ncclComm_t child = nullptr;
        EXPECT_EQ(self.rank == 0 ? ncclCommSplit(self.comm, 0, 0, &child, nullptr)
                                 : ncclAllReduce(data.get(), data.get(), 10, ncclFloat32, ncclSum,
                                                 self.comm, self.nccl_stream()),
                  ncclRemoteError);
        abort(self);
    });
    const std::string said = reports();
    EXPECT_THAT(said, HasSubstr("ncclCommSplit: "));
    EXPECT_THAT(said, HasSubstr("while waiting for rank 1; this rank: none, now in ncclCommSplit"));
}

TEST_F(Misuse, OfSimulateEndEndsTheGroupToo) {
    run_ranks(2, [](Rank& self) {
        ncclSimInfo_t wrong = NCCL_SIM_INFO_INITIALIZER;
        wrong.magic = 1;
        NC(ncclGroupStart());
        EXPECT_EQ(ncclGroupSimulateEnd(&wrong), ncclInvalidArgument);
        EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
        // What makes communicators is carried out: the handle must not stay unfinished.
        ncclComm_t child = nullptr;
        NC(ncclGroupStart());
        NC(ncclCommSplit(self.comm, 0, self.rank, &child, nullptr));
        ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
        NC(ncclGroupSimulateEnd(&info));
        expect_sum(self, child, 2);
        NC(ncclCommDestroy(child));
    });
}

// As NCCL: without a place for the estimate it is ncclGroupEnd.
TEST_F(Misuse, SimulateEndWithoutInfoLaunches) {
    run_ranks(2, [](Rank& self) {
        Device<int> data(std::vector<int>(1000, 1));
        NC(ncclGroupStart());
        NC(ncclAllReduce(data.get(), data.get(), 1000, ncclInt32, ncclSum, self.comm,
                         self.nccl_stream()));
        NC(ncclGroupSimulateEnd(nullptr));
        self.sync();
        EXPECT_EQ(data.host(), std::vector<int>(1000, 2));
    });
}

TEST_F(Misuse, SaysAGroupThatIsNeverEnded) {
    std::thread([] { ncclGroupStart(); }).join();
    EXPECT_THAT(reports(),
                HasSubstr("a thread ended inside 1 ncclGroupStart without ncclGroupEnd"));
}

TEST_F(Misuse, SaysDestroyInsideAGroup) {
    run_ranks(1, [](Rank& self) {
        Device<int> data(10);
        NC(ncclGroupStart());
        NC(ncclAllReduce(data.get(), data.get(), 10, ncclInt32, ncclSum, self.comm,
                         self.nccl_stream()));
        EXPECT_EQ(ncclCommDestroy(self.comm), ncclInvalidUsage);
        EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    });
    EXPECT_THAT(reports(),
                HasSubstr("ncclCommDestroy inside a group that has 1 calls for this communicator"));
}

TEST_F(Misuse, OfAStaleHandleNamesTheRankThatHeldIt) {
    run_ranks(3, [](Rank& self) {
        ncclComm_t stale = self.comm;
        NC(ncclCommDestroy(self.comm));
        self.comm = nullptr;
        if (self.rank == 2) {
            use_device(0);  // the report is about the communicator, not about this device
            EXPECT_EQ(ncclCommFinalize(stale), ncclInvalidArgument);
            use_device(2);
        }
    });
    EXPECT_EQ(new_reports(), 1u);
    EXPECT_THAT(reports(), HasSubstr("[rank 2] ncclCommFinalize: rank 2 of 3: the communicator"));
}

// The input is still being written on a stream that the collective's stream does not wait for.
TEST_F(Misuse, OfStreamOrderIsSaid) {
    std::latch received(2);  // abort drops what the other rank has not received yet
    run_ranks(2, [&](Rank& self) {
        CUstream other = nullptr;
        CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
        Device<int> data(std::vector<int>(1000, 1));
        NC(ncclAllReduce(data.get(), data.get(), 1000, ncclInt32, ncclSum, self.comm,
                         self.nccl_stream()));
        self.sync();
        received.arrive_and_wait();
        CU(cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(data.get()), 7, 1000, other));
        EXPECT_NE(ncclAllReduce(data.get(), data.get(), 1000, ncclInt32, ncclSum, self.comm,
                                self.nccl_stream()),
                  ncclSuccess);
        abort(self);
        CU(cuStreamSynchronize(other));
        CU(cuStreamDestroy(other));
    });
    const std::string said = reports();
    for (const char* rank : {"[rank 0] ", "[rank 1] "}) {
        EXPECT_THAT(said, HasSubstr(std::string(rank) + "ncclAllReduce(count=1000, int32, sum)"));
    }
    EXPECT_THAT(said, HasSubstr("cuMemsetD32Async"));
}

TEST_F(Misuse, OfGroupEndWithoutStartIsSaid) {
    use_device(0);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    EXPECT_EQ(ncclGroupSimulateEnd(nullptr), ncclInvalidUsage);
    EXPECT_EQ(new_reports(), 2u);
    const std::string said = reports();
    EXPECT_THAT(said, HasSubstr("ncclGroupEnd without ncclGroupStart"));
    EXPECT_THAT(said, HasSubstr("ncclGroupSimulateEnd without ncclGroupStart"));
}

// One rank forgets the end of its group: it is told which calls were lost, the others which rank
// does not come.
TEST_F(Misuse, OfAGroupThatOneRankNeverEndsIsSaidToAll) {
    std::latch gave_up(1);
    run_ranks(2, [&](Rank& self) {
        Device<int> data(1000);
        if (self.rank == 1) {
            CUcontext context = nullptr;
            CU(cuCtxGetCurrent(&context));
            std::thread([&] {
                CU(cuCtxSetCurrent(context));
                NC(ncclGroupStart());
                NC(ncclAllReduce(data.get(), data.get(), 1000, ncclInt32, ncclSum, self.comm,
                                 self.nccl_stream()));
            }).join();
            gave_up.wait();
        } else {
            EXPECT_EQ(ncclAllReduce(data.get(), data.get(), 1000, ncclInt32, ncclSum, self.comm,
                                    self.nccl_stream()),
                      ncclRemoteError);
            gave_up.count_down();
        }
        abort(self);
    });
    const std::string said = reports();
    EXPECT_THAT(said, HasSubstr("[rank 1] nccl: a thread ended inside 1 ncclGroupStart without "
                                "ncclGroupEnd (1 calls dropped)"));
    EXPECT_THAT(said, HasSubstr("[rank 0] nccl: rank 0 of 2"));
    EXPECT_THAT(said, HasSubstr("rank 1: 0 collectives called, last: none"));
}

TEST_F(Misuse, OfAlgorithmsAndProtocolsThatAreNotThereIsSaid) {
    run_ranks(2, [](Rank& self) {
        Device<int> data(std::vector<int>(10, 1));
        const auto reduce = [&] {
            return ncclAllReduce(data.get(), data.get(), 10, ncclInt32, ncclSum, self.comm,
                                 self.nccl_stream());
        };
        static std::barrier all(2, [] {});
        const auto with = [&](const char* variable, const char* value, ncclResult_t expected) {
            all.arrive_and_wait();
            if (self.rank == 0) {
                setenv(variable, value, 1);
            }
            all.arrive_and_wait();
            EXPECT_EQ(reduce(), expected) << variable << "=" << value;
            all.arrive_and_wait();
            if (self.rank == 0) {
                unsetenv(variable);
            }
            all.arrive_and_wait();
        };
        with("NCCL_ALGO", "NVLS,CollnetChain", ncclInvalidUsage);
        with("NCCL_ALGO", "^Ring,Tree", ncclInvalidUsage);
        with("NCCL_PROTO", "^LL,LL128,Simple", ncclInvalidUsage);
        with("NCCL_ALGO", "^Tree", ncclSuccess);
        with("NCCL_ALGO", "allreduce:^ring;broadcast:ring", ncclSuccess);
        with("NCCL_PROTO", "^LL", ncclSuccess);
        self.sync();
        EXPECT_EQ(data.host(), std::vector<int>(10, 8));
    });
}

}  // namespace
}  // namespace softdev::test
