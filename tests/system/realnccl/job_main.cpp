// SPDX-License-Identifier: Apache-2.0
// One rank of a job that checks every element NCCL gives it. It says what it found in one line.
//
// usage: job_main SCENARIO RANK RANKS ID_FILE [DEVICE]
#include <cuda.h>
#include <nccl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/system/realnccl/numbers.h"
#include "tests/system/shim/exchange_id.h"

namespace {

constexpr unsigned kWatchdogSeconds = 150;

void check(int result, const char* what) {
    if (result != 0) {
        std::printf("%s failed: %d (%s)\n", what, result, ncclGetLastError(nullptr));
        std::fflush(stdout);
        ::_exit(1);
    }
}

struct Tally {
    unsigned long long checked = 0;
    unsigned long long wrong = 0;

    void add(bool right) {
        ++checked;
        wrong += right ? 0 : 1;
    }
    void say() const { std::printf("checked %llu wrong %llu\n", checked, wrong); }
};

struct Job {
    int rank = 0;
    int ranks = 1;
    std::string id_file;
    int device = 0;
    CUstream stream = nullptr;
    ncclComm_t comm = nullptr;

    void open() {
        CUcontext context = nullptr;
        check(cuInit(0), "cuInit");
        check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
        check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    }
    ncclUniqueId id() const { return deft::test::exchange_id(rank, id_file, &ncclGetUniqueId); }
    void join() { check(ncclCommInitRank(&comm, ranks, id(), rank), "ncclCommInitRank"); }
    void leave() { check(ncclCommDestroy(comm), "ncclCommDestroy"); }
    void wait() const { check(cuStreamSynchronize(stream), "cuStreamSynchronize"); }
};

class Memory {
public:
    explicit Memory(std::size_t bytes) : bytes_(bytes) {
        check(cuMemAlloc(&pointer_, bytes + 64), "cuMemAlloc");
    }
    ~Memory() { cuMemFree(pointer_); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    void* get() const { return reinterpret_cast<void*>(pointer_); }
    void put(const void* from, CUstream stream) const {
        check(cuMemcpyHtoDAsync(pointer_, from, bytes_, stream), "cuMemcpyHtoDAsync");
    }
    void take(void* to, CUstream stream) const {
        check(cuMemcpyDtoHAsync(to, pointer_, bytes_, stream), "cuMemcpyDtoHAsync");
        check(cuStreamSynchronize(stream), "cuStreamSynchronize");
    }

private:
    CUdeviceptr pointer_ = 0;
    std::size_t bytes_;
};

// ---- sums ---------------------------------------------------------------------------------------

float value(int rank, std::size_t i, int round) {
    return static_cast<float>((i * 7 + static_cast<std::size_t>(rank * 13 + round * 5)) % 101);
}

float sum(int ranks, std::size_t i, int round) {
    float all = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        all += value(rank, i, round);
    }
    return all;
}

void fill(std::vector<float>& host, int rank, int round) {
    for (std::size_t i = 0; i < host.size(); ++i) {
        host[i] = value(rank, i, round);
    }
}

void compare(const std::vector<float>& host, int ranks, int round, Tally& tally) {
    for (std::size_t i = 0; i < host.size(); ++i) {
        tally.add(host[i] == sum(ranks, i, round));
    }
}

void all_reduce(const Job& job, const Memory& memory, std::size_t count) {
    check(
        ncclAllReduce(memory.get(), memory.get(), count, ncclFloat, ncclSum, job.comm, job.stream),
        "ncclAllReduce");
}

// The calls of a data-parallel job: four buckets in every iteration.
void buckets(Job& job, int iterations) {
    job.join();
    const std::size_t sizes[] = {25'000, 100'000, 200'000, 50'001};
    std::vector<std::unique_ptr<Memory>> memory;
    std::vector<std::vector<float>> host;
    for (const std::size_t size : sizes) {
        memory.push_back(std::make_unique<Memory>(size * sizeof(float)));
        host.emplace_back(size);
    }
    Tally tally;
    for (int round = 0; round < iterations; ++round) {
        for (std::size_t b = 0; b < memory.size(); ++b) {
            fill(host[b], job.rank, round);
            memory[b]->put(host[b].data(), job.stream);
            all_reduce(job, *memory[b], host[b].size());
        }
        for (std::size_t b = 0; b < memory.size(); ++b) {
            memory[b]->take(host[b].data(), job.stream);
            compare(host[b], job.ranks, round, tally);
        }
        if (round == 0) {
            std::fputs("begun\n", stderr);
        }
    }
    job.leave();
    tally.say();
}

void large(Job& job) {
    job.join();
    std::vector<float> host(4 << 20);
    const Memory memory(host.size() * sizeof(float));
    Tally tally;
    for (int round = 0; round < 4; ++round) {
        fill(host, job.rank, round);
        memory.put(host.data(), job.stream);
        all_reduce(job, memory, host.size());
        memory.take(host.data(), job.stream);
        compare(host, job.ranks, round, tally);
    }
    job.leave();
    tally.say();
}

// ---- every collective, type and operation -------------------------------------------------------

using deft::test::Number;
using deft::test::numbers;

// A reduction's result for element i, in double; the tolerance is that of the type.
double reduced(const Number& type, ncclRedOp_t op, int ranks, std::size_t i) {
    double result = type.input(0, i);
    for (int rank = 1; rank < ranks; ++rank) {
        const double next = type.input(rank, i);
        switch (op) {
            case ncclProd:
                result *= next;
                break;
            case ncclMax:
                result = std::max(result, next);
                break;
            case ncclMin:
                result = std::min(result, next);
                break;
            default:
                result += next;
        }
    }
    if (op == ncclAvg) {
        result = type.integer ? std::trunc(result / ranks) : result / ranks;
    }
    return result;
}

struct Buffers {
    Buffers(const Job& job, const Number& type, std::size_t in, std::size_t out)
        : host_in(in * type.bytes),
          host_out(out * type.bytes),
          in_memory(in * type.bytes),
          out_memory(out * type.bytes) {
        for (std::size_t i = 0; i < in; ++i) {
            type.store(host_in.data() + i * type.bytes, type.input(job.rank, i));
        }
        in_memory.put(host_in.data(), job.stream);
    }
    std::vector<char> host_in;
    std::vector<char> host_out;
    Memory in_memory;
    Memory out_memory;
};

void compare(const Job& job, const Number& type, Buffers& b, Tally& tally,
             const std::function<double(std::size_t)>& wanted) {
    b.out_memory.take(b.host_out.data(), job.stream);
    for (std::size_t i = 0; i * type.bytes < b.host_out.size(); ++i) {
        const double got = type.load(b.host_out.data() + i * type.bytes);
        const double want = wanted(i);
        tally.add(std::abs(got - want) <= type.tolerance * std::abs(want));
    }
}

void reductions(Job& job, const Number& type, std::size_t n, Tally& tally) {
    for (const ncclRedOp_t op : {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg}) {
        const auto at = [&](std::size_t i) { return reduced(type, op, job.ranks, i); };
        {
            Buffers b(job, type, n, n);
            check(ncclAllReduce(b.in_memory.get(), b.out_memory.get(), n, type.type, op, job.comm,
                                job.stream),
                  "ncclAllReduce");
            compare(job, type, b, tally, at);
        }
        {
            Buffers b(job, type, n * static_cast<std::size_t>(job.ranks), n);
            check(ncclReduceScatter(b.in_memory.get(), b.out_memory.get(), n, type.type, op,
                                    job.comm, job.stream),
                  "ncclReduceScatter");
            compare(job, type, b, tally,
                    [&](std::size_t i) { return at(i + n * static_cast<std::size_t>(job.rank)); });
        }
        const int root = static_cast<int>(n) % job.ranks;
        Buffers b(job, type, n, n);
        check(ncclReduce(b.in_memory.get(), b.out_memory.get(), n, type.type, op, root, job.comm,
                         job.stream),
              "ncclReduce");
        if (job.rank == root) {
            compare(job, type, b, tally, at);
        } else {
            job.wait();
        }
    }
}

void copies(Job& job, const Number& type, std::size_t n, Tally& tally) {
    const auto ranks = static_cast<std::size_t>(job.ranks);
    {
        Buffers b(job, type, n, n * ranks);
        check(ncclAllGather(b.in_memory.get(), b.out_memory.get(), n, type.type, job.comm,
                            job.stream),
              "ncclAllGather");
        compare(job, type, b, tally,
                [&](std::size_t i) { return type.input(static_cast<int>(i / n), i % n); });
    }
    for (int root = 0; root < job.ranks; ++root) {
        Buffers b(job, type, n, n);
        check(ncclBroadcast(b.in_memory.get(), b.out_memory.get(), n, type.type, root, job.comm,
                            job.stream),
              "ncclBroadcast");
        compare(job, type, b, tally, [&](std::size_t i) { return type.input(root, i); });
    }
    // Everybody to everybody.
    Buffers b(job, type, n * ranks, n * ranks);
    check(ncclGroupStart(), "ncclGroupStart");
    for (int peer = 0; peer < job.ranks; ++peer) {
        const std::size_t offset = static_cast<std::size_t>(peer) * n * type.bytes;
        check(ncclSend(static_cast<char*>(b.in_memory.get()) + offset, n, type.type, peer, job.comm,
                       job.stream),
              "ncclSend");
        check(ncclRecv(static_cast<char*>(b.out_memory.get()) + offset, n, type.type, peer,
                       job.comm, job.stream),
              "ncclRecv");
    }
    check(ncclGroupEnd(), "ncclGroupEnd");
    compare(job, type, b, tally, [&](std::size_t i) {
        return type.input(static_cast<int>(i / n), i % n + static_cast<std::size_t>(job.rank) * n);
    });
}

void collectives(Job& job) {
    job.join();
    Tally tally;
    for (const Number& type : numbers()) {
        for (const std::size_t n : {std::size_t{1}, std::size_t{1000}, std::size_t{70'001}}) {
            reductions(job, type, n, tally);
            copies(job, type, n, tally);
        }
    }
    job.leave();
    tally.say();
}

// ---- graphs -------------------------------------------------------------------------------------

void capture(Job& job) {
    job.join();
    std::vector<float> host(100'000);
    const Memory memory(host.size() * sizeof(float));
    const Memory second(host.size() * sizeof(float));
    all_reduce(job, memory, host.size());  // connections are made outside of the capture
    job.wait();
    check(cuStreamBeginCapture(job.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "begin capture");
    all_reduce(job, memory, host.size());
    check(ncclGroupStart(), "ncclGroupStart");
    all_reduce(job, second, host.size());
    check(ncclGroupEnd(), "ncclGroupEnd");
    CUgraph graph = nullptr;
    check(cuStreamEndCapture(job.stream, &graph), "end capture");
    CUgraphExec exec = nullptr;
    check(cuGraphInstantiate(&exec, graph, 0), "cuGraphInstantiate");
    check(cuGraphDestroy(graph), "cuGraphDestroy");
    Tally tally;
    for (int round = 0; round < 20; ++round) {
        for (const Memory* each : {&memory, &second}) {
            fill(host, job.rank, round);
            each->put(host.data(), job.stream);
        }
        check(cuGraphLaunch(exec, job.stream), "cuGraphLaunch");
        if (round % 5 == 4) {  // work outside of the graph in between
            all_reduce(job, memory, 100);
        }
        second.take(host.data(), job.stream);
        compare(host, job.ranks, round, tally);
    }
    check(cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    job.leave();  // returns when the graph is gone
    tally.say();
}

// ---- communicators that do not block, and their end ---------------------------------------------

ncclResult_t settled(ncclComm_t comm) {
    for (;;) {
        ncclResult_t state = ncclSuccess;
        check(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
        if (state != ncclInProgress) {
            return state;
        }
        ::usleep(1000);
    }
}

void join_without_blocking(Job& job) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t result =
        ncclCommInitRankConfig(&job.comm, job.ranks, job.id(), job.rank, &config);
    check(result != ncclSuccess && result != ncclInProgress, "ncclCommInitRankConfig");
}

void nonblocking(Job& job) {
    join_without_blocking(job);
    check(settled(job.comm), "the start");
    std::vector<float> host(50'000);
    const Memory memory(host.size() * sizeof(float));
    Tally tally;
    for (int round = 0; round < 10; ++round) {
        fill(host, job.rank, round);
        memory.put(host.data(), job.stream);
        const ncclResult_t result = ncclAllReduce(memory.get(), memory.get(), host.size(),
                                                  ncclFloat, ncclSum, job.comm, job.stream);
        check(result != ncclSuccess && result != ncclInProgress, "ncclAllReduce");
        check(settled(job.comm), "the all-reduce");
        memory.take(host.data(), job.stream);
        compare(host, job.ranks, round, tally);
    }
    const ncclResult_t result = ncclCommFinalize(job.comm);
    check(result != ncclSuccess && result != ncclInProgress, "ncclCommFinalize");
    check(settled(job.comm), "the end");
    job.leave();
    tally.say();
}

void abort_now(const Job& job) {
    check(ncclCommAbort(job.comm), "ncclCommAbort");
    check(cuStreamSynchronize(job.stream), "the stream after an abort");
    std::printf("aborted\n");
}

void abort_idle(Job& job) {
    job.join();
    const Memory memory(4000);
    all_reduce(job, memory, 1000);
    job.wait();
    abort_now(job);
}

void abort_unused(Job& job) {
    job.join();
    abort_now(job);
}

// Rank 0 waits in a kernel for ranks that never come.
void abort_alone(Job& job) {
    job.join();
    const Memory memory(1 << 20);
    all_reduce(job, memory, 1000);
    job.wait();
    if (job.rank == 0) {
        all_reduce(job, memory, 1 << 18);
    }
    ::usleep(300'000);
    abort_now(job);
}

void abort_traffic(Job& job) {
    job.join();
    const Memory memory(16 << 20);
    for (int i = 0; i < 40; ++i) {
        all_reduce(job, memory, 4 << 20);
    }
    ::usleep(200'000);
    abort_now(job);
}

// The other ranks are there, and never join.
void abort_starting(Job& job) {
    join_without_blocking(job);
    ::usleep(300'000);
    abort_now(job);
}

void abort_starting_alone(Job& job) {
    if (job.rank == 0) {
        abort_starting(job);
    } else {
        std::printf("aborted\n");
    }
}

void abort_finalizing(Job& job) {
    join_without_blocking(job);
    check(settled(job.comm), "the start");
    const Memory memory(1 << 20);
    const ncclResult_t reduced = ncclAllReduce(memory.get(), memory.get(), 1 << 18, ncclFloat,
                                               ncclSum, job.comm, job.stream);
    check(reduced != ncclSuccess && reduced != ncclInProgress, "ncclAllReduce");
    check(settled(job.comm), "the all-reduce");
    const ncclResult_t ended = ncclCommFinalize(job.comm);
    check(ended != ncclSuccess && ended != ncclInProgress, "ncclCommFinalize");
    abort_now(job);
}

// A rank that hears of an error gives up, as frameworks do.
void survive(Job& job) {
    job.join();
    std::vector<float> host(200'000);
    const Memory memory(host.size() * sizeof(float));
    for (int round = 0;; ++round) {
        all_reduce(job, memory, host.size());
        if (round == 0) {
            std::fputs("begun\n", stderr);
        }
        while (cuStreamQuery(job.stream) == CUDA_ERROR_NOT_READY) {
            ncclResult_t state = ncclSuccess;
            check(ncclCommGetAsyncError(job.comm, &state), "ncclCommGetAsyncError");
            if (state != ncclSuccess) {
                std::printf("heard of error %d, ", state);
                abort_now(job);
                return;
            }
            ::usleep(500);
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    ::alarm(kWatchdogSeconds);
    if (argc < 5) {
        std::fprintf(stderr, "usage: job_main SCENARIO RANK RANKS ID_FILE [DEVICE]\n");
        return 2;
    }
    Job job;
    job.rank = std::atoi(argv[2]);
    job.ranks = std::atoi(argv[3]);
    job.id_file = argv[4];
    job.device = argc > 5 ? std::atoi(argv[5]) : 0;
    const std::map<std::string, std::function<void(Job&)>> scenarios = {
        {"collectives", collectives},
        {"buckets", [](Job& j) { buckets(j, 300); }},
        {"few-buckets", [](Job& j) { buckets(j, 20); }},
        {"large", large},
        {"capture", capture},
        {"nonblocking", nonblocking},
        {"abort-unused", abort_unused},
        {"abort-idle", abort_idle},
        {"abort-alone", abort_alone},
        {"abort-traffic", abort_traffic},
        {"abort-starting", abort_starting},
        {"abort-starting-alone", abort_starting_alone},
        {"abort-finalizing", abort_finalizing},
        {"survive", survive},
    };
    const auto scenario = scenarios.find(argv[1]);
    if (scenario == scenarios.end()) {
        std::fprintf(stderr, "no scenario %s\n", argv[1]);
        return 2;
    }
    job.open();
    scenario->second(job);
    return 0;
}
