// SPDX-License-Identifier: Apache-2.0
// Two or more ranks all-reduce through a NCCL network plugin, on GPUs or on the software device.
//
// Each rank is a process that calls itself a host of its own (NCCL_HOSTID), so that ranks may share
// one GPU and every byte crosses the network plugin (NCCL refuses two ranks on one GPU of the same
// host). Prints one JSON object: per size the median time, bus bandwidth, and how many elements
// were wrong. Exit status 0 only when none was.
//
// usage: allreduce [--ranks N] [--iterations N] [--sizes BYTES,...]
#include <cuda.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

int g_rank = -1;

[[noreturn]] void fail(const char* what, const char* why) {
    std::fprintf(stderr, "allreduce: rank %d: %s: %s\n", g_rank, what, why);
    std::_Exit(1);
}

void check(CUresult result, const char* what) {
    if (result != CUDA_SUCCESS) {
        const char* text = "unknown";
        cuGetErrorString(result, &text);
        fail(what, text);
    }
}

void check(ncclResult_t result, const char* what) {
    if (result != ncclSuccess) {
        fail(what, ncclGetErrorString(result));
    }
}

struct Options {
    int ranks = 2;
    int iterations = 20;
    std::vector<std::size_t> sizes{4, 4096, 1 << 20, 16 << 20, 64 << 20};
};

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        if (i + 1 >= argc) {
            fail(name.c_str(), "expects a value; options are --ranks, --iterations, --sizes");
        }
        char* value = argv[++i];
        if (name == "--ranks") {
            options.ranks = std::atoi(value);
        } else if (name == "--iterations") {
            options.iterations = std::atoi(value);
        } else if (name == "--sizes") {
            options.sizes.clear();
            for (char* word = std::strtok(value, ","); word; word = std::strtok(nullptr, ",")) {
                options.sizes.push_back(std::max<std::size_t>(std::strtoull(word, nullptr, 10), 4) /
                                        4 * 4);
            }
        } else {
            fail(name.c_str(), "unknown option; options are --ranks, --iterations, --sizes");
        }
    }
    if (options.ranks < 2 || options.ranks > 64 || options.iterations < 1 ||
        options.sizes.empty()) {
        fail("options", "expects 2..64 ranks, at least one iteration and one size");
    }
    return options;
}

// Small integers: sums are exact in float, whatever the order.
float element(int rank, std::size_t i) {
    return static_cast<float>((i * 7 + rank * 13) % 97);
}

struct Communicator {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    ncclComm_t comm = nullptr;
};

Communicator join(const Options& options, const ncclUniqueId& id) {
    Communicator joined;
    CUdevice device = 0;
    int devices = 0;
    check(cuInit(0), "cuInit");
    check(cuDeviceGetCount(&devices), "cuDeviceGetCount");
    check(cuDeviceGet(&device, g_rank % devices), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&joined.context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(joined.context), "cuCtxSetCurrent");
    check(cuStreamCreate(&joined.stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(ncclCommInitRank(&joined.comm, options.ranks, id, g_rank), "ncclCommInitRank");
    return joined;
}

void report(const Options& options, std::size_t bytes, std::vector<double> milliseconds,
            std::size_t wrong, bool last) {
    const auto middle = milliseconds.begin() + static_cast<std::ptrdiff_t>(milliseconds.size() / 2);
    std::nth_element(milliseconds.begin(), middle, milliseconds.end());
    const double moved = 2.0 * (options.ranks - 1) / options.ranks * static_cast<double>(bytes);
    std::printf(
        "  {\"bytes\": %zu, \"median_ms\": %.4f, \"bus_GB_per_s\": %.4f, \"wrong\": %zu}%s\n",
        bytes, *middle, moved / *middle / 1e6, wrong, last ? "" : ",");
}

// Times all-reduces of one size and checks the last result. Returns true if every element is right.
bool measure(const Options& options, const Communicator& on, std::size_t bytes, bool last) {
    const std::size_t count = bytes / sizeof(float);
    std::vector<float> host(count);
    for (std::size_t i = 0; i < count; ++i) {
        host[i] = element(g_rank, i);
    }
    CUdeviceptr input = 0, output = 0;
    check(cuMemAlloc(&input, bytes), "cuMemAlloc");
    check(cuMemAlloc(&output, bytes), "cuMemAlloc");
    check(cuMemcpyHtoD(input, host.data(), bytes), "cuMemcpyHtoD");
    std::vector<double> milliseconds;
    for (int i = 0; i < options.iterations + 2; ++i) {
        const auto start = std::chrono::steady_clock::now();
        check(ncclAllReduce(reinterpret_cast<void*>(input), reinterpret_cast<void*>(output), count,
                            ncclFloat, ncclSum, on.comm, on.stream),
              "ncclAllReduce");
        check(cuStreamSynchronize(on.stream), "cuStreamSynchronize");
        const std::chrono::duration<double, std::milli> took =
            std::chrono::steady_clock::now() - start;
        if (i >= 2) {  // the first ones connect
            milliseconds.push_back(took.count());
        }
    }
    check(cuMemcpyDtoH(host.data(), output, bytes), "cuMemcpyDtoH");
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
        float sum = 0;
        for (int r = 0; r < options.ranks; ++r) {
            sum += element(r, i);
        }
        wrong += host[i] != sum;
    }
    check(cuMemFree(input), "cuMemFree");
    check(cuMemFree(output), "cuMemFree");
    if (g_rank == 0) {
        report(options, bytes, std::move(milliseconds), wrong, last);
    }
    return wrong == 0;
}

int run_rank(const Options& options, const ncclUniqueId& id) {
    const Communicator joined = join(options, id);
    if (g_rank == 0) {
        int version = 0;
        check(ncclGetVersion(&version), "ncclGetVersion");
        std::printf("{\"nccl\": %d, \"ranks\": %d, \"iterations\": %d, \"sizes\": [\n", version,
                    options.ranks, options.iterations);
    }
    bool right = true;
    for (std::size_t i = 0; i < options.sizes.size(); ++i) {
        right &= measure(options, joined, options.sizes[i], i + 1 == options.sizes.size());
    }
    check(ncclCommDestroy(joined.comm), "ncclCommDestroy");
    if (g_rank == 0) {
        std::printf("], \"correct\": %s}\n", right ? "true" : "false");
    }
    return right ? 0 : 1;
}

// One rank's process: rank 0 makes the id (its bootstrap thread has to live there) and hands it to
// the others.
int child(const Options& options, const int channel[2]) {
    ::setenv("NCCL_HOSTID", ("deft-rank-" + std::to_string(g_rank)).c_str(), 1);
    ncclUniqueId id;
    if (g_rank == 0) {
        check(ncclGetUniqueId(&id), "ncclGetUniqueId");
        for (int other = 1; other < options.ranks; ++other) {
            if (::write(channel[1], &id, sizeof(id)) != sizeof(id)) {
                fail("pipe", std::strerror(errno));
            }
        }
    } else if (::read(channel[0], &id, sizeof(id)) != sizeof(id)) {
        fail("pipe", "rank 0 sent no id");
    }
    const int status = run_rank(options, id);
    std::fflush(stdout);
    return status;
}

}  // namespace

int main(int argc, char** argv) {
    const Options options = parse(argc, argv);
    int channel[2];
    if (::pipe(channel) != 0) {
        fail("pipe", std::strerror(errno));
    }
    std::vector<pid_t> children;
    for (int rank = 0; rank < options.ranks; ++rank) {
        const pid_t pid = ::fork();
        if (pid < 0) {
            fail("fork", std::strerror(errno));
        }
        if (pid == 0) {
            g_rank = rank;
            std::exit(child(options, channel));  // not _Exit: deft writes its report at the end
        }
        children.push_back(pid);
    }
    int result = 0;
    for (const pid_t pid : children) {
        int status = 0;
        ::waitpid(pid, &status, 0);
        result |= WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    }
    return result;
}
