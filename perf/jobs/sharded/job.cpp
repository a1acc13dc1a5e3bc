// SPDX-License-Identifier: Apache-2.0
#include "perf/jobs/sharded/job.h"

#include <cuda.h>
#include <fcntl.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <vector>

namespace sharded {
namespace {

// As in perf/jobs/replay.
constexpr char kKernel[] = "softdev_spin_ns";
constexpr char kPtx[] = R"(
.version 6.3
.target sm_75
.address_size 64
.visible .entry softdev_spin_ns(.param .u64 nanoseconds)
{
    .reg .u64 %start, %now, %length;
    .reg .pred %more;
    ld.param.u64 %length, [nanoseconds];
    mov.u64 %start, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %more, %now, %length;
    @%more bra again;
    ret;
}
)";
constexpr std::chrono::seconds kMeetDeadline{120};
constexpr std::size_t kTensors = 4;  // of a layer, where they travel in a group

void check(CUresult result, const char* what) {
    if (result != CUDA_SUCCESS) {
        const char* text = nullptr;
        cuGetErrorString(result, &text);
        throw std::runtime_error(std::string(what) + ": " + (text != nullptr ? text : "unknown"));
    }
}

void check(ncclResult_t result, const char* what) {
    if (result != ncclSuccess) {
        throw std::runtime_error(std::string(what) + ": " + ncclGetErrorString(result));
    }
}

ncclUniqueId exchange_id(int rank, const std::string& path) {
    ncclUniqueId id;
    if (rank == 0) {
        check(ncclGetUniqueId(&id), "ncclGetUniqueId");
        const std::string fresh = path + ".new";
        const int file = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        const bool written = file >= 0 && ::write(file, &id, sizeof(id)) == sizeof(id);
        if (file >= 0) {
            ::close(file);
        }
        if (!written || ::rename(fresh.c_str(), path.c_str()) != 0) {
            throw std::runtime_error(path + ": " + std::strerror(errno));
        }
        return id;
    }
    const auto end = std::chrono::steady_clock::now() + kMeetDeadline;
    while (std::chrono::steady_clock::now() < end) {
        const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (file >= 0) {
            const bool whole = ::read(file, &id, sizeof(id)) == sizeof(id);
            ::close(file);
            if (whole) {
                return id;
            }
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    throw std::runtime_error(path + ": rank 0 has left no unique id within 120 s");
}

CUevent make_event(unsigned flags = CU_EVENT_DISABLE_TIMING) {
    CUevent event = nullptr;
    check(cuEventCreate(&event, flags), "cuEventCreate");
    return event;
}

// What FSDP2 does: parameters are gathered one layer ahead, forward and again backward; gradients
// are scattered as they are made; the update waits for all of them.
class Job {
public:
    explicit Job(const Options& options)
        : options_(options), shard_(options.bytes / 4 / static_cast<std::size_t>(options.ranks)) {
        shard_ -= shard_ % kTensors;
        CUdevice device = 0;
        CUcontext context = nullptr;
        int devices = 0;
        check(cuInit(0), "cuInit");
        check(cuDeviceGetCount(&devices), "cuDeviceGetCount");
        check(cuDeviceGet(&device, options.local_rank % std::max(devices, 1)), "cuDeviceGet");
        check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
        check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        check(cuModuleLoadData(&module_, kPtx), "cuModuleLoadData");
        check(cuModuleGetFunction(&kernel_, module_, kKernel), "cuModuleGetFunction");
        for (CUstream* const stream : {&compute_, &gathers_, &scatters_}) {
            check(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        }
        for (int layer = 0; layer < options.layers; ++layer) {
            Layer made;
            check(cuMemAlloc(&made.parameters, whole()), "cuMemAlloc");
            check(cuMemAlloc(&made.gradients, whole()), "cuMemAlloc");
            made.gathered = make_event();
            made.computed = make_event();
            layers_.push_back(made);
        }
        scattered_ = make_event();
        check(ncclCommInitRank(&shards_, options.ranks, exchange_id(options.rank, options.id_file),
                               options.rank),
              "ncclCommInitRank");
        if (replicated()) {
            check(ncclCommInitRank(&replicas_, options.ranks,
                                   exchange_id(options.rank, options.id_file + ".replicas"),
                                   options.rank),
                  "ncclCommInitRank");
        }
    }

    /// Milliseconds of every iteration on the device's clock.
    std::vector<double> iterate() {
        std::vector<CUevent> starts;
        for (int t = 0; t <= options_.iterations; ++t) {
            starts.push_back(make_event(CU_EVENT_BLOCKING_SYNC));
        }
        for (int t = 0; t < options_.iterations; ++t) {
            check(cuEventRecord(starts[static_cast<std::size_t>(t)], compute_), "cuEventRecord");
            if (t > 0) {
                check(cuEventSynchronize(starts[static_cast<std::size_t>(t - 1)]),
                      "cuEventSynchronize");
            }
            if (t + 1 == options_.iterations) {
                fill();
            }
            iterate_once();
        }
        check(cuEventRecord(starts.back(), compute_), "cuEventRecord");
        check(cuEventSynchronize(starts.back()), "cuEventSynchronize");
        std::vector<double> milliseconds;
        for (std::size_t t = 0; t + 1 < starts.size(); ++t) {
            float took = 0;
            check(cuEventElapsedTime(&took, starts[t], starts[t + 1]), "cuEventElapsedTime");
            milliseconds.push_back(took);
        }
        return milliseconds;
    }

    /// FNV-1a of all that this rank holds after the last iteration.
    std::uint64_t digest() {
        std::uint64_t hash = 0xcbf29ce484222325U;
        std::vector<std::uint32_t> host(whole() / 4);
        for (const Layer& layer : layers_) {
            for (const CUdeviceptr memory : {layer.parameters, layer.gradients}) {
                check(cuMemcpyDtoH(host.data(), memory, whole()), "cuMemcpyDtoH");
                for (const std::uint32_t word : host) {
                    hash = (hash ^ word) * 0x100000001b3U;
                }
            }
        }
        return hash;
    }

    void end() {
        if (replicas_ != nullptr) {
            check(ncclCommDestroy(replicas_), "ncclCommDestroy");
        }
        check(ncclCommDestroy(shards_), "ncclCommDestroy");
    }

private:
    struct Layer {
        CUdeviceptr parameters = 0;
        CUdeviceptr gradients = 0;
        CUevent gathered = nullptr;
        CUevent computed = nullptr;
    };

    bool replicated() const { return options_.kind == "hsdp"; }
    std::size_t tensors() const { return options_.kind == "fsdp-grouped" ? kTensors : 1; }
    std::size_t whole() const { return shard_ * 4 * static_cast<std::size_t>(options_.ranks); }

    // Numbers whose sums depend on the order, of more than two ranks.
    void fill() {
        check(cuStreamSynchronize(scatters_), "cuStreamSynchronize");
        std::vector<float> host(whole() / 4);
        for (std::size_t l = 0; l < layers_.size(); ++l) {
            for (const CUdeviceptr memory : {layers_[l].parameters, layers_[l].gradients}) {
                for (std::size_t i = 0; i < host.size(); ++i) {
                    host[i] = static_cast<float>((i * 2654435761U + l * 977U +
                                                  static_cast<unsigned>(options_.rank) * 40503U) %
                                                 10007) /
                              7;
                }
                check(cuMemcpyHtoD(memory, host.data(), whole()), "cuMemcpyHtoD");
            }
        }
    }

    void wait(CUstream stream, CUevent event) {
        check(cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent");
    }

    void compute(double milliseconds) {
        auto nanoseconds = static_cast<std::uint64_t>(milliseconds * 1e6);
        void* parameters[] = {&nanoseconds};
        check(cuLaunchKernel(kernel_, 1, 1, 1, 1, 1, 1, 0, compute_, parameters, nullptr),
              "cuLaunchKernel");
    }

    // A layer's tensors one behind the other, in a group where there are several.
    template <class Make>
    void each_tensor(CUdeviceptr memory, Make make) {
        const std::size_t count = shard_ / tensors();
        const std::size_t bytes = count * 4 * static_cast<std::size_t>(options_.ranks);
        if (tensors() > 1) {
            check(ncclGroupStart(), "ncclGroupStart");
        }
        for (std::size_t i = 0; i < tensors(); ++i) {
            const CUdeviceptr all = memory + i * bytes;
            const CUdeviceptr own = all + static_cast<std::size_t>(options_.rank) * count * 4;
            make(reinterpret_cast<void*>(all), reinterpret_cast<void*>(own), count);
        }
        if (tensors() > 1) {
            check(ncclGroupEnd(), "ncclGroupEnd");
        }
    }

    // Two layers' parameters at a time: `after` is the layer computed two before.
    void gather(std::size_t l, const Layer* after) {
        if (after != nullptr) {
            wait(gathers_, after->computed);
        }
        each_tensor(layers_[l].parameters, [this](void* all, void* own, std::size_t count) {
            check(ncclAllGather(own, all, count, ncclFloat, shards_, gathers_), "ncclAllGather");
        });
        check(cuEventRecord(layers_[l].gathered, gathers_), "cuEventRecord");
    }

    void scatter(std::size_t l) {
        wait(scatters_, layers_[l].computed);
        each_tensor(layers_[l].gradients, [this](void* all, void* own, std::size_t count) {
            check(ncclReduceScatter(all, own, count, ncclFloat, ncclSum, shards_, scatters_),
                  "ncclReduceScatter");
        });
        if (replicated()) {
            const CUdeviceptr own =
                layers_[l].gradients + static_cast<std::size_t>(options_.rank) * shard_ * 4;
            auto* const shard = reinterpret_cast<void*>(own);
            check(ncclAllReduce(shard, shard, shard_, ncclFloat, ncclSum, replicas_, scatters_),
                  "ncclAllReduce");
        }
    }

    void layer(std::size_t l, double milliseconds) {
        wait(compute_, layers_[l].gathered);
        compute(milliseconds);
        check(cuEventRecord(layers_[l].computed, compute_), "cuEventRecord");
    }

    void iterate_once() {
        const std::size_t n = layers_.size();
        const double each = options_.compute_ms / 3 / static_cast<double>(n);
        // The parameters are there when the update has been made.
        check(cuEventRecord(scattered_, compute_), "cuEventRecord");
        wait(gathers_, scattered_);
        gather(0, nullptr);
        for (std::size_t l = 0; l < n; ++l) {
            if (l + 1 < n) {
                gather(l + 1, l > 0 ? &layers_[l - 1] : nullptr);
            }
            layer(l, each);
        }
        gather(n - 1, &layers_[n - 1]);
        for (std::size_t l = n; l-- > 0;) {
            if (l > 0) {
                gather(l - 1, l + 1 < n ? &layers_[l + 1] : nullptr);
            }
            layer(l, 2 * each);
            scatter(l);
        }
        check(cuEventRecord(scattered_, scatters_), "cuEventRecord");
        wait(compute_, scattered_);
    }

    const Options& options_;
    std::size_t shard_;  // numbers of a layer that a rank has
    CUmodule module_ = nullptr;
    CUfunction kernel_ = nullptr;
    CUstream compute_ = nullptr;
    CUstream gathers_ = nullptr;
    CUstream scatters_ = nullptr;
    std::vector<Layer> layers_;
    CUevent scattered_ = nullptr;
    ncclComm_t shards_ = nullptr;
    ncclComm_t replicas_ = nullptr;
};

}  // namespace

void run_rank(const Options& options) {
    Job job(options);
    const std::vector<double> iterations = job.iterate();
    const std::uint64_t digest = job.digest();
    job.end();
    if (options.rank != 0) {
        return;
    }
    const nlohmann::json result = {{"format", "sharded"},
                                   {"version", 1},
                                   {"kind", options.kind},
                                   {"layers", options.layers},
                                   {"bytes", options.bytes},
                                   {"ranks", options.ranks},
                                   {"compute_ms", options.compute_ms},
                                   {"iteration_ms", {{"raw", iterations}}},
                                   {"digest", std::to_string(digest)}};
    std::FILE* const file = options.json.empty() ? stdout : std::fopen(options.json.c_str(), "wb");
    if (file == nullptr || std::fputs((result.dump(1) + "\n").c_str(), file) < 0 ||
        std::fflush(file) != 0) {
        throw std::runtime_error(options.json + ": " + std::strerror(errno));
    }
}

}  // namespace sharded
