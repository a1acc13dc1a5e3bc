// SPDX-License-Identifier: Apache-2.0
// One rank of a small data-parallel job on CUDA's driver API and NCCL, with the calls PyTorch DDP
// makes: one large bucket, then two and a map of used parameters in every iteration.
//
// usage: training_main linked|handle|leaky|held|moves RANK RANKS ID_FILE ITERATIONS
//   handle: looks NCCL up on its handle, past any preload; leaky: never destroys its communicator;
//   held: says on standard error when it has begun, and a call that fails does not end it, so that
//   others than the caller can hear of it; moves: goes to the folder / when it has begun
#include <cuda.h>
#include <dlfcn.h>
#include <nccl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/system/shim/exchange_id.h"

namespace {

constexpr unsigned kHeldSeconds = 400;
constexpr char kBegun[] = "the job has begun\n";
bool g_held = false;

void check(int result, const char* what) {
    if (result != 0) {
        std::printf("%s failed: %d\n", what, result);
        if (g_held) {
            std::fflush(stdout);
            ::sleep(kHeldSeconds);  // whoever started it ends it
        }
        std::exit(1);
    }
}

struct Nccl {
    decltype(&ncclGetUniqueId) get_unique_id = &ncclGetUniqueId;
    decltype(&ncclCommInitRank) init_rank = &ncclCommInitRank;
    decltype(&ncclAllReduce) all_reduce = &ncclAllReduce;
    decltype(&ncclCommDestroy) destroy = &ncclCommDestroy;

    void look_up() {
        void* const handle = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
        check(handle == nullptr, "dlopen");
        get_unique_id =
            reinterpret_cast<decltype(get_unique_id)>(::dlsym(handle, "ncclGetUniqueId"));
        init_rank = reinterpret_cast<decltype(init_rank)>(::dlsym(handle, "ncclCommInitRank"));
        all_reduce = reinterpret_cast<decltype(all_reduce)>(::dlsym(handle, "ncclAllReduce"));
        destroy = reinterpret_cast<decltype(destroy)>(::dlsym(handle, "ncclCommDestroy"));
    }
};

void meet(int rank, int ranks, const std::string& id_file) {
    const auto name = [&](int of) { return id_file + ".done" + std::to_string(of); };
    std::FILE* const mine = std::fopen(name(rank).c_str(), "w");
    check(mine == nullptr || std::fclose(mine) != 0, "saying that this rank is done");
    for (int other = 0, waited = 0; other < ranks; ++waited) {
        check(waited > 12000, "waiting for the other ranks");
        if (::access(name(other).c_str(), F_OK) == 0) {
            ++other;
        } else {
            ::usleep(10'000);
        }
    }
}

void open_device(size_t bytes, CUstream& stream, CUdeviceptr& memory) {
    CUdevice device = 0;
    CUcontext context = nullptr;
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(cuMemAlloc(&memory, bytes), "cuMemAlloc");
}

}  // namespace

int main(int argc, char** argv) {
    check(argc != 6, "usage");
    const std::string how = argv[1];
    g_held = how == "held";
    const int rank = std::atoi(argv[2]);
    const int ranks = std::atoi(argv[3]);
    const int iterations = std::atoi(argv[5]);
    Nccl nccl;
    if (how == "handle") {
        nccl.look_up();
    }
    constexpr size_t kFirst = 100'000;
    constexpr size_t kSecond = 200'000;
    CUstream stream = nullptr;
    CUdeviceptr memory = 0;
    const size_t bytes = (kFirst + kSecond + 8) * sizeof(float);
    open_device(bytes, stream, memory);
    auto* const data = reinterpret_cast<float*>(memory);

    ncclComm_t comm = nullptr;
    check(nccl.init_rank(&comm, ranks, deft::test::exchange_id(rank, argv[4], nccl.get_unique_id),
                         rank),
          "ncclCommInitRank");
    const auto reduce = [&](float* at, size_t count, ncclDataType_t type, ncclRedOp_t op) {
        check(nccl.all_reduce(at, at, count, type, op, comm, stream), "ncclAllReduce");
    };
    check(cuMemsetD32Async(memory, 0, bytes / 4, stream), "cuMemsetD32Async");
    reduce(data, kFirst + kSecond, ncclFloat, ncclSum);
    if (g_held) {
        std::fputs(kBegun, stderr);
    }
    check(how == "moves" && ::chdir("/") != 0, "chdir");
    std::vector<float> host(bytes / 4);
    for (int i = 0; i < iterations; ++i) {
        // Every rank adds its number plus one: the sum is known.
        for (float& value : host) {
            value = static_cast<float>(rank + 1);
        }
        check(cuMemcpyHtoDAsync(memory, host.data(), bytes, stream), "cuMemcpyHtoDAsync");
        check(cuStreamSynchronize(stream), "cuStreamSynchronize");
        ::usleep(1000);  // forward, and backward until the first bucket is complete
        reduce(data, kFirst, ncclFloat, ncclSum);
        ::usleep(1000);
        reduce(data + kFirst, kSecond, ncclFloat, ncclSum);
        reduce(data + kFirst + kSecond, 8, ncclInt32, ncclMax);
        check(cuStreamSynchronize(stream), "cuStreamSynchronize");
        check(cuMemcpyDtoHAsync(host.data(), memory, bytes, stream), "cuMemcpyDtoHAsync");
        check(cuStreamSynchronize(stream), "cuStreamSynchronize");
        const float sum = static_cast<float>(ranks * (ranks + 1) / 2);
        check(host[0] != sum || host[kFirst] != sum || host[kFirst + kSecond - 1] != sum,
              "the sum");
    }
    if (how == "leaky") {
        // A rank that goes without a word fails those that still compute.
        meet(rank, ranks, argv[4]);
    } else {
        check(nccl.destroy(comm), "ncclCommDestroy");
    }
    std::printf("rank %d done\n", rank);
    return 0;
}
