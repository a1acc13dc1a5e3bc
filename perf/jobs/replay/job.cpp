// SPDX-License-Identifier: Apache-2.0
#include "perf/jobs/replay/job.h"

#include "perf/jobs/replay/updates.h"
#include "perf/jobs/replay/waiting.h"

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
#include <optional>
#include <thread>

namespace replay {
namespace {

// Waits on the device's own clock. Its name is that of the kernel the software device has built in,
// which sleeps as long; there the text is not looked at.
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

// Rank 0 leaves the id under another name first, so that nobody reads half of it.
void leave_id(const std::string& path, const ncclUniqueId& id) {
    const std::string fresh = path + ".new";
    const int file = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const bool written = file >= 0 && ::write(file, &id, sizeof(id)) == sizeof(id);
    if (file >= 0) {
        ::close(file);
    }
    if (!written || ::rename(fresh.c_str(), path.c_str()) != 0) {
        throw std::runtime_error(path + ": " + std::strerror(errno));
    }
}

ncclUniqueId fetch_id(const std::string& path) {
    const auto end = std::chrono::steady_clock::now() + kMeetDeadline;
    for (;;) {
        const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (file >= 0) {
            ncclUniqueId id;
            const bool whole = ::read(file, &id, sizeof(id)) == sizeof(id);
            ::close(file);
            if (whole) {
                return id;
            }
            throw std::runtime_error(path + ": holds no unique id; name a new path for every job");
        }
        if (std::chrono::steady_clock::now() > end) {
            throw std::runtime_error(path + ": rank 0 has left no unique id within 120 s");
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

// Gradients differ from rank to rank and from iteration to iteration, and every sum is exact.
float gradient(int rank, int iteration) {
    return static_cast<float>((rank % 8 + 1) * (8 + iteration % 4)) / 8;
}

class Job {
public:
    Job(const Options& options, const Profile& profile, const std::vector<Piece>& schedule)
        : options_(options),
          profile_(profile),
          schedule_(schedule),
          waiting_(profile.buckets.size()) {
        check(cuInit(0), "cuInit");
        int devices = 0;
        check(cuDeviceGetCount(&devices), "cuDeviceGetCount");
        if (devices == 0) {
            throw std::runtime_error("there is no CUDA device");
        }
        CUdevice device = 0;
        check(cuDeviceGet(&device, options.local_rank % devices), "cuDeviceGet");
        CUcontext context = nullptr;
        check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
        check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        check(cuModuleLoadData(&module_, kPtx), "cuModuleLoadData");
        check(cuModuleGetFunction(&kernel_, module_, kKernel), "cuModuleGetFunction");
        check(cuStreamCreate(&compute_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        check(cuStreamCreate(&transfers_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        for (const Bucket& bucket : profile.buckets) {
            CUdeviceptr memory = 0;
            check(cuMemAlloc(&memory, bucket.bytes), "cuMemAlloc");
            memory_.push_back(memory);
            CUevent ready = nullptr;
            check(cuEventCreate(&ready, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
            ready_.push_back(ready);
            CUevent arrived = nullptr;
            check(cuEventCreate(&arrived, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
            arrived_.push_back(arrived);
        }
        check(cuEventCreate(&reduced_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
        ncclUniqueId id;
        if (options.rank == 0) {
            check(ncclGetUniqueId(&id), "ncclGetUniqueId");
            if (options.ranks > 1) {
                leave_id(options.id_file, id);
            }
        } else {
            id = fetch_id(options.id_file);
        }
        check(ncclCommInitRank(&comm_, options.ranks, id, options.rank), "ncclCommInitRank");
        if (options.look) {
            updates_.emplace(options.iterations, memory_.size());
        }
    }

    /// Milliseconds of every iteration, between the starts of one and the next on the device.
    std::vector<double> iterate(int count, bool reduce) {
        std::vector<CUevent> starts;
        for (int t = 0; t <= count; ++t) {
            CUevent start = nullptr;
            check(cuEventCreate(&start, CU_EVENT_BLOCKING_SYNC), "cuEventCreate");
            starts.push_back(start);
        }
        for (int t = 0; t < count; ++t) {
            check(cuEventRecord(starts[static_cast<std::size_t>(t)], compute_), "cuEventRecord");
            if (t >= options_.ahead) {
                check(cuEventSynchronize(starts[static_cast<std::size_t>(t - options_.ahead)]),
                      "cuEventSynchronize");
            }
            if (options_.layers) {
                one_waiting(t, reduce);
            } else if (schedule_.empty()) {
                one(t, reduce);
            } else {
                one_scheduled(t, reduce, t > 0 && reduce);
            }
        }
        for (std::size_t i = memory_.size(); i-- > 0 && reduce && options_.layers;) {
            waiting_.wait(i, compute_);
        }
        if (reduce && (options_.layers || !schedule_.empty())) {
            wait_for_all();
        }
        check(cuEventRecord(starts.back(), compute_), "cuEventRecord");
        check(cuEventSynchronize(starts.back()), "cuEventSynchronize");
        std::vector<double> milliseconds;
        for (std::size_t t = 0; t + 1 < starts.size(); ++t) {
            float took = 0;
            check(cuEventElapsedTime(&took, starts[t], starts[t + 1]), "cuEventElapsedTime");
            milliseconds.push_back(took);
        }
        for (CUevent start : starts) {
            check(cuEventDestroy(start), "cuEventDestroy");
        }
        return milliseconds;
    }

    struct Ending {
        bool replicas_equal = false;
        std::uint64_t wrong = 0;  ///< elements of this rank that are not the last iteration's sum
    };

    /// What the gradients hold after `iterations` iterations, here and on the others.
    Ending look(int iterations) {
        float sum = 0;
        for (int rank = 0; rank < options_.ranks; ++rank) {
            sum += gradient(rank, iterations - 1);
        }
        Ending ending;
        std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a over words
        for (std::size_t i = 0; i < memory_.size(); ++i) {
            std::vector<float> host(profile_.buckets[i].bytes / sizeof(float));
            check(cuMemcpyDtoH(host.data(), memory_[i], host.size() * sizeof(float)),
                  "cuMemcpyDtoH");
            for (const float value : host) {
                ending.wrong += value != sum;
                std::uint32_t word = 0;
                std::memcpy(&word, &value, sizeof(word));
                hash = (hash ^ word) * 0x100000001b3U;
            }
        }
        const auto ranks = static_cast<std::size_t>(options_.ranks);
        CUdeviceptr hashes = 0;
        check(cuMemAlloc(&hashes, (ranks + 1) * sizeof(hash)), "cuMemAlloc");
        check(cuMemcpyHtoD(hashes, &hash, sizeof(hash)), "cuMemcpyHtoD");
        check(ncclAllGather(reinterpret_cast<void*>(hashes),
                            reinterpret_cast<void*>(hashes + sizeof(hash)), 1, ncclUint64, comm_,
                            transfers_),
              "ncclAllGather");
        check(cuStreamSynchronize(transfers_), "cuStreamSynchronize");
        std::vector<std::uint64_t> all(ranks);
        check(cuMemcpyDtoH(all.data(), hashes + sizeof(hash), ranks * sizeof(hash)),
              "cuMemcpyDtoH");
        check(cuMemFree(hashes), "cuMemFree");
        ending.replicas_equal =
            std::all_of(all.begin(), all.end(), [&](std::uint64_t other) { return other == hash; });
        return ending;
    }

    /// Of each iteration, how many gradients were zeros; none where nobody looks.
    std::vector<std::size_t> zeros() const {
        return updates_ ? updates_->zeros() : std::vector<std::size_t>{};
    }

    void end() {
        updates_.reset();
        check(ncclCommDestroy(comm_), "ncclCommDestroy");
        for (const CUdeviceptr memory : memory_) {
            check(cuMemFree(memory), "cuMemFree");
        }
        for (const auto& events : {ready_, arrived_}) {
            for (CUevent event : events) {
                check(cuEventDestroy(event), "cuEventDestroy");
            }
        }
        check(cuEventDestroy(reduced_), "cuEventDestroy");
        check(cuStreamDestroy(compute_), "cuStreamDestroy");
        check(cuStreamDestroy(transfers_), "cuStreamDestroy");
        check(cuModuleUnload(module_), "cuModuleUnload");
    }

private:
    void compute(double seconds) {
        auto nanoseconds = static_cast<std::uint64_t>(std::max(0.0, seconds) * 1e9);
        void* parameters[] = {&nanoseconds};
        check(cuLaunchKernel(kernel_, 1, 1, 1, 1, 1, 1, 0, compute_, parameters, nullptr),
              "cuLaunchKernel");
    }

    void fill(std::size_t bucket, int iteration) {
        const float value = gradient(options_.rank, iteration);
        unsigned bits = 0;
        std::memcpy(&bits, &value, sizeof(bits));
        check(cuMemsetD32Async(memory_[bucket], bits, profile_.buckets[bucket].bytes / 4, compute_),
              "cuMemsetD32Async");
    }

    void wait_for_all() {
        check(cuEventRecord(reduced_, transfers_), "cuEventRecord");
        check(cuStreamWaitEvent(compute_, reduced_, 0), "cuStreamWaitEvent");
    }

    // Forward layer by layer, input side first, each when its own gradient has come; backward; then
    // the pieces in their order, each not before its bucket's gradient exists. The host is ahead of
    // the device, so that they stand in the stream by then.
    void one_scheduled(int iteration, bool reduce, bool wait) {
        double left = profile_.forward;
        for (std::size_t i = memory_.size(); i-- > 0;) {
            if (wait) {
                check(cuStreamWaitEvent(compute_, arrived_[i], 0), "cuStreamWaitEvent");
            }
            compute(profile_.buckets[i].forward);
            left -= profile_.buckets[i].forward;
        }
        compute(left);
        double now = profile_.forward;
        for (std::size_t i = 0; i < memory_.size(); ++i) {
            compute(profile_.buckets[i].ready - now);
            now = profile_.buckets[i].ready;
            fill(i, iteration);
            check(cuEventRecord(ready_[i], compute_), "cuEventRecord");
        }
        compute(profile_.compute - now);
        for (std::size_t at = 0; reduce && at < schedule_.size();) {
            const std::size_t begin = at;
            std::size_t end = at;
            for (; end < schedule_.size() && schedule_[end].message == schedule_[begin].message;
                 ++end) {
                check(cuStreamWaitEvent(transfers_, ready_[schedule_[end].bucket], 0),
                      "cuStreamWaitEvent");
            }
            check(ncclGroupStart(), "ncclGroupStart");
            for (; at < end; ++at) {
                const Piece& piece = schedule_[at];
                void* const memory = reinterpret_cast<void*>(memory_[piece.bucket] + piece.begin);
                check(ncclAllReduce(memory, memory, (piece.end - piece.begin) / 4, ncclFloat,
                                    ncclSum, comm_, transfers_),
                      "ncclAllReduce");
            }
            check(ncclGroupEnd(), "ncclGroupEnd");
            for (std::size_t i = begin; i < end; ++i) {  // a bucket's last record counts
                check(cuEventRecord(arrived_[schedule_[i].bucket], transfers_), "cuEventRecord");
            }
        }
    }

    // Forward layer by layer, input side first, each when its own gradient has come, by deft or by
    // the stream of the calls; then backward, and each all-reduce when its gradient is there.
    void one_waiting(int iteration, bool reduce) {
        double left = profile_.forward;
        for (const Bucket& bucket : profile_.buckets) {
            left -= bucket.forward;
        }
        compute(left);
        for (std::size_t i = memory_.size(); i-- > 0;) {
            if (reduce && iteration > 0 && !waiting_.wait(i, compute_)) {
                check(cuStreamWaitEvent(compute_, arrived_[i], 0), "cuStreamWaitEvent");
            }
            compute(profile_.buckets[i].forward);
        }
        double now = profile_.forward;
        for (std::size_t i = 0; i < memory_.size(); ++i) {
            const Bucket& bucket = profile_.buckets[i];
            compute(bucket.ready - now);
            now = bucket.ready;
            fill(i, iteration);
            if (reduce) {
                check(cuEventRecord(ready_[i], compute_), "cuEventRecord");
                check(cuStreamWaitEvent(transfers_, ready_[i], 0), "cuStreamWaitEvent");
                void* const memory = reinterpret_cast<void*>(memory_[i]);
                waiting_.mark(memory_[i], bucket.bytes, i);
                check(ncclAllReduce(memory, memory, bucket.bytes / sizeof(float), ncclFloat,
                                    ncclSum, comm_, transfers_),
                      "ncclAllReduce");
                waiting_.take(i);
                check(cuEventRecord(arrived_[i], transfers_), "cuEventRecord");
            }
        }
        compute(profile_.compute - now);
        if (reduce) {
            waiting_.note_iteration();
        }
    }

    // Forward and backward up to the first gradient, its all-reduce, backward up to the next one;
    // then everything waits for the sums, as an optimizer does.
    void one(int iteration, bool reduce) {
        double now = 0;
        for (std::size_t i = 0; i < memory_.size(); ++i) {
            const Bucket& bucket = profile_.buckets[i];
            compute(bucket.ready - now);
            now = bucket.ready;
            const std::size_t count = bucket.bytes / sizeof(float);
            fill(i, iteration);
            if (reduce) {
                check(cuEventRecord(ready_[i], compute_), "cuEventRecord");
                check(cuStreamWaitEvent(transfers_, ready_[i], 0), "cuStreamWaitEvent");
                void* const memory = reinterpret_cast<void*>(memory_[i]);
                check(ncclAllReduce(memory, memory, count, ncclFloat, ncclSum, comm_, transfers_),
                      "ncclAllReduce");
            }
        }
        compute(profile_.compute - now);
        if (reduce) {
            wait_for_all();
            if (updates_) {
                updates_->note(iteration, memory_, compute_);
            }
        }
    }

    const Options& options_;
    const Profile& profile_;
    const std::vector<Piece>& schedule_;
    WaitingLayers waiting_;
    std::optional<Updates> updates_;
    CUmodule module_ = nullptr;
    CUfunction kernel_ = nullptr;
    CUstream compute_ = nullptr;
    CUstream transfers_ = nullptr;
    std::vector<CUdeviceptr> memory_;  // one gradient a bucket
    std::vector<CUevent> ready_;       // the gradient exists
    std::vector<CUevent> arrived_;     // its sum does; not where all is waited for
    CUevent reduced_ = nullptr;
    ncclComm_t comm_ = nullptr;
};

nlohmann::json summary(const std::vector<double>& all, std::size_t skip) {
    std::vector<double> values(
        all.begin() + static_cast<std::ptrdiff_t>(std::min(skip, all.size())), all.end());
    nlohmann::json json = {{"n", values.size()}, {"raw", all}};
    std::sort(values.begin(), values.end());
    for (const auto& [name, share] :
         {std::pair{"median", 0.5}, std::pair{"p10", 0.1}, std::pair{"p90", 0.9}}) {
        const auto at = static_cast<std::size_t>(share * static_cast<double>(values.size()));
        json[name] = values.empty() ? nlohmann::json()
                                    : nlohmann::json(values[std::min(at, values.size() - 1)]);
    }
    return json;
}

void print(const Options& options, const std::string& text) {
    std::FILE* const file = options.json.empty() ? stdout : std::fopen(options.json.c_str(), "wb");
    const bool good =
        file != nullptr && std::fputs(text.c_str(), file) >= 0 && std::fflush(file) == 0;
    const int error = errno;
    if (file != nullptr && file != stdout) {
        std::fclose(file);
    }
    if (!good) {
        throw std::runtime_error((options.json.empty() ? "standard output" : options.json) + ": " +
                                 std::strerror(error));
    }
}

}  // namespace

int run_rank(const Options& options, const Profile& profile, const std::vector<Piece>& schedule) {
    Job job(options, profile, schedule);
    const std::vector<double> alone = job.iterate(options.alone, false);
    const std::vector<double> iterations = job.iterate(options.iterations, true);
    const Job::Ending ending = job.look(options.iterations);
    const std::vector<std::size_t> zeros = job.zeros();
    job.end();
    if (options.rank == 0) {
        int version = 0;
        check(ncclGetVersion(&version), "ncclGetVersion");
        nlohmann::json buckets = nlohmann::json::array();
        for (const Bucket& bucket : profile.buckets) {
            buckets.push_back({{"bytes", bucket.bytes}, {"ready_ms", bucket.ready * 1e3}});
        }
        const nlohmann::json result = {
            {"format", "replay"},
            {"version", 1},
            {"profile", profile.name},
            {"schedule", options.schedule},
            {"time_scale", options.time_scale},
            {"size_scale", options.size_scale},
            {"nccl", version},
            {"ranks", options.ranks},
            {"gradient_bytes", profile.bytes()},
            {"compute_ms", profile.compute * 1e3},
            {"buckets", buckets},
            {"alone_ms", summary(alone, alone.empty() ? 0 : 1)},
            {"iteration_ms", summary(iterations, static_cast<std::size_t>(options.skip))},
            {"replicas_equal", ending.replicas_equal},
            {"elements_not_the_sum", ending.wrong},
            {"zero_gradients", zeros}};
        print(options, result.dump(1) + "\n");
    }
    if (!ending.replicas_equal) {
        throw std::runtime_error("the ranks hold different gradients after the last iteration");
    }
    return 0;
}

}  // namespace replay
