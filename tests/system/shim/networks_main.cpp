// SPDX-License-Identifier: Apache-2.0
// One communicator made in one way, two ranks as threads of one process, each with a device of its
// own; sums travel over it alone. SOFTDEV_NET_BYTES tells over which network.
//
// usage: networks_main rank|config|named|old|scalable|nonblocking|all|grouped|split|split-config|
//                      split-shared|split-named|shrink|shrink-config|no-hook|mixed|
//                      grow|grow-config
#include <cuda.h>
#include <dlfcn.h>
#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "tests/system/shim/must.h"
#include "tests/system/shim/newer_nccl.h"

namespace {

constexpr int kRanks = 2;
constexpr size_t kCount = 100'000;

using deft::test::check;

void use(int device) {
    CUcontext context = nullptr;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
}

void settle(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        MUST(ncclCommGetAsyncError(comm, &state));
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    check(state, "a nonblocking call");
}

void sum_over(ncclComm_t comm, int ranks = kRanks) {
    CUstream stream = nullptr;
    CUdeviceptr memory = 0;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc(&memory, kCount * sizeof(int)));
    MUST(cuMemsetD32Async(memory, 1, kCount, stream));
    auto* const data = reinterpret_cast<void*>(memory);
    const int result = ncclAllReduce(data, data, kCount, ncclInt32, ncclSum, comm, stream);
    check(result == ncclInProgress ? 0 : result, "ncclAllReduce");
    settle(comm);
    std::vector<int> host(kCount);
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH(host.data(), memory, kCount * sizeof(int)));
    for (const int one : host) {
        check(one != ranks, "the sum");
    }
    MUST(cuMemFree(memory));
    MUST(cuStreamDestroy(stream));
}

ncclConfig_t default_config() {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    return config;
}

// Each rank in a thread of its own makes a communicator, which is summed over and destroyed.
void in_threads(const std::function<ncclComm_t(int rank)>& make) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
        threads.emplace_back([&, rank] {
            use(rank);
            ncclComm_t comm = make(rank);
            sum_over(comm);
            MUST(ncclCommDestroy(comm));
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

ncclComm_t make(const ncclUniqueId& id, int rank, ncclConfig_t* config) {
    ncclComm_t comm = nullptr;
    const int result = ncclCommInitRankConfig(&comm, kRanks, id, rank, config);
    check(result == ncclInProgress ? 0 : result, "ncclCommInitRankConfig");
    settle(comm);
    return comm;
}

void from_parent(const ncclUniqueId& id, const std::string& way) {
    in_threads([&](int rank) {
        ncclConfig_t config = default_config();
        if (way == "split-shared") {
            config.splitShare = 1;
        }
        if (way == "split-named") {
            config.netName = "Socket";
        }
        ncclComm_t parent = make(id, rank, &config);
        ncclConfig_t child_config = default_config();
        child_config.commName = "child";
        ncclComm_t child = nullptr;
        const bool configured = way != "split" && way != "shrink" && way != "split-named";
        MUST(ncclCommSplit(parent, 0, rank, &child, configured ? &child_config : nullptr));
        return child;  // the parent is left to the end of the process, as many jobs do
    });
}

// A third rank goes, the others remain.
void shrunk(const ncclUniqueId& id, bool configured) {
    constexpr int kThree = 3;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kThree; ++rank) {
        threads.emplace_back([&, rank] {
            use(rank);
            ncclComm_t parent = nullptr;
            MUST(ncclCommInitRank(&parent, kThree, id, rank));
            if (rank == 2) {
                return;
            }
            int without[] = {2};
            ncclComm_t fewer = nullptr;
            ncclConfig_t config = default_config();
            MUST(ncclCommShrink(parent, without, 1, &fewer, configured ? &config : nullptr,
                                NCCL_SHRINK_DEFAULT));
            sum_over(fewer);
            MUST(ncclCommDestroy(fewer));
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

// Two ranks are joined by a third.
void grown(const ncclUniqueId& id, bool configured) {
    constexpr int kThree = 3;
    std::promise<ncclUniqueId> made;
    const std::shared_future<ncclUniqueId> joins = made.get_future().share();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kThree; ++rank) {
        threads.emplace_back([&, rank] {
            use(rank);
            ncclComm_t parent = nullptr;
            ncclUniqueId own;
            const ncclUniqueId* given = nullptr;
            if (rank < kRanks) {
                MUST(ncclCommInitRank(&parent, kRanks, id, rank));
            }
            if (rank == 0) {
                MUST(ncclCommGetUniqueId(parent, &own));
                made.set_value(own);
            }
            if (rank != 1) {
                own = joins.get();
                given = &own;
            }
            ncclConfig_t config = default_config();
            ncclComm_t more = nullptr;
            MUST(ncclCommGrow(parent, kThree, given, rank < kRanks ? -1 : rank, &more,
                              configured ? &config : nullptr));
            sum_over(more, kThree);
            MUST(ncclCommDestroy(more));
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

void together(const std::function<void(ncclComm_t*)>& make_all) {
    ncclComm_t comms[kRanks] = {};
    make_all(comms);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
        threads.emplace_back([&, rank] {
            use(rank);
            sum_over(comms[rank]);
            MUST(ncclCommDestroy(comms[rank]));
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

// As loaders that look functions up by handle.
void past_the_hooks(const ncclUniqueId& id) {
    void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    auto* const init =
        reinterpret_cast<decltype(&ncclCommInitRank)>(::dlsym(library, "ncclCommInitRank"));
    check(init == nullptr, "dlsym");
    in_threads([&](int rank) {
        ncclComm_t comm = nullptr;
        MUST(init(&comm, kRanks, id, rank));
        return comm;
    });
}

ncclConfig_t config_of(const std::string& way) {
    ncclConfig_t config = default_config();
    if (way == "named") {
        config.netName = "Socket";
    }
    if (way == "nonblocking") {
        config.blocking = 0;
    }
    if (way == "old") {  // as a program built with nccl.h 2.14 has it
        config.size = 24;
        config.version = NCCL_VERSION(2, 14, 3);
        std::memset(reinterpret_cast<char*>(&config) + config.size, 0x5a,
                    sizeof(config) - config.size);
    }
    return config;
}

void grouped(const ncclUniqueId& id) {
    together([&](ncclComm_t* comms) {
        MUST(ncclGroupStart());
        for (int rank = 0; rank < kRanks; ++rank) {
            use(rank);
            MUST(ncclCommInitRank(&comms[rank], kRanks, id, rank));
        }
        MUST(ncclGroupEnd());
    });
}

}  // namespace

int main(int argc, char** argv) {
    const std::string way = argc > 1 ? argv[1] : "";
    use(0);
    ncclUniqueId id;
    MUST(ncclGetUniqueId(&id));
    if (way == "rank") {
        in_threads([&](int rank) {
            ncclComm_t comm = nullptr;
            MUST(ncclCommInitRank(&comm, kRanks, id, rank));
            return comm;
        });
    } else if (way == "config" || way == "named" || way == "old" || way == "nonblocking") {
        const ncclConfig_t config = config_of(way);
        in_threads([&](int rank) {
            ncclConfig_t own = config;
            return make(id, rank, &own);
        });
    } else if (way == "scalable") {
        ncclUniqueId ids[2] = {id, {}};
        MUST(ncclGetUniqueId(&ids[1]));
        in_threads([&](int rank) {
            ncclComm_t comm = nullptr;
            MUST(ncclCommInitRankScalable(&comm, kRanks, rank, 2, ids, nullptr));
            return comm;
        });
    } else if (way == "all") {
        together([](ncclComm_t* comms) { MUST(ncclCommInitAll(comms, kRanks, nullptr)); });
        int device = -1;
        MUST(cuCtxGetDevice(&device));
        check(device != 0, "the device that was current");
    } else if (way == "grouped") {
        grouped(id);
    } else if (way.starts_with("split")) {
        from_parent(id, way);
    } else if (way == "shrink" || way == "shrink-config") {
        shrunk(id, way == "shrink-config");
    } else if (way == "grow" || way == "grow-config") {
        grown(id, way == "grow-config");
    } else if (way == "no-hook") {
        past_the_hooks(id);
    } else if (way == "mixed") {  // as PyTorch and vLLM in one process
        in_threads([&](int rank) { return make(id, rank, nullptr); });
        MUST(ncclGetUniqueId(&id));
        past_the_hooks(id);
    } else {
        std::printf("unknown way\n");
        return 2;
    }
    std::printf("done\n");
    return 0;
}
