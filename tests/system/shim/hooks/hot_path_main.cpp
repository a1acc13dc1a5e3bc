// SPDX-License-Identifier: Apache-2.0
// One rank of a job in a steady state: what deft's library does inside its gradient calls.
//
// usage: hot_path_main RANK RANKS ID_FILE ITERATIONS forwarding|planned
//   Runs until deft has learned the job (forwarding) or a plan is in force on all ranks (planned),
//   and some more; then ITERATIONS that are watched. Prints what was seen while the communicator
//   was made and in the watched calls, in the words of Witnessed.
#include <cuda.h>
#include <dlfcn.h>
#include <nccl.h>
#include <unistd.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "deft/deft.h"
#include "tests/system/shim/exchange_id.h"
#include "tests/system/shim/hooks/witness.h"

namespace {

using deft::test::Watch;
using deft::test::Witnessed;

constexpr int kMetricEvery = 10;
constexpr int kLearned = 200;           // iterations: the cycle is, and the first calls are timed
constexpr int kSettle = 60;             // and so many under a plan
constexpr unsigned kMostSeconds = 240;  // however slow the machine

void check(int result, const char* what) {
    if (result != 0) {
        std::printf("%s failed: %d\n", what, result);
        std::exit(1);
    }
}

void print(const char* when, const Witnessed& seen) {
    std::printf("%s: allocations=%lu locks=%lu waits=%lu threads=%lu\n", when, seen.allocations,
                seen.locks, seen.waits, seen.threads);
}

// A stream, and memory for so many numbers.
void open_device(std::size_t numbers, CUstream& stream, CUdeviceptr& memory) {
    CUdevice device = 0;
    CUcontext context = nullptr;
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(cuMemAlloc(&memory, numbers * sizeof(float)), "cuMemAlloc");
}

}  // namespace

int main(int argc, char** argv) {
    check(argc != 6, "usage");
    ::alarm(kMostSeconds);  // ends the process, wherever it waits
    const int rank = std::atoi(argv[1]);
    const int ranks = std::atoi(argv[2]);
    const int iterations = std::atoi(argv[4]);
    const bool planned = std::string(argv[5]) == "planned";
    constexpr std::size_t kBuckets[] = {50'001, 70'000};
    constexpr std::size_t kTotal = kBuckets[0] + kBuckets[1];
    CUstream stream = nullptr;
    CUdeviceptr memory = 0;
    open_device(kTotal + 1, stream, memory);
    auto* const data = reinterpret_cast<float*>(memory);
    const CUdeviceptr metric = memory + kTotal * sizeof(float);
    auto* const stats =
        reinterpret_cast<decltype(&deft_stats)>(::dlsym(RTLD_DEFAULT, "deft_stats"));
    check(stats == nullptr || !deft::test::find_libraries(), "deft in the process");

    const ncclUniqueId id = deft::test::exchange_id(rank, argv[3]);
    ncclComm_t comm = nullptr;
    Witnessed making;
    {
        const Watch watch(making);
        check(ncclCommInitRank(&comm, ranks, id, rank), "ncclCommInitRank");
    }
    print("made", making);

    Witnessed calls;
    const auto reduce = [&](float* at, std::size_t count, Witnessed& seen) {
        const Watch watch(seen);
        return ncclAllReduce(at, at, count, ncclFloat, ncclSum, comm, stream);
    };
    Witnessed before;
    int watched_from = -1;
    for (int t = 0; watched_from < 0 || t < watched_from + iterations; ++t) {
        const bool watched = watched_from >= 0 && t >= watched_from;
        Witnessed& seen = watched ? calls : before;
        const auto gradient = static_cast<float>((t + 1) * (rank + 1));
        check(cuMemsetD32Async(memory, std::bit_cast<unsigned>(gradient), kTotal, stream),
              "cuMemsetD32Async");
        check(cuStreamSynchronize(stream), "cuStreamSynchronize");
        ::usleep(500);  // the backward pass, in which one bucket is complete
        check(reduce(data, kBuckets[0], seen), "bucket 0");
        ::usleep(500);
        check(reduce(data + kBuckets[0], kBuckets[1], seen), "bucket 1");
        if (t % kMetricEvery == 0) {
            deft_stats_t now{};
            now.size = sizeof(now);
            check(stats(&now), "deft_stats");
            float ready = (planned ? now.in_force > 0 : t >= kLearned) ? 1 : 0;
            check(cuMemcpyHtoDAsync(metric, &ready, sizeof(ready), stream), "cuMemcpyHtoDAsync");
            check(reduce(data + kTotal, 1, seen), "the metric");
            check(cuMemcpyDtoHAsync(&ready, metric, sizeof(ready), stream), "cuMemcpyDtoHAsync");
            check(cuStreamSynchronize(stream), "cuStreamSynchronize");
            if (watched_from < 0 && ready == static_cast<float>(ranks)) {
                watched_from = t + kSettle;
            }
        }
        check(cuStreamSynchronize(stream), "cuStreamSynchronize");
    }
    print("calls", calls);
    check(ncclCommDestroy(comm), "ncclCommDestroy");
    return 0;
}
