// SPDX-License-Identifier: Apache-2.0
// What a rank of plan_main waits for, and the ways in which its communicator goes in the middle of
// the job.
#pragma once

#include <cuda.h>
#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace deft::test {

inline void check(int result, const char* what) {
    if (result != 0) {
        std::printf("%s failed: %d\n", what, result);
        std::exit(1);
    }
}

inline float same_everywhere(const float* at, size_t count, const char* what) {
    for (size_t i = 1; i < count; ++i) {
        check(at[i] != at[0], what);
    }
    return at[0];
}

inline std::atomic<bool>& giving_up() {
    static std::atomic<bool> given_up{false};
    return given_up;
}

// Held by whoever calls NCCL, where a thread watches: no call finds the communicator gone.
inline std::recursive_timed_mutex& in_nccl() {
    static std::recursive_timed_mutex mutex;
    return mutex;
}

// The first to call it ends the process, and any other waits for that.
[[noreturn]] inline void give_up(ncclComm_t comm) {
    if (giving_up().exchange(true)) {
        for (;;) {
            ::pause();
        }
    }
    std::printf("lost\n");
    // For good. A call that stands still ends with the abort.
    (void)in_nccl().try_lock_for(std::chrono::seconds(5));
    ncclCommAbort(comm);
    std::exit(0);
}

inline bool failed(ncclComm_t comm) {
    if (giving_up().load()) {
        return true;
    }
    const std::lock_guard lock(in_nccl());
    ncclResult_t error = ncclSuccess;
    return giving_up().load() || ncclCommGetAsyncError(comm, &error) != ncclSuccess ||
           (error != ncclSuccess && error != ncclInProgress);
}

// As a framework's watchdog does: never only waits.
inline void wait(CUstream stream, ncclComm_t comm) {
    for (;;) {
        const CUresult state = cuStreamQuery(stream);
        // After it: what a transfer that failed has left is not looked at.
        if (failed(comm)) {
            give_up(comm);
        }
        if (state == CUDA_SUCCESS) {
            return;
        }
        if (state != CUDA_ERROR_NOT_READY) {
            give_up(comm);
        }
        ::usleep(50);
    }
}

// As PyTorch's watchdog: aborts the communicator when NCCL says that it has failed, wherever the
// job's own thread waits.
inline void watch(ncclComm_t comm) {
    std::thread([comm] {
        while (!failed(comm)) {
            ::usleep(20'000);
        }
        give_up(comm);
    }).detach();
}

inline bool exists(const std::string& path) {
    return ::access(path.c_str(), F_OK) == 0;
}

inline void touch(const std::string& path) {
    std::fclose(std::fopen(path.c_str(), "w"));
}

inline void await(const std::string& path) {
    while (!exists(path)) {
        ::usleep(1000);
    }
}

// Until every rank has come here; one that has died does not.
inline void wait_for_all(int rank, int ranks, const std::string& id_file) {
    touch(id_file + ".over" + std::to_string(rank));
    for (int other = 0; other < ranks; ++other) {
        for (int i = 0; i < 5000 && !exists(id_file + ".over" + std::to_string(other)); ++i) {
            ::usleep(1000);
        }
    }
}

// Rank 1 makes no more calls; rank 0 is in the middle of an iteration when its communicator goes.
inline void stall(int rank, ncclComm_t comm, CUstream stream, float* data, size_t count,
                  const std::string& aborted) {
    if (rank != 0) {
        await(aborted);
        check(ncclCommAbort(comm), "ncclCommAbort");
        return;
    }
    std::atomic<bool> called{false};
    std::thread watchdog([&] {
        while (!called.load()) {
            ::usleep(100);
        }
        check(ncclCommAbort(comm), "ncclCommAbort");
        touch(aborted);
        std::printf("aborted\n");
    });
    check(ncclAllReduce(data, data, count, ncclFloat, ncclSum, comm, stream), "ncclAllReduce");
    called = true;
    watchdog.join();
    while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) {
        ::usleep(100);
    }
}

// What one rank may ask by itself: how long a group would take, without making its call.
inline void simulate(ncclComm_t comm, CUstream stream, float* data, size_t count) {
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    check(ncclGroupStart(), "ncclGroupStart");
    check(ncclAllReduce(data, data, count, ncclFloat, ncclSum, comm, stream), "simulated");
    check(ncclGroupSimulateEnd(&info), "ncclGroupSimulateEnd");
    check(!(info.estimatedTime > 0), "the estimate");
}

// A call that NCCL refuses, for an operation that nobody has made, fails its group, whenever NCCL
// hears of it.
inline void refused(ncclComm_t comm, CUstream stream, float* data, size_t count) {
    check(ncclGroupStart(), "ncclGroupStart");
    (void)ncclAllReduce(data, data, count, ncclFloat, static_cast<ncclRedOp_t>(1000), comm, stream);
    check(ncclGroupEnd() != ncclInvalidArgument, "the group's error");
}

// A lane waits for the last rank, and the job's stream for the lane.
inline void shrink(int rank, int ranks, ncclComm_t comm, CUstream stream, CUdeviceptr memory,
                   size_t first, size_t second, const std::string& file, bool revoke) {
    int gone = ranks - 1;
    if (rank == gone) {
        touch(file + ".called" + std::to_string(rank));  // it has what others still had to send
        await(file + ".shrunk");
        check(ncclCommAbort(comm), "ncclCommAbort");
        return;
    }
    auto* const data = reinterpret_cast<float*>(memory);
    for (int i = 0; i < 2; ++i) {  // with a delay the second one waits for the first
        check(ncclAllReduce(data, data, first, ncclFloat, ncclSum, comm, stream), "first bucket");
        check(ncclAllReduce(data + first, data + first, second, ncclFloat, ncclSum, comm, stream),
              "second bucket");
    }
    touch(file + ".called" + std::to_string(rank));
    for (int other = 0; other < ranks; ++other) {
        await(file + ".called" + std::to_string(other));
    }
    check(cuStreamQuery(stream) != CUDA_ERROR_NOT_READY, "no transfer waits for the last rank");
    ncclComm_t child = nullptr;
    if (revoke) {
        check(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), "ncclCommRevoke");
    }
    check(ncclCommShrink(comm, &gone, 1, &child, nullptr,
                         revoke ? NCCL_SHRINK_DEFAULT : NCCL_SHRINK_ABORT),
          "ncclCommShrink");
    while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) {
        ::usleep(100);
    }
    check(ncclCommDestroy(comm), "ncclCommDestroy");
    std::vector<float> host(first, static_cast<float>(rank + 1));
    check(cuMemcpyHtoD(memory, host.data(), first * sizeof(float)), "cuMemcpyHtoD");
    check(ncclAllReduce(data, data, first, ncclFloat, ncclSum, child, stream), "on the child");
    wait(stream, child);
    check(cuMemcpyDtoH(host.data(), memory, first * sizeof(float)), "cuMemcpyDtoH");
    check(host[0] != static_cast<float>(gone * (gone + 1) / 2), "the child's sum");
    same_everywhere(host.data(), first, "the child's sum");
    check(ncclCommDestroy(child), "ncclCommDestroy");
    touch(file + ".shrunk");
    std::printf("shrunk\n");
}

}  // namespace deft::test
