// SPDX-License-Identifier: Apache-2.0
// One rank of a job whose parameters and gradients are sharded. Every number of every iteration is
// checked.
//
// usage: sharded_main fsdp|grouped|nonblocking|megatron RANK RANKS ID_FILE ITERATIONS [PLANS]
//   fsdp:     two layers are gathered for the forward pass and again for the backward pass, their
//             gradients scattered; those of replicas are summed over a second communicator
//   grouped:  the same, both layers' calls in one group, gradients scattered to another place; the
//             second communicator is not used
//   nonblocking: as grouped, over nonblocking communicators
//   megatron: activations are summed over a second communicator (tensor parallelism), forward and
//             backward; at the end gradients are scattered and parameters gathered (distributed
//             optimizer)
//   PLANS: until so many plans have been in force on rank 0 for 60 iterations, at most ITERATIONS
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
#include "tests/system/shim/ways.h"

namespace {

constexpr int kMostSeconds = 120;  // between two iterations
constexpr size_t kShards[] = {40'000, 25'000};
constexpr size_t kActivations = 60'000;

// Ends a job that stands still. By seconds that this process has seen pass, and not by a clock: one
// that was stopped meanwhile, or that is slow next to others, is well.
class Watchdog {
public:
    Watchdog() : thread_([this] { watch(); }) {}
    ~Watchdog() {
        over_ = true;
        thread_.join();
    }
    Watchdog(const Watchdog&) = delete;
    void begin(int iteration) { iteration_ = iteration; }

private:
    void watch() {
        int seen = 0;
        for (int tenths = 0; !over_ && tenths < 10 * kMostSeconds; ++tenths) {
            if (const int now = iteration_; now != seen) {
                seen = now;
                tenths = 0;
            }
            ::usleep(100'000);
        }
        if (!over_) {
            std::fprintf(stderr, "standing still in iteration %d\n", seen);
            ::_exit(1);
        }
    }

    std::atomic<int> iteration_{-1};
    std::atomic<bool> over_{false};
    std::thread thread_;
};

void check(int result, const char* what) {
    if (result != 0) {
        std::printf("%s failed: %d\n", what, result);
        std::exit(1);
    }
}

// A rank's memory on the device, and the calls on it.
class Rank {
public:
    Rank(int rank, int ranks, const std::string& file, bool nonblocking)
        : rank_(rank), ranks_(ranks) {
        CUdevice device = 0;
        CUcontext context = nullptr;
        check(cuInit(0), "cuInit");
        check(cuDeviceGet(&device, 0), "cuDeviceGet");
        check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
        check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        check(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        check(cuMemAlloc(&memory_, size() * sizeof(float)), "cuMemAlloc");
        make(&shards_, file, nonblocking);
        make(&beside_, file + ".beside", nonblocking);
    }
    ~Rank() {
        check(ncclCommDestroy(beside_), "ncclCommDestroy");
        check(ncclCommDestroy(shards_), "ncclCommDestroy");
    }
    Rank(const Rank&) = delete;

    // Shard r of a layer holds t + r.
    void gather(size_t layer, int t) {
        own_shard(layer, t);
        call_gather(layer);
        gathered(layer, t);
    }
    // Rank r's gradient of a layer is (t + 1) * (r + 1) everywhere.
    void scatter(size_t layer, int t) {
        fill(at(layer), whole(layer), (t + 1) * (rank_ + 1));
        call_scatter(layer, own(layer));
        expect(own(layer), kShards[layer], (t + 1) * ranks_ * (ranks_ + 1) / 2,
               "a scattered gradient");
    }
    void gather_all(int t) {
        own_shard(0, t);
        own_shard(1, t);
        check(ncclGroupStart(), "ncclGroupStart");
        call_gather(0);
        call_gather(1);
        end_group();
        gathered(0, t);
        gathered(1, t);
    }
    void scatter_all(int t) {
        fill(at(0), whole(0) + whole(1), (t + 1) * (rank_ + 1));
        fill(apart(), kShards[0] + kShards[1], -1);
        check(ncclGroupStart(), "ncclGroupStart");
        call_scatter(0, apart());
        call_scatter(1, apart() + kShards[0]);
        end_group();
        expect(apart(), kShards[0] + kShards[1], (t + 1) * ranks_ * (ranks_ + 1) / 2,
               "a gradient scattered elsewhere");
        expect(at(0), whole(0) + whole(1), (t + 1) * (rank_ + 1), "what was scattered");
    }
    void sum_beside(size_t count, int t) {
        fill(0, count, (t + 1) * (rank_ + 1));
        check(ncclAllReduce(data(), data(), count, ncclFloat, ncclSum, beside_, stream_),
              "ncclAllReduce");
        expect(0, count, (t + 1) * ranks_ * (ranks_ + 1) / 2, "a sum beside the shards");
    }

    // In every iteration, so that it is a part of it.
    bool all_go_on(bool own) {
        const int mine = own ? 1 : 0;
        int least = 0;
        const CUdeviceptr at = memory_ + apart() * sizeof(float);
        check(cuMemcpyHtoDAsync(at, &mine, sizeof mine, stream_), "cuMemcpyHtoDAsync");
        auto* const word = reinterpret_cast<void*>(at);
        check(deft::test::wait_done(
                  ncclAllReduce(word, word, 1, ncclInt32, ncclMin, beside_, stream_), beside_),
              "ncclAllReduce");
        check(cuMemcpyDtoHAsync(&least, at, sizeof least, stream_), "cuMemcpyDtoHAsync");
        check(cuStreamSynchronize(stream_), "cuStreamSynchronize");
        return least != 0;
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
    size_t whole(size_t layer) const { return kShards[layer] * static_cast<size_t>(ranks_); }
    size_t at(size_t layer) const { return layer == 0 ? 0 : whole(0); }
    size_t own(size_t layer) const {
        return at(layer) + static_cast<size_t>(rank_) * kShards[layer];
    }
    size_t apart() const { return whole(0) + whole(1); }
    size_t size() const { return kActivations + 2 * (whole(0) + whole(1)); }
    void make(ncclComm_t* comm, const std::string& file, bool nonblocking) const {
        check(nonblocking
                  ? deft::test::make_nonblocking(comm, rank_, ranks_, file)
                  : ncclCommInitRank(comm, ranks_, deft::test::exchange_id(rank_, file), rank_),
              "ncclCommInitRank");
    }
    void own_shard(size_t layer, int t) { fill(own(layer), kShards[layer], t + rank_); }
    void call_gather(size_t layer) {
        const int result = ncclAllGather(data() + own(layer), data() + at(layer), kShards[layer],
                                         ncclFloat, shards_, stream_);
        check(result == ncclInProgress ? 0 : result, "ncclAllGather");
    }
    void call_scatter(size_t layer, size_t to) {
        const int result = ncclReduceScatter(data() + at(layer), data() + to, kShards[layer],
                                             ncclFloat, ncclSum, shards_, stream_);
        check(result == ncclInProgress ? 0 : result, "ncclReduceScatter");
    }
    void end_group() { check(deft::test::wait_done(ncclGroupEnd(), shards_), "ncclGroupEnd"); }
    void gathered(size_t layer, int t) {
        for (int r = 0; r < ranks_; ++r) {
            expect(at(layer) + static_cast<size_t>(r) * kShards[layer], kShards[layer], t + r,
                   "a gathered shard");
        }
    }
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

// Iterations of all plans together, once so many have come into force.
uint64_t planned_iterations(uint64_t plans) {
    using Stats = int(deft_stats_t*);
    static auto* const ask = reinterpret_cast<Stats*>(::dlsym(RTLD_DEFAULT, "deft_stats"));
    deft_stats_t stats{};
    stats.size = sizeof stats;
    check(ask == nullptr || ask(&stats) != 0, "deft_stats");
    return stats.switched >= plans ? stats.iterations : 0;
}

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

void grouped(Rank& self, int t) {
    self.gather_all(t);
    ::usleep(500);
    self.gather_all(t);
    self.scatter_all(t);
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
    check(argc != 6 && argc != 7, "usage");
    Watchdog watchdog;
    const std::string how = argv[1];
    const bool nonblocking = how == "nonblocking";
    Rank self(std::atoi(argv[2]), std::atoi(argv[3]), argv[4], nonblocking);
    auto* const iterate = how == "fsdp" ? fsdp : how == "megatron" ? megatron : grouped;
    const uint64_t plans = argc == 7 ? std::strtoull(argv[6], nullptr, 10) : 0;
    bool more = true;
    for (int t = 0; more && t < std::atoi(argv[5]); ++t) {
        watchdog.begin(t);
        iterate(self, t);
        const bool leads = plans > 0 && std::atoi(argv[2]) == 0;
        more = plans == 0 || self.all_go_on(!leads || planned_iterations(plans) < 60 * plans);
    }
    std::printf("done\n");
    return 0;
}
