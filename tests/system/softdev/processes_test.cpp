// SPDX-License-Identifier: Apache-2.0
// One process per rank: results through Socket and through deft's plugin, and what happens when
// ranks die, do not come, or do not fit.
#include <gmock/gmock.h>

#include <chrono>
#include <fstream>
#include <sstream>

#include "softdev/nccl/testing/rank_harness.h"
#include "tests/component/softdev/nccl/ranks.h"

namespace softdev::test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;
using softdev::testing::Options;
using softdev::testing::Process;
using softdev::testing::run_processes;

// Makes the communicator of a process; NULL (with a failure) when that does not work.
Rank join(Process& process, int device) {
    Rank self{process.rank, process.nranks, nullptr, nullptr};
    use_device(device);
    EXPECT_EQ(cuStreamCreate(&self.stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    const ncclUniqueId id = process.unique_id();
    EXPECT_EQ(ncclCommInitRank(&self.comm, process.nranks, id, process.rank), ncclSuccess)
        << ncclGetLastError(nullptr);
    return self;
}

void all_reduce_floats(Rank& self, size_t count) {
    std::vector<float> own(count);
    for (size_t i = 0; i < count; ++i) {
        own[i] = static_cast<float>((i + static_cast<size_t>(self.rank)) % 16);
    }
    Device<float> data(own);
    NC(ncclAllReduce(data.get(), data.get(), count, ncclFloat32, ncclSum, self.comm,
                     self.nccl_stream()));
    self.sync();
    const std::vector<float> got = data.host();
    for (size_t i = 0; i < count; ++i) {
        float expected = 0;
        for (int rank = 0; rank < self.nranks; ++rank) {
            expected += static_cast<float>((i + static_cast<size_t>(rank)) % 16);
        }
        ASSERT_EQ(got[i], expected) << "element " << i << " of " << count;
    }
}

int reduce_and_leave(Process& process, const std::vector<size_t>& counts) {
    Rank self = join(process, process.rank);
    if (self.comm == nullptr) {
        return 2;
    }
    for (const size_t count : counts) {
        all_reduce_floats(self, count);
    }
    EXPECT_EQ(ncclCommDestroy(self.comm), ncclSuccess);
    return 0;
}

ncclResult_t wait_error(ncclComm_t comm) {
    ncclResult_t state = ncclSuccess;
    Process::wait_for(
        [&] {
            EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
            return state != ncclSuccess;
        },
        "asynchronous error");
    return state;
}

std::string read_file(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

TEST(Processes, ReduceOverSocket) {
    for (const int nranks : {2, 3, 5, 8}) {
        const auto outcome = run_processes(nranks, [](Process& p) {
            return reduce_and_leave(p, {0, 1, 1001, (1 << 18) - 1, (1 << 18) + 1});
        });
        EXPECT_TRUE(outcome.good()) << outcome.text();
    }
}

TEST(Processes, ReduceAQuarterOfAGigabyte) {
    const auto outcome =
        run_processes(2, [](Process& p) { return reduce_and_leave(p, {64 << 20}); });
    EXPECT_TRUE(outcome.good()) << outcome.text();
}

TEST(Processes, ReduceThroughDeftsPlugin) {
    const std::string log = ::testing::TempDir() + "softnccl-" + std::to_string(getpid()) + ".log";
    Options options;
    options.environment = {{"NCCL_NET_PLUGIN", SOFTNCCL_TEST_PLUGIN},
                           {"NCCL_DEBUG", "INFO"},
                           {"NCCL_DEBUG_SUBSYS", "INIT,NET"}};
    options.of_rank = {{{"NCCL_DEBUG_FILE", log}}};
    const auto outcome = run_processes(
        2,
        [](Process& p) {
            return reduce_and_leave(p, {1, 1001, 1 << 18, 3 << 20});
        },
        options);
    EXPECT_TRUE(outcome.good()) << outcome.text();
    const std::string text = read_file(log);
    EXPECT_THAT(text, HasSubstr("via NET/"));
    EXPECT_THAT(text, ::testing::Not(HasSubstr("via NET/Socket"))) << "the plugin was not used";
    unlink(log.c_str());
}

TEST(Processes, SeeADeadRank) {
    Options options;
    options.environment = {{"SOFTDEV_NCCL_GRACE", "30"}};
    const auto outcome = run_processes(
        3,
        [](Process& process) {
            Rank self = join(process, process.rank);
            all_reduce_floats(self, 1000);
            process.barrier();
            if (process.rank == 2) {
                raise(SIGKILL);
            }
            Device<float> data(1000);
            ncclAllReduce(data.get(), data.get(), 1000, ncclFloat32, ncclSum, self.comm,
                          self.nccl_stream());
            EXPECT_EQ(wait_error(self.comm), ncclRemoteError);
            // Either the watch over the ranks or the ring's connection to the dead rank says it
            // first.
            const char* connection =
                process.rank == 0 ? "on the connection from rank 2" : "on the connection to rank 2";
            EXPECT_THAT(ncclGetLastError(self.comm),
                        AnyOf(HasSubstr("rank 2 went away"), HasSubstr(connection)));
            // An abort closes connections too: the other one must have heard of rank 2 by then.
            process.set_flag(process.rank);
            process.wait_flag(1 - process.rank);
            EXPECT_EQ(ncclCommAbort(self.comm), ncclSuccess);
            EXPECT_EQ(cuStreamSynchronize(self.stream), CUDA_SUCCESS);
            return 0;
        },
        options);
    EXPECT_EQ(outcome.codes, (std::vector<int>{0, 0, 1000 + SIGKILL})) << outcome.text();
}

TEST(Processes, SurviveADeadRankByShrinking) {
    const auto outcome = run_processes(3, [](Process& process) {
        Rank self = join(process, process.rank);
        all_reduce_floats(self, 1000);
        process.barrier();
        if (process.rank == 1) {
            raise(SIGKILL);
        }
        EXPECT_EQ(wait_error(self.comm), ncclRemoteError);
        int without[] = {1};
        ncclComm_t smaller = nullptr;
        EXPECT_EQ(ncclCommShrink(self.comm, without, 1, &smaller, nullptr, NCCL_SHRINK_ABORT),
                  ncclSuccess)
            << ncclGetLastError(nullptr);
        EXPECT_EQ(ncclCommAbort(self.comm), ncclSuccess);
        if (smaller != nullptr) {
            Rank rest{0, 2, smaller, self.stream};
            EXPECT_EQ(ncclCommUserRank(smaller, &rest.rank), ncclSuccess);
            all_reduce_floats(rest, 5000);
            EXPECT_EQ(ncclCommDestroy(smaller), ncclSuccess);
        }
        return 0;
    });
    EXPECT_EQ(outcome.codes, (std::vector<int>{0, 1000 + SIGKILL, 0})) << outcome.text();
}

TEST(Processes, MeetAtNcclCommId) {
    // Below the ports that the kernel hands out by itself.
    const std::string port = std::to_string(10000 + getpid() % 20000);
    Options options;
    options.environment = {{"NCCL_COMM_ID", "127.0.0.1:" + port}};
    const auto outcome = run_processes(
        2,
        [](Process& process) {
            use_device(process.rank);
            ncclUniqueId id;
            EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);  // each for itself: the same id
            ncclComm_t comm = nullptr;
            EXPECT_EQ(ncclCommInitRank(&comm, 2, id, process.rank), ncclSuccess)
                << ncclGetLastError(nullptr);
            EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
            return 0;
        },
        options);
    EXPECT_TRUE(outcome.good()) << outcome.text();
}

TEST(Processes, ShareADeviceOnlyAsDifferentHosts) {
    for (const bool hosts : {false, true}) {
        Options options;
        if (hosts) {
            options.of_rank = {{{"NCCL_HOSTID", "one"}}, {{"NCCL_HOSTID", "two"}}};
        }
        const auto outcome = run_processes(
            2,
            [hosts](Process& process) {
                use_device(0);
                const ncclUniqueId id = process.unique_id();
                ncclComm_t comm = nullptr;
                EXPECT_EQ(ncclCommInitRank(&comm, 2, id, process.rank),
                          hosts ? ncclSuccess : ncclInvalidUsage);
                process.barrier();
                EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
                return 0;
            },
            options);
        EXPECT_TRUE(outcome.good()) << outcome.text();
    }
}

TEST(Processes, OfTwoVersionsDoNotMeet) {
    Options options;
    options.of_rank = {{}, {{"SOFTDEV_NCCL_VERSION", "22703"}}};
    const auto outcome = run_processes(
        2,
        [](Process& process) {
            use_device(process.rank);
            const ncclUniqueId id = process.unique_id();
            ncclComm_t comm = nullptr;
            EXPECT_EQ(ncclCommInitRank(&comm, 2, id, process.rank), ncclInvalidUsage);
            EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("Mismatched NCCL version"));
            process.barrier();  // the root is a thread of rank 0
            return 0;
        },
        options);
    EXPECT_TRUE(outcome.good()) << outcome.text();
}

TEST(Processes, WriteNcclsLogFile) {
    const std::string log = ::testing::TempDir() + "softnccl-%p-" + std::to_string(getpid());
    Options options;
    options.environment = {{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_FILE", log}};
    const auto outcome = run_processes(
        1,
        [&](Process& process) {
            Rank self = join(process, 0);
            EXPECT_EQ(ncclCommDestroy(self.comm), ncclSuccess);
            const std::string path = ::testing::TempDir() + "softnccl-" + std::to_string(getpid()) +
                                     "-" + std::to_string(getppid());
            const std::string text = read_file(path);
            EXPECT_THAT(text, HasSubstr("NCCL version 2.28.9"));
            EXPECT_THAT(text, HasSubstr("NCCL INFO ncclCommInitRank comm"));
            EXPECT_THAT(text, HasSubstr("Init COMPLETE"));
            unlink(path.c_str());
            return 0;
        },
        options);
    EXPECT_TRUE(outcome.good()) << outcome.text();
}

// The harness itself: a rank that hangs is killed and its stack shown.
TEST(Harness, KillsWhatHangs) {
    Options options;
    options.limit = 5s;
    const auto outcome = run_processes(
        2,
        [](Process& process) {
            if (process.rank == 1) {
                pause();
            }
            return 7;
        },
        options);
    EXPECT_TRUE(outcome.timed_out);
    EXPECT_EQ(outcome.codes, (std::vector<int>{7, 1000 + SIGKILL}));
    EXPECT_THAT(outcome.text(), HasSubstr("rank 1 died of signal 9"));
}

}  // namespace
}  // namespace softdev::test
