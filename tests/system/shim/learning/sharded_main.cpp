// SPDX-License-Identifier: Apache-2.0
// One rank of a job whose parameters and gradients are sharded. Every number of every iteration is
// checked.
//
// usage: sharded_main fsdp|megatron RANK RANKS ID_FILE ITERATIONS
//   fsdp:     two layers are gathered for the forward pass and again for the backward pass, their
//             gradients scattered; those of replicas are summed over a second communicator
//   megatron: activations are summed over a second communicator (tensor parallelism), forward and
//             backward; at the end gradients are scattered and parameters gathered (distributed
//             optimizer)
#include <cuda.h>
#include <nccl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/system/shim/exchange_id.h"

namespace {

constexpr unsigned kMostSeconds = 120;
constexpr size_t kShards[] = {40'000, 25'000};
constexpr size_t kActivations = 60'000;

void check(int result, const char* what) {
    if (result != 0) {
        std::printf("%s failed: %d\n", what, result);
        std::exit(1);
    }
}

// A rank's memory on the device, and the calls on it.
class Rank {
public:
    Rank(int rank, int ranks, const std::string& file) : rank_(rank), ranks_(ranks) {
        CUdevice device = 0;
        CUcontext context = nullptr;
        check(cuInit(0), "cuInit");
        check(cuDeviceGet(&device, 0), "cuDeviceGet");
        check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
        check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        check(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        check(cuMemAlloc(&memory_, size() * sizeof(float)), "cuMemAlloc");
        check(ncclCommInitRank(&shards_, ranks, deft::test::exchange_id(rank, file), rank),
              "ncclCommInitRank");
        check(ncclCommInitRank(&beside_, ranks, deft::test::exchange_id(rank, file + ".beside"),
                               rank),
              "ncclCommInitRank");
    }
    ~Rank() {
        check(ncclCommDestroy(beside_), "ncclCommDestroy");
        check(ncclCommDestroy(shards_), "ncclCommDestroy");
    }
    Rank(const Rank&) = delete;

    // Shard r of a layer holds t + r.
    void gather(size_t layer, int t) {
        const size_t count = kShards[layer];
        fill(static_cast<size_t>(rank_) * count, count, t + rank_);
        check(ncclAllGather(data() + static_cast<size_t>(rank_) * count, data(), count, ncclFloat,
                            shards_, stream_),
              "ncclAllGather");
        for (int r = 0; r < ranks_; ++r) {
            expect(static_cast<size_t>(r) * count, count, t + r, "a gathered shard");
        }
    }
    // Rank r's gradient of a layer is (t + 1) * (r + 1) everywhere.
    void scatter(size_t layer, int t) {
        const size_t count = kShards[layer];
        fill(0, count * static_cast<size_t>(ranks_), (t + 1) * (rank_ + 1));
        const size_t own = static_cast<size_t>(rank_) * count;
        check(ncclReduceScatter(data(), data() + own, count, ncclFloat, ncclSum, shards_, stream_),
              "ncclReduceScatter");
        expect(own, count, (t + 1) * ranks_ * (ranks_ + 1) / 2, "a scattered gradient");
    }
    void sum_beside(size_t count, int t) {
        fill(0, count, (t + 1) * (rank_ + 1));
        check(ncclAllReduce(data(), data(), count, ncclFloat, ncclSum, beside_, stream_),
              "ncclAllReduce");
        expect(0, count, (t + 1) * ranks_ * (ranks_ + 1) / 2, "a sum beside the shards");
    }

private:
    const int rank_;
    const int ranks_;
    CUstream stream_ = nullptr;
    CUdeviceptr memory_ = 0;
    ncclComm_t shards_ = nullptr;
    ncclComm_t beside_ = nullptr;
    std::vector<float> host_;

    float* data() const { return reinterpret_cast<float*>(memory_); }
    size_t size() const { return kActivations + kShards[0] * static_cast<size_t>(ranks_); }
    void fill(size_t from, size_t count, int value) {
        host_.assign(count, static_cast<float>(value));
        check(cuMemcpyHtoDAsync(memory_ + from * sizeof(float), host_.data(), count * sizeof(float),
                                stream_),
              "cuMemcpyHtoDAsync");
        check(cuStreamSynchronize(stream_), "cuStreamSynchronize");
    }
    void expect(size_t from, size_t count, int value, const char* what) {
        host_.assign(count, -1);
        check(cuMemcpyDtoHAsync(host_.data(), memory_ + from * sizeof(float), count * sizeof(float),
                                stream_),
              "cuMemcpyDtoHAsync");
        check(cuStreamSynchronize(stream_), "cuStreamSynchronize");
        for (const float one : host_) {
            check(one != static_cast<float>(value), what);
        }
    }
};

void fsdp(Rank& self, int t) {
    self.gather(0, t);
    self.gather(1, t);
    ::usleep(500);
    for (const size_t layer : {1, 0}) {
        self.gather(layer, t);
        self.scatter(layer, t);
        self.sum_beside(kShards[layer], t);
    }
}

void megatron(Rank& self, int t) {
    for (int layer = 0; layer < 4; ++layer) {  // two forward, two backward
        self.sum_beside(kActivations, t);
        ::usleep(200);
    }
    self.scatter(0, t);
    self.gather(0, t);
}

}  // namespace

int main(int argc, char** argv) {
    check(argc != 6, "usage");
    ::alarm(kMostSeconds);
    const bool sharded = argv[1] == std::string("fsdp");
    Rank self(std::atoi(argv[2]), std::atoi(argv[3]), argv[4]);
    for (int t = 0; t < std::atoi(argv[5]); ++t) {
        sharded ? fsdp(self, t) : megatron(self, t);
    }
    std::printf("done\n");
    return 0;
}
