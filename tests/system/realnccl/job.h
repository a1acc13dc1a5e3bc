// SPDX-License-Identifier: Apache-2.0
// One rank of a job over NCCL, and what it found.
#pragma once

#include <cuda.h>
#include <nccl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/system/shim/exchange_id.h"

namespace deft::test {

inline void check(int result, const char* what) {
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
    void say() const {
        std::printf("checked %llu wrong %llu\n", checked, wrong);
        std::fflush(stdout);
    }
};

struct Job {
    int rank = 0;
    int ranks = 1;
    std::string id_file;
    int device = 0;
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    ncclComm_t comm = nullptr;

    void open() {
        check(cuInit(0), "cuInit");
        check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
        check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    }
    /// `again` names the communicator where a job makes several.
    ncclUniqueId id(const std::string& again = "") const {
        return exchange_id(rank, id_file + again, &ncclGetUniqueId);
    }
    void join(const std::string& again = "") {
        check(ncclCommInitRank(&comm, ranks, id(again), rank), "ncclCommInitRank");
    }
    void leave() { check(ncclCommDestroy(comm), "ncclCommDestroy"); }
    /// Until all ranks have come to this place.
    void meet(const std::string& place) const {
        const auto name = [&](int of) { return id_file + "." + place + std::to_string(of); };
        std::FILE* const mine = std::fopen(name(rank).c_str(), "w");
        check(mine == nullptr || std::fclose(mine) != 0, "saying that this rank has come");
        for (int other = 0; other < ranks;) {
            if (::access(name(other).c_str(), F_OK) == 0) {
                ++other;
            } else {
                ::usleep(1000);
            }
        }
    }
    void wait() const { check(cuStreamSynchronize(stream), "cuStreamSynchronize"); }
    /// Nothing of the stream is left to do.
    bool idle() const { return cuStreamQuery(stream) == CUDA_SUCCESS; }
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

inline void all_reduce(const Job& job, const Memory& memory, std::size_t count) {
    check(
        ncclAllReduce(memory.get(), memory.get(), count, ncclFloat, ncclSum, job.comm, job.stream),
        "ncclAllReduce");
}

// ---- gradients that are known -------------------------------------------------------------------

// They point the same way from round to round, as deft's guard wants it, and none is lost in a sum.
inline float gradient(int rank, std::size_t i, int round) {
    const std::size_t mixed = i * 7 + static_cast<std::size_t>(rank * 13 + round * 5);
    return static_cast<float>(mixed % 101 + 1);
}

inline float gradient_sum(int ranks, std::size_t i, int round) {
    float all = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        all += gradient(rank, i, round);
    }
    return all;
}

inline void fill(std::vector<float>& host, int rank, int round) {
    for (std::size_t i = 0; i < host.size(); ++i) {
        host[i] = gradient(rank, i, round);
    }
}

inline void compare(const std::vector<float>& host, int ranks, int round, Tally& tally) {
    for (std::size_t i = 0; i < host.size(); ++i) {
        tally.add(host[i] == gradient_sum(ranks, i, round));
    }
}

// ---- what a job can do, by name -----------------------------------------------------------------

using Scenarios = std::map<std::string, std::function<void(Job&)>>;

Scenarios training();
Scenarios every_collective();
Scenarios endings();

}  // namespace deft::test
