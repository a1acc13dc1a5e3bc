// SPDX-License-Identifier: Apache-2.0
// Jobs that end early: aborts in every state of a communicator, and the loss of a rank. A job that
// has aborted goes on with a new communicator.
//
// Each says in which state the abort found it: a test that misses the state proves nothing.
#include <thread>
#include <vector>

#include "tests/system/realnccl/job.h"

namespace deft::test {
namespace {

constexpr std::size_t kMany = 1 << 20;

ncclResult_t state_of(const Job& job) {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(job.comm, &state), "ncclCommGetAsyncError");
    return state;
}

void settle(const Job& job) {
    ncclResult_t state = ncclInProgress;
    for (; state == ncclInProgress; state = state_of(job)) {
        ::usleep(1000);
    }
    check(state, "a call that does not block");
}

void begun(ncclResult_t result, const char* what) {
    check(result != ncclSuccess && result != ncclInProgress, what);
}

void begin_to_join(Job& job, const std::string& again = "") {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    begun(ncclCommInitRankConfig(&job.comm, job.ranks, job.id(again), job.rank, &config),
          "ncclCommInitRankConfig");
}

void abort_now(const Job& job) {
    check(ncclCommAbort(job.comm), "ncclCommAbort");
    check(cuStreamSynchronize(job.stream), "the stream after an abort");
}

void say_found(bool in_state) {
    std::printf("found %s\n", in_state ? "so" : "otherwise");
}

// With connections, which are made at the first call. A rank that has its result may still have to
// send what another one waits for: none aborts before all have theirs.
void join_and_connect(Job& job, const Memory& memory) {
    job.join();
    all_reduce(job, memory, 1000);
    job.wait();
    job.meet("connected");
}

void go_on(Job& job) {
    job.join(".again");
    std::vector<float> host(100'000);
    const Memory memory(host.size() * sizeof(float));
    Tally tally;
    for (int round = 0; round < 3; ++round) {
        fill(host, job.rank, round);
        memory.put(host.data(), job.stream);
        all_reduce(job, memory, host.size());
        memory.take(host.data(), job.stream);
        compare(host, job.ranks, round, tally);
    }
    job.leave();
    tally.say();
}

// ---- aborts -------------------------------------------------------------------------------------

void unused(Job& job) {
    job.join();
    job.meet("joined");
    say_found(state_of(job) == ncclSuccess);
    abort_now(job);
}

void idle(Job& job) {
    const Memory memory(kMany * sizeof(float));
    join_and_connect(job, memory);
    say_found(job.idle());
    abort_now(job);
}

// Rank 0 waits in a kernel for ranks that never come.
void alone(Job& job) {
    const Memory memory(kMany * sizeof(float));
    join_and_connect(job, memory);
    if (job.rank == 0) {
        all_reduce(job, memory, kMany);
    }
    ::usleep(300'000);
    say_found(job.idle() == (job.rank != 0));
    abort_now(job);
}

// Kernels run and proxies send.
void traffic(Job& job) {
    constexpr int kCalls = 40;
    const Memory memory(4 * kMany * sizeof(float));
    join_and_connect(job, memory);
    CUevent first = nullptr;
    check(cuEventCreate(&first, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    for (int i = 0; i < kCalls; ++i) {
        all_reduce(job, memory, 4 * kMany);
        if (i == 0) {
            check(cuEventRecord(first, job.stream), "cuEventRecord");
        }
    }
    check(cuEventSynchronize(first), "cuEventSynchronize");
    say_found(!job.idle());
    abort_now(job);
}

// While all ranks join, at another moment in every round.
void starting(Job& job) {
    int still = 0;
    for (int round = 0; round < 6; ++round) {
        begin_to_join(job, "." + std::to_string(round));
        ::usleep(static_cast<useconds_t>(round) * 15'000);
        still += state_of(job) == ncclInProgress ? 1 : 0;
        abort_now(job);
    }
    say_found(still > 0);
}

// The others never join.
void starting_alone(Job& job) {
    if (job.rank != 0) {
        (void)job.id();  // so that the last to go on is not the first to come
        say_found(true);
        return;
    }
    begin_to_join(job);
    ::usleep(300'000);
    say_found(state_of(job) == ncclInProgress);
    abort_now(job);
}

void finalizing(Job& job) {
    begin_to_join(job);
    settle(job);
    const Memory memory(16 * kMany * sizeof(float));
    for (int i = 0; i < 4; ++i) {
        begun(ncclAllReduce(memory.get(), memory.get(), 16 * kMany, ncclFloat, ncclSum, job.comm,
                            job.stream),
              "ncclAllReduce");
        settle(job);
        if (i == 0) {
            job.meet("connected");
        }
    }
    begun(ncclCommFinalize(job.comm), "ncclCommFinalize");
    say_found(state_of(job) == ncclInProgress);
    abort_now(job);
}

CUgraph end_capture(const Job& job) {
    CUgraph graph = nullptr;
    check(cuStreamEndCapture(job.stream, &graph), "end capture");
    return graph;
}

void begin_capture(const Job& job, const Memory& memory) {
    check(cuStreamBeginCapture(job.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "begin capture");
    all_reduce(job, memory, kMany);
}

// NCCL's abort waits for graphs that hold the communicator's works: it is another thread's, as a
// watchdog's is.
std::thread abort_aside(const Job& job) {
    return std::thread([&job] {
        check(cuCtxSetCurrent(job.context), "cuCtxSetCurrent");
        check(ncclCommAbort(job.comm), "ncclCommAbort");
    });
}

void capturing(Job& job) {
    const Memory memory(kMany * sizeof(float));
    join_and_connect(job, memory);
    begin_capture(job, memory);
    std::thread watchdog = abort_aside(job);
    ::usleep(200'000);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    check(cuStreamIsCapturing(job.stream, &status), "cuStreamIsCapturing");
    say_found(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    check(cuGraphDestroy(end_capture(job)), "cuGraphDestroy");
    watchdog.join();
}

// Rank 0 alone launches the graph.
void replaying(Job& job) {
    const Memory memory(kMany * sizeof(float));
    join_and_connect(job, memory);
    begin_capture(job, memory);
    CUgraph graph = end_capture(job);
    CUgraphExec exec = nullptr;
    check(cuGraphInstantiate(&exec, graph, 0), "cuGraphInstantiate");
    check(cuGraphDestroy(graph), "cuGraphDestroy");
    if (job.rank == 0) {
        check(cuGraphLaunch(exec, job.stream), "cuGraphLaunch");
    }
    ::usleep(200'000);
    say_found(job.idle() == (job.rank != 0));
    std::thread watchdog = abort_aside(job);
    check(cuStreamSynchronize(job.stream), "the stream after an abort");
    check(cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    watchdog.join();
}

// ---- the loss of a rank -------------------------------------------------------------------------

// NCCL 2.27 drops what a network's calls fail with: its ranks only wait. Frameworks give up then
// too, by a watchdog.
bool tells_errors() {
    int version = 0;
    check(ncclGetVersion(&version), "ncclGetVersion");
    return version >= 22800;
}

// A rank that hears of an error gives up, as frameworks do.
void survive(Job& job) {
    constexpr int kWatchdogUs = 20'000'000;
    constexpr int kLookUs = 500;
    const bool patient = tells_errors();
    job.join();
    std::vector<float> host(200'000);
    const Memory memory(host.size() * sizeof(float));
    for (int round = 0;; ++round) {
        all_reduce(job, memory, host.size());
        for (int waited = 0; cuStreamQuery(job.stream) == CUDA_ERROR_NOT_READY; waited += kLookUs) {
            const ncclResult_t state = state_of(job);
            if (state != ncclSuccess || (!patient && waited > kWatchdogUs)) {
                std::printf("heard of error %d, ", state);
                abort_now(job);
                std::printf("aborted\n");
                return;
            }
            ::usleep(kLookUs);
        }
        if (round == 0) {
            std::fputs("begun\n", stderr);
        }
    }
}

}  // namespace

Scenarios endings() {
    const auto abort_in = [](void (*state)(Job&)) {
        return [state](Job& job) {
            state(job);
            std::printf("aborted\n");
            std::fflush(stdout);
            go_on(job);
        };
    };
    return {
        {"abort-unused", abort_in(unused)},
        {"abort-idle", abort_in(idle)},
        {"abort-alone", abort_in(alone)},
        {"abort-traffic", abort_in(traffic)},
        {"abort-starting", abort_in(starting)},
        {"abort-starting-alone", abort_in(starting_alone)},
        {"abort-finalizing", abort_in(finalizing)},
        {"abort-capturing", abort_in(capturing)},
        {"abort-replaying", abort_in(replaying)},
        {"survive", survive},
    };
}

}  // namespace deft::test
