// SPDX-License-Identifier: Apache-2.0
// One rank of a data-parallel job whose gradients are known numbers, so that what its updates
// receive can be told apart: iteration t of rank r contributes (t + 1) * (r + 1) in every element.
// Prints "t first second" per iteration: what both buckets held, divided by the sum of r + 1.
//
// usage: plan_main RANK RANKS ID_FILE ITERATIONS [HOW]
//   Runs until a plan is in force on all ranks, then ITERATIONS more. HOW:
//   plain    runs ITERATIONS and waits for no plan
//   abort    ends the communicator by ncclCommAbort; "until abort": both
//   step     asks deft_should_step() and prints nothing where there is no update. "step biased":
//            between the buckets there is a sum of 100 numbers, too small for plans
//   change   then gives the buckets other sizes, prints "changed", and does it all again
//   flush    then calls deft_flush(), prints "flushed N", and does it all again
//   unsteady runs ITERATIONS, waits for no plan, and has other buckets every ten iterations
//   recurring
//            waits for a plan for each of three pairs of buckets, then has another of them every
//            ten iterations, as recurring.h says; prints "changed"
//   until    runs until the file ID_FILE.stop is there, then ITERATIONS more
//   large    the first bucket has 16 MB, so that it is cut over networks (medium: 4 MB). Stands
//   behind
//            plain or until: "plain large"
//   equal    both buckets have one size, so that only their buffers tell them apart ("plain equal")
//   premul   its gradients are reduced by an operation of its own, made for each call, that doubles
//            them: at once ("plain premul"; "plain grouped premul"), or under the plan, in one
//            iteration behind the line "premultiplied"
//   nonblocking, scalable
//            how its communicator is made: ways.h. nonblocking stands behind plain
//   split    trains on a communicator that is split off, with the ranks in the opposite order
//   grouped  makes every call in a group of its own, two levels deep, as older frameworks do
//   pair     then makes both calls of an iteration in one group, prints "paired", and goes on
//   foreign  under the plan makes the calls of one iteration on a stream of another context, which
//            NCCL may refuse; prints "foreign" and the results. "plain foreign": without a plan
//   simulate rank 1 alone has a group simulated, before the plan and under it
//   busy     destroys the communicator without waiting for its last transfers
//   stall-N  iteration N (-1: the last one) is not made by rank 1, and rank 0 aborts its
//   communicator
//            from another thread while it waits for it; prints "aborted"
//   shrink   under the plan the last rank makes no more calls; the others shrink the communicator,
//            abort what is under way, and reduce on the smaller one; prints "shrunk"
//   revoke   the same, but they revoke the communicator before they shrink it
// A job whose communicator fails prints "lost", aborts it and ends.
#include <cuda.h>
#include <dlfcn.h>
#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "deft/deft.h"
#include "tests/system/shim/exchange_id.h"
#include "tests/system/shim/recurring.h"
#include "tests/system/shim/ways.h"

namespace {

constexpr int kMetricEvery = 10;
constexpr unsigned kMostSeconds = 420;  // however slow the machine

CUresult make_context(CUcontext* context, CUdevice device) {
#if CUDA_VERSION >= 13000
    return cuCtxCreate(context, nullptr, 0, device);
#else
    return cuCtxCreate(context, 0, device);
#endif
}

void check(int result, const char* what) {
    if (result != 0) {
        std::printf("%s failed: %d\n", what, result);
        std::exit(1);
    }
}

float same_everywhere(const float* at, size_t count, const char* what) {
    for (size_t i = 1; i < count; ++i) {
        check(at[i] != at[0], what);
    }
    return at[0];
}

[[noreturn]] void give_up(ncclComm_t comm) {
    std::printf("lost\n");
    ncclCommAbort(comm);
    std::exit(0);
}

// As a framework's watchdog does: never only waits.
void wait(CUstream stream, ncclComm_t comm) {
    for (;;) {
        const CUresult state = cuStreamQuery(stream);
        // After it: what a transfer that failed has left is not looked at.
        ncclResult_t error = ncclSuccess;
        if (ncclCommGetAsyncError(comm, &error) != ncclSuccess ||
            (error != ncclSuccess && error != ncclInProgress)) {
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

bool exists(const std::string& path) {
    return ::access(path.c_str(), F_OK) == 0;
}

void touch(const std::string& path) {
    std::fclose(std::fopen(path.c_str(), "w"));
}

void await(const std::string& path) {
    while (!exists(path)) {
        ::usleep(1000);
    }
}

// Until every rank has come here; one that has died does not.
void wait_for_all(int rank, int ranks, const std::string& id_file) {
    touch(id_file + ".over" + std::to_string(rank));
    for (int other = 0; other < ranks; ++other) {
        for (int i = 0; i < 5000 && !exists(id_file + ".over" + std::to_string(other)); ++i) {
            ::usleep(1000);
        }
    }
}

// Rank 1 makes no more calls; rank 0 is in the middle of an iteration when its communicator goes.
int stall(int rank, ncclComm_t comm, CUstream stream, float* data, size_t count,
          const std::string& aborted) {
    if (rank != 0) {
        await(aborted);
        check(ncclCommAbort(comm), "ncclCommAbort");
        return 0;
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
    return 0;
}

// What one rank may ask by itself: how long a group would take, without making its call.
void simulate(ncclComm_t comm, CUstream stream, float* data, size_t count) {
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    check(ncclGroupStart(), "ncclGroupStart");
    check(ncclAllReduce(data, data, count, ncclFloat, ncclSum, comm, stream), "simulated");
    check(ncclGroupSimulateEnd(&info), "ncclGroupSimulateEnd");
    check(!(info.estimatedTime > 0), "the estimate");
}

// A call that NCCL refuses fails its group, whenever NCCL hears of it.
void refused(ncclComm_t comm, CUstream stream, float* data) {
    check(ncclGroupStart(), "ncclGroupStart");
    (void)ncclAllReduce(data, data, SIZE_MAX / 8, ncclFloat, ncclSum, comm, stream);
    check(ncclGroupEnd() != ncclInvalidArgument, "the group's error");
}

// A lane waits for the last rank, and the job's stream for the lane.
int shrink(int rank, int ranks, ncclComm_t comm, CUstream stream, CUdeviceptr memory, size_t first,
           size_t second, const std::string& file, bool revoke) {
    int gone = ranks - 1;
    if (rank == gone) {
        await(file + ".shrunk");
        check(ncclCommAbort(comm), "ncclCommAbort");
        return 0;
    }
    auto* const data = reinterpret_cast<float*>(memory);
    for (int i = 0; i < 2; ++i) {  // with a delay the second one waits for the first
        check(ncclAllReduce(data, data, first, ncclFloat, ncclSum, comm, stream), "first bucket");
        check(ncclAllReduce(data + first, data + first, second, ncclFloat, ncclSum, comm, stream),
              "second bucket");
    }
    touch(file + ".called" + std::to_string(rank));
    for (int other = 0; other < gone; ++other) {
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
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    check(argc < 5, "usage");
    ::alarm(kMostSeconds);  // ends the process, wherever it waits
    const int rank = std::atoi(argv[1]);
    const int ranks = std::atoi(argv[2]);
    const int iterations = std::atoi(argv[4]);
    const std::string how = argc > 5 ? argv[5] : "";
    const bool until = how.starts_with("until");
    const std::string stop = std::string(argv[3]) + ".stop";
    size_t first = how.ends_with("large")    ? 4'000'001
                   : how.ends_with("medium") ? 1'000'001
                                             : 50'001;
    size_t second = how.ends_with("equal") ? first : 70'000;
    const size_t total = first + second;
    CUdevice device = 0;
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    CUdeviceptr memory = 0;
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    CUcontext other = nullptr;
    CUstream foreign = nullptr;
    if (how.ends_with("foreign")) {
        check(make_context(&other, device), "cuCtxCreate");
        check(cuStreamCreate(&foreign, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    }
    CUstream calls = stream;  // of the gradients
    constexpr size_t kMetrics = 2;
    const size_t biases = how == "step biased" ? 100 : 0;
    check(cuMemAlloc(&memory, (total + kMetrics + biases) * sizeof(float)), "cuMemAlloc");
    auto* const data = reinterpret_cast<float*>(memory);
    ncclComm_t comm = nullptr;
    const bool nonblocking = how.ends_with("nonblocking");
    check(nonblocking ? deft::test::make_nonblocking(&comm, rank, ranks, argv[3])
          : how == "scalable"
              ? deft::test::make_scalable(&comm, rank, ranks, argv[3])
              : ncclCommInitRank(&comm, ranks, deft::test::exchange_id(rank, argv[3]), rank),
          "making the communicator");
    ncclComm_t whole = nullptr;
    if (how == "split") {
        whole = comm;
        check(ncclCommSplit(whole, 0, -rank, &comm, nullptr), "ncclCommSplit");
    }
    const bool grouped = how.find("grouped") != how.npos;
    bool doubled = how.starts_with("plain") && how.ends_with("premul");
    const auto reduce = [&](float* at, size_t count) {
        bool failed = grouped && (ncclGroupStart() != 0 || ncclGroupStart() != 0);
        const int made =
            doubled && at < data + total
                ? deft::test::all_reduce_doubled(at, count, comm, calls)
                : static_cast<int>(ncclAllReduce(at, at, count, ncclFloat, ncclSum, comm, calls));
        failed = (nonblocking ? deft::test::wait_done(made, comm) : made) != 0 || failed;
        if (calls != stream) {
            std::printf(" %d", made);
            failed = false;  // on all ranks alike
        }
        // Without a place for the estimate nothing is simulated.
        failed = (grouped && (ncclGroupEnd() != 0 || ncclGroupSimulateEnd(nullptr) != 0)) || failed;
        if (failed) {
            give_up(comm);
        }
    };
    auto* const should_step =
        reinterpret_cast<decltype(&deft_should_step)>(::dlsym(RTLD_DEFAULT, "deft_should_step"));
    auto* const flush =
        reinterpret_cast<decltype(&deft_flush)>(::dlsym(RTLD_DEFAULT, "deft_flush"));
    auto* const stats =
        reinterpret_cast<decltype(&deft_stats)>(::dlsym(RTLD_DEFAULT, "deft_stats"));
    check(should_step == nullptr || flush == nullptr || stats == nullptr, "deft's C API");
    const float weights = static_cast<float>(ranks * (ranks + 1) / 2);
    std::vector<float> host(total + kMetrics + biases);
    int rounds = how == "change" || how == "flush" ? 2 : 1;
    const bool recurring = how == "recurring";
    deft::test::Recurring pairs(ranks);
    float plans_wanted = recurring ? static_cast<float>(pairs.kPairs) : 1;
    float switched = 0;  // over all ranks, when the last metrics came
    int left = how.starts_with("plain") || how == "unsteady" ? iterations : -1;
    const int stalls = how.starts_with("stall-") ? std::atoi(how.c_str() + 6) : 0;
    for (int t = 0; rounds > 0; ++t) {
        host.assign(host.size(), static_cast<float>((t + 1) * (rank + 1)));
        if (t > 0 && t == stalls) {
            return stall(rank, comm, stream, data, first, std::string(argv[3]) + ".aborted");
        }
        if (how == "unsteady" && t > 0 && t % kMetricEvery == 0) {
            // No sequence of them comes back: that would be a longer iteration.
            first = 50'001 - 100 * (t / kMetricEvery * 37 % 101);
            second = total - first;
        }
        if (recurring && t % kMetricEvery == 1) {
            if (t > 1) {
                pairs.next(switched);
            }
            if (const size_t count = 50'001 - 100 * pairs.pair(); count != first) {
                first = count;
                second = total - first;
                std::printf("changed\n");
            }
        }
        deft_stats_t now{};
        now.size = sizeof(now);
        if (t % kMetricEvery == 0) {
            check(stats(&now), "deft_stats");
        }
        const bool stopped = until && t % kMetricEvery == 0 && exists(stop);
        host[total + 1] = until ? static_cast<float>(stopped) : static_cast<float>(now.switched);
        if (cuMemcpyHtoDAsync(memory, host.data(), host.size() * sizeof(float), stream) != 0 ||
            cuStreamSynchronize(stream) != 0) {
            give_up(comm);
        }
        const bool under_plan = left >= 0 && left == iterations / 2;
        if (how == "simulate" && rank == 1 && (t == 3 || under_plan)) {
            simulate(comm, stream, data, first);
        } else if (grouped && t == 3) {
            refused(comm, stream, data);
        }
        const bool pair = how == "pair" && under_plan;
        if (how == "premul") {
            doubled = under_plan;
            std::printf("%s", doubled ? "premultiplied\n" : "");
        }
        if (how.ends_with("foreign") && under_plan) {
            calls = foreign;
            std::printf("foreign");
        }
        if (pair) {
            std::printf("paired\n");
            check(ncclGroupStart(), "ncclGroupStart");
        }
        ::usleep(recurring ? pairs.forward_us()
                           : 1500);  // forward, and backward until the first bucket is complete
        reduce(data, first);
        ::usleep(500);
        if (biases > 0) {
            reduce(data + total + kMetrics, biases);
        }
        reduce(data + first, second);
        if (calls != stream) {
            std::printf("\n");
            check(cuStreamSynchronize(calls), "the calls on the foreign stream");
            calls = stream;
        }
        check(pair ? ncclGroupEnd() : ncclSuccess, "ncclGroupEnd");
        if (t % kMetricEvery == 0) {
            reduce(data + total, 1);  // metrics: nothing may ever happen to them
            reduce(data + total + 1, 1);
        }
        if (cuMemcpyDtoHAsync(host.data(), memory, host.size() * sizeof(float), stream) != 0) {
            give_up(comm);  // the device has seen the transfer fail
        }
        wait(stream, comm);
        const float one = same_everywhere(host.data(), first, "bucket 0");
        const float two = same_everywhere(host.data() + first, second, "bucket 1");
        if (biases > 0) {
            check(same_everywhere(host.data() + total + kMetrics, biases, "the biases") !=
                      static_cast<float>(t + 1) * weights,
                  "the biases");
        }
        if (how.starts_with("step") && should_step() == 0) {
            check(one != 0 || two != 0, "no update, but a gradient");
        } else {
            std::printf("%d %g %g\n", t, static_cast<double>(one / weights),
                        static_cast<double>(two / weights));
        }
        if (t % kMetricEvery == 0) {
            check(host[total] != static_cast<float>(t + 1) * weights, "the metric");
            switched = host[total + 1];
            if (left < 0 && switched >= plans_wanted * static_cast<float>(ranks)) {
                left = iterations;
            }
        }
        if (left >= 0 && left-- == 0) {
            --rounds;
            plans_wanted += 1;
            if (rounds > 0 && how == "change") {
                first -= 1'000;
                second += 1'000;
                std::printf("changed\n");
            } else if (rounds == 0 && stalls < 0) {
                return stall(rank, comm, stream, data, first, std::string(argv[3]) + ".aborted");
            } else if (rounds == 0 && (how == "shrink" || how == "revoke")) {
                return shrink(rank, ranks, comm, stream, memory, first, second, argv[3],
                              how == "revoke");
            } else if (rounds == 0 && how == "busy") {
                reduce(data, first);
                reduce(data + first, second);
            } else if (rounds > 0) {
                std::printf("flushed %d\n", flush());
            }
        }
    }
    if (how.ends_with("abort")) {
        // It takes from a rank that is still in its last call what that was to receive.
        wait_for_all(rank, ranks, argv[3]);
        check(ncclCommAbort(comm), "ncclCommAbort");
    } else {
        // The end of a nonblocking communicator waits for nobody: another rank may be in its last
        // call.
        if (nonblocking) {
            check(deft::test::wait_done(ncclCommFinalize(comm), comm), "ncclCommFinalize");
        }
        check(ncclCommDestroy(comm), "ncclCommDestroy");
    }
    if (whole != nullptr) {
        check(ncclCommDestroy(whole), "ncclCommDestroy");
    }
    return 0;
}
