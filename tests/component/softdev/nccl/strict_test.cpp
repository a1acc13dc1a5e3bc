// SPDX-License-Identifier: Apache-2.0
// Every misuse is said, with rank and call, within a bounded time; and abort releases everything.
#include <gmock/gmock.h>

#include <cstdlib>
#include <latch>

#include "tests/component/softdev/nccl/strict.h"

namespace softdev::test {
namespace {

using ::testing::HasSubstr;

TEST_F(Strict, SaysDifferentSizes) {
    run_ranks(2, [](Rank& self) {
        Device<float> data(2000);
        ncclAllReduce(data.get(), data.get(), self.rank == 0 ? 1000 : 2000, ncclFloat32, ncclSum,
                      self.comm, self.nccl_stream());
        EXPECT_EQ(wait_error(self.comm), ncclInvalidUsage);
        abort(self);
        self.sync();
    });
    const std::string said = reports();
    EXPECT_THAT(said, HasSubstr("[rank 0] nccl: rank 0 of 2 (communicator"));
    EXPECT_THAT(said, HasSubstr("[rank 1] nccl: rank 1 of 2 (communicator"));
    // Which rank's call is named first depends on which came first.
    EXPECT_THAT(said, HasSubstr("call 1 is AllReduce(count="));
    EXPECT_THAT(said, HasSubstr("AllReduce(count=1000, float32, sum)"));
    EXPECT_THAT(said, HasSubstr("AllReduce(count=2000, float32, sum)"));
}

TEST_F(Strict, SaysDifferentOrderTypeOperationAndRoot) {
    struct Case {
        std::function<void(Rank&, void*)> calls[2];
        const char* first;
        const char* second;
    };
    const auto all = [](size_t n, ncclDataType_t type, ncclRedOp_t op) {
        return [=](Rank& r, void* p) { ncclAllReduce(p, p, n, type, op, r.comm, r.nccl_stream()); };
    };
    const auto cast = [](size_t n, int root) {
        return [=](Rank& r, void* p) {
            ncclBroadcast(p, p, n, ncclInt32, root, r.comm, r.nccl_stream());
        };
    };
    const std::vector<Case> cases{
        {{all(64, ncclInt32, ncclSum), cast(64, 0)},
         "AllReduce(count=64, int32, sum)",
         "Broadcast(count=64, int32, root=0)"},
        {{all(64, ncclInt32, ncclSum), all(64, ncclFloat32, ncclSum)}, "int32", "float32"},
        {{all(64, ncclInt32, ncclSum), all(64, ncclInt32, ncclMax)}, "sum", "max"},
        {{cast(64, 0), cast(64, 1)}, "root=0", "root=1"},
        {{all(0, ncclInt32, ncclSum), all(64, ncclInt32, ncclSum)}, "count=0", "count=64"},
    };
    for (const Case& one : cases) {
        run_ranks(2, [&](Rank& self) {
            Device<int> data(64);
            // Connected before, so that the wrong calls reach the streams.
            NC(ncclAllReduce(data.get(), data.get(), 64, ncclInt32, ncclSum, self.comm,
                             self.nccl_stream()));
            one.calls[self.rank](self, data.get());
            EXPECT_EQ(wait_error(self.comm), ncclInvalidUsage);
            abort(self);
            self.sync();
        });
        const std::string said = reports();
        ::testing::internal::CaptureStderr();
        EXPECT_THAT(said, HasSubstr("call 2 is"));
        EXPECT_THAT(said, HasSubstr(one.first));
        EXPECT_THAT(said, HasSubstr(one.second));
    }
    ::testing::internal::GetCapturedStderr();
}

TEST_F(Strict, SaysMessagesOfDifferentSize) {
    run_ranks(2, [](Rank& self) {
        Device<int> data(100);
        if (self.rank == 0) {
            ncclSend(data.get(), 100, ncclInt32, 1, self.comm, self.nccl_stream());
        } else {
            ncclRecv(data.get(), 50, ncclInt32, 0, self.comm, self.nccl_stream());
        }
        EXPECT_EQ(wait_error(self.comm), ncclInvalidUsage);
        abort(self);
        self.sync();
    });
    EXPECT_THAT(
        reports(),
        HasSubstr(
            "message 1 is Send(count=50, int32) on rank 1 and Send(count=100, int32) on rank 0"));
}

TEST_F(Strict, NamesTheRankThatNeverInitialises) {
    use_device(0);
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, 3, id, 1), ncclRemoteError);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("ranks 0, 2 did not call ncclCommInitRank"));
}

TEST_F(Strict, NamesTheRankThatNeverConnects) {
    std::latch gave_up(1);
    run_ranks(2, [&](Rank& self) {
        Device<int> data(1000);
        if (self.rank == 0) {
            EXPECT_EQ(ncclAllReduce(data.get(), data.get(), 1000, ncclInt32, ncclSum, self.comm,
                                    self.nccl_stream()),
                      ncclRemoteError);
            gave_up.count_down();
        } else {
            gave_up.wait();  // stays, but calls nothing
        }
        abort(self);
    });
    const std::string said = reports();
    EXPECT_THAT(said, HasSubstr("[rank 0] nccl: rank 0 of 2"));
    EXPECT_THAT(said, HasSubstr("rank 1: 0 collectives called, last: none"));
}

// In a process of its own: the failed stream breaks the context, as a failed kernel does.
class StuckStream : public Strict {};

TEST_F(StuckStream, NamesTheRankThatDoesNotJoinACollective) {
    std::latch reported(2);
    run_ranks(3, [&](Rank& self) {
        Device<int> data(1000);
        NC(ncclAllReduce(data.get(), data.get(), 1000, ncclInt32, ncclSum, self.comm,
                         self.nccl_stream()));
        self.sync();
        if (self.rank == 2) {
            reported.wait();
        } else {
            NC(ncclBroadcast(data.get(), data.get(), 1000, ncclInt32, 2, self.comm,
                             self.nccl_stream()));
            EXPECT_EQ(wait_error(self.comm), ncclRemoteError);
            EXPECT_NE(cuStreamSynchronize(self.stream), CUDA_SUCCESS)
                << "nobody aborted: the stream has to fail";
            reported.count_down();
        }
        abort(self);
    });
    const std::string said = reports();
    EXPECT_THAT(said, HasSubstr("ncclBroadcast(count=1000, int32, root=2) has not moved for 5 s"));
    EXPECT_THAT(
        said,
        HasSubstr("rank 2: 1 collectives called, last: call 1 AllReduce(count=1000, int32, sum)"));
}

// ---- abort in every state
// ---------------------------------------------------------------------------

class Abort : public Strict {};

// Runs `stuck` on a thread, aborts from this one while that one waits inside the call, and expects
// both to end.
void abort_while(ncclComm_t comm, const std::function<void()>& stuck) {
    std::latch begun(1);
    pid_t id = 0;
    std::thread caller([&] {
        id = gettid();
        begun.count_down();
        stuck();
    });
    begun.wait();
    wait_until_blocked(id);
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
    caller.join();
}

TEST_F(Abort, DuringInitialisation) {
    setenv("SOFTDEV_DEADLINE", "100", 1);
    use_device(0);
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
}

TEST_F(Abort, WhileConnecting) {
    setenv("SOFTDEV_DEADLINE", "100", 1);
    std::latch over(1);
    run_ranks(2, [&](Rank& self) {
        Device<int> data(1000);
        if (self.rank == 0) {
            CUcontext context = nullptr;
            CU(cuCtxGetCurrent(&context));
            abort_while(self.comm, [&] {
                CU(cuCtxSetCurrent(context));
                EXPECT_NE(ncclAllReduce(data.get(), data.get(), 1000, ncclInt32, ncclSum, self.comm,
                                        self.nccl_stream()),
                          ncclSuccess);
            });
            self.comm = nullptr;
            over.count_down();
        } else {
            over.wait();
            abort(self);
        }
    });
}

TEST_F(Abort, WhileACollectiveRuns) {
    setenv("SOFTDEV_DEADLINE", "100", 1);
    std::latch over(1);
    run_ranks(2, [&](Rank& self) {
        Device<int> data(100000);
        NC(ncclAllReduce(data.get(), data.get(), 100000, ncclInt32, ncclSum, self.comm,
                         self.nccl_stream()));
        self.sync();
        if (self.rank == 0) {
            NC(ncclAllReduce(data.get(), data.get(), 100000, ncclInt32, ncclSum, self.comm,
                             self.nccl_stream()));
            abort_while(self.comm, [&] {
                use_device(self.rank);
                EXPECT_EQ(cuStreamSynchronize(self.stream), CUDA_SUCCESS);
            });
            self.comm = nullptr;
            over.count_down();
        } else {
            over.wait();
            abort(self);
        }
    });
}

TEST_F(Abort, WhileDestroyWaits) {
    setenv("SOFTDEV_DEADLINE", "100", 1);
    std::latch over(1);
    run_ranks(2, [&](Rank& self) {
        Device<int> data(100000);
        NC(ncclAllReduce(data.get(), data.get(), 100000, ncclInt32, ncclSum, self.comm,
                         self.nccl_stream()));
        self.sync();
        if (self.rank == 0) {
            NC(ncclAllReduce(data.get(), data.get(), 100000, ncclInt32, ncclSum, self.comm,
                             self.nccl_stream()));
            abort_while(self.comm, [&] { EXPECT_EQ(ncclCommFinalize(self.comm), ncclSuccess); });
            self.comm = nullptr;
            over.count_down();
        } else {
            over.wait();
            abort(self);
        }
    });
}

TEST_F(Abort, WhileSplitting) {
    setenv("SOFTDEV_DEADLINE", "100", 1);
    std::latch over(1);
    run_ranks(2, [&](Rank& self) {
        if (self.rank == 0) {
            ncclComm_t child = nullptr;
            abort_while(self.comm, [&] {
                EXPECT_NE(ncclCommSplit(self.comm, 0, 0, &child, nullptr), ncclSuccess);
            });
            if (child != nullptr) {  // NCCL may leave it, and it is the caller's then
                NC(ncclCommAbort(child));
            }
            self.comm = nullptr;
            over.count_down();
        } else {
            over.wait();
            abort(self);
        }
    });
}

TEST_F(Abort, OfOneRankIsAnErrorForTheOthers) {
    std::latch received(2);  // abort drops what the other rank has not received yet
    run_ranks(2, [&](Rank& self) {
        Device<int> data(100000);
        NC(ncclAllReduce(data.get(), data.get(), 100000, ncclInt32, ncclSum, self.comm,
                         self.nccl_stream()));
        self.sync();
        received.arrive_and_wait();
        if (self.rank == 0) {
            abort(self);
            return;
        }
        ncclAllReduce(data.get(), data.get(), 100000, ncclInt32, ncclSum, self.comm,
                      self.nccl_stream());
        EXPECT_EQ(wait_error(self.comm), ncclRemoteError);
        abort(self);
        self.sync();
    });
}

}  // namespace
}  // namespace softdev::test
