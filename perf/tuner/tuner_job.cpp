// SPDX-License-Identifier: Apache-2.0
// One rank of a job that repeats collectives, as data-parallel and sharded jobs do, and checks what
// they give it.
//
// usage: tuner_job CALLS ITERATIONS COMPUTE_MS ID_FILE [RESULTS]
//
// CALLS: "allreduce:BYTES", "allgather:BYTES", "reducescatter:BYTES", separated by commas, in the
// order of an iteration; BYTES as NCCL counts, of all ranks together. RANK, WORLD_SIZE and
// LOCAL_RANK are in the environment; where GROUPED is set, each call is in a group of its own.
// COMPUTE_MS is shared by the calls, and passes before each.
// Rank 0 writes JSON to RESULTS; without it, every rank prints it: iteration_ms (of each iteration,
// by the host; 0 where numbers are looked at), checked, wrong.
#include <cuda.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

[[noreturn]] void fail(const char* what, int result) {
    std::fprintf(stderr, "tuner_job: %s failed: %d\n", what, result);
    std::_Exit(1);
}

void check(int result, const char* what) {
    if (result != 0) {
        fail(what, result);
    }
}

int number(const char* variable) {
    const char* const text = std::getenv(variable);
    if (text == nullptr) {
        fail(variable, 2);
    }
    return std::atoi(text);
}

enum class Kind { AllReduce, AllGather, ReduceScatter };

// Sums of a few of them are exact in any order.
float value(int rank, std::size_t at, int iteration) {
    return static_cast<float>((at * 7 + static_cast<std::size_t>(iteration)) % 61 +
                              static_cast<std::size_t>(rank) * 3);
}

float sum(int ranks, std::size_t at, int iteration) {
    float all = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        all += value(rank, at, iteration);
    }
    return all;
}

class Call {
public:
    Call(Kind kind, std::size_t bytes, int rank, int ranks)
        : kind_(kind), rank_(rank), ranks_(ranks) {
        const auto n = static_cast<std::size_t>(ranks);
        share_ = kind == Kind::AllReduce ? bytes / sizeof(float) : bytes / sizeof(float) / n;
        const bool gathers = kind == Kind::AllGather;
        given_ = kind == Kind::ReduceScatter ? share_ * n : share_;
        got_ = gathers ? share_ * n : share_;
        host_.resize(std::max(given_, got_));
        check(cuMemAlloc(&send_, given_ * sizeof(float) + 64), "cuMemAlloc");
        check(cuMemAlloc(&receive_, got_ * sizeof(float) + 64), "cuMemAlloc");
    }
    void fill(int iteration, CUstream stream) {
        for (std::size_t i = 0; i < given_; ++i) {
            host_[i] = value(rank_, i, iteration);
        }
        check(cuMemcpyHtoDAsync(send_, host_.data(), given_ * sizeof(float), stream), "copying");
        check(cuStreamSynchronize(stream), "cuStreamSynchronize");
    }
    void make(ncclComm_t comm, CUstream stream) const {
        const void* const send = reinterpret_cast<const void*>(send_);
        void* const receive = reinterpret_cast<void*>(receive_);
        switch (kind_) {
            case Kind::AllReduce:
                check(ncclAllReduce(send, receive, share_, ncclFloat, ncclSum, comm, stream),
                      "ncclAllReduce");
                break;
            case Kind::AllGather:
                check(ncclAllGather(send, receive, share_, ncclFloat, comm, stream),
                      "ncclAllGather");
                break;
            case Kind::ReduceScatter:
                check(ncclReduceScatter(send, receive, share_, ncclFloat, ncclSum, comm, stream),
                      "ncclReduceScatter");
                break;
        }
    }
    // The number of wrong elements.
    unsigned long long look(int iteration, CUstream stream) {
        check(cuMemcpyDtoHAsync(host_.data(), receive_, got_ * sizeof(float), stream), "copying");
        check(cuStreamSynchronize(stream), "cuStreamSynchronize");
        unsigned long long wrong = 0;
        for (std::size_t i = 0; i < got_; ++i) {
            wrong += host_[i] != wanted(i, iteration) ? 1 : 0;
        }
        return wrong;
    }
    std::size_t looked_at() const { return got_; }

private:
    float wanted(std::size_t i, int iteration) const {
        switch (kind_) {
            case Kind::AllReduce:
                return sum(ranks_, i, iteration);
            case Kind::AllGather:
                return value(static_cast<int>(i / share_), i % share_, iteration);
            case Kind::ReduceScatter:
                return sum(ranks_, static_cast<std::size_t>(rank_) * share_ + i, iteration);
        }
        return 0;
    }

    Kind kind_;
    int rank_;
    int ranks_;
    std::size_t share_ = 0;
    std::size_t given_ = 0;
    std::size_t got_ = 0;
    std::vector<float> host_;
    CUdeviceptr send_ = 0;
    CUdeviceptr receive_ = 0;
};

std::vector<std::unique_ptr<Call>> parse(std::string_view text, int rank, int ranks) {
    std::vector<std::unique_ptr<Call>> calls;
    while (!text.empty()) {
        const std::string_view one = text.substr(0, text.find(','));
        text.remove_prefix(std::min(text.size(), one.size() + 1));
        const std::size_t colon = one.find(':');
        const std::string_view name = one.substr(0, colon);
        const Kind kind = name == "allreduce"   ? Kind::AllReduce
                          : name == "allgather" ? Kind::AllGather
                                                : Kind::ReduceScatter;
        if (colon == one.npos || (kind == Kind::ReduceScatter && name != "reducescatter")) {
            fail("reading CALLS", 2);
        }
        const auto bytes = std::strtoull(std::string(one.substr(colon + 1)).c_str(), nullptr, 10);
        calls.push_back(std::make_unique<Call>(kind, bytes, rank, ranks));
    }
    return calls;
}

ncclUniqueId exchange(const char* path, int rank) {
    ncclUniqueId id{};
    const std::string part = std::string(path) + ".part";
    if (rank == 0) {
        check(ncclGetUniqueId(&id), "ncclGetUniqueId");
        std::FILE* const file = std::fopen(part.c_str(), "wb");
        if (file == nullptr || std::fwrite(&id, sizeof id, 1, file) != 1 ||
            std::fclose(file) != 0 || std::rename(part.c_str(), path) != 0) {
            fail("writing ID_FILE", 1);
        }
        return id;
    }
    for (int waited = 0; waited < 12'000; ++waited) {
        if (std::FILE* const file = std::fopen(path, "rb")) {
            const bool read = std::fread(&id, sizeof id, 1, file) == 1;
            std::fclose(file);
            if (read) {
                return id;
            }
        }
        ::usleep(10'000);
    }
    fail("waiting for rank 0", 1);
}

void tell(const char* path, const std::vector<double>& times, unsigned long long checked,
          unsigned long long wrong) {
    std::FILE* const out = path != nullptr ? std::fopen(path, "w") : stdout;
    if (out == nullptr) {
        fail("opening RESULTS", 1);
    }
    std::fprintf(out, "{\"iteration_ms\": [");
    for (std::size_t i = 0; i < times.size(); ++i) {
        std::fprintf(out, "%s%.4f", i > 0 ? ", " : "", times[i]);
    }
    std::fprintf(out, "], \"checked\": %llu, \"wrong\": %llu}\n", checked, wrong);
    if (std::fflush(out) != 0) {
        fail("writing RESULTS", 1);
    }
}

double now_ms() {
    return std::chrono::duration<double, std::milli>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5 && argc != 6) {
        std::fprintf(stderr, "usage: tuner_job CALLS ITERATIONS COMPUTE_MS ID_FILE [RESULTS]\n");
        return 2;
    }
    const int rank = number("RANK");
    const int ranks = number("WORLD_SIZE");
    const int iterations = std::atoi(argv[2]);
    const double compute_ms = std::atof(argv[3]);
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    check(cuInit(0), "cuInit");
    check(cuDevicePrimaryCtxRetain(&context, std::getenv("LOCAL_RANK") ? number("LOCAL_RANK") : 0),
          "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    ncclComm_t comm = nullptr;
    check(ncclCommInitRank(&comm, ranks, exchange(argv[4], rank), rank), "ncclCommInitRank");
    auto calls = parse(argv[1], rank, ranks);
    std::vector<double> times;
    unsigned long long checked = 0;
    unsigned long long wrong = 0;
    const bool grouped = std::getenv("GROUPED") != nullptr;
    const auto share = static_cast<unsigned>(compute_ms * 1e3 / static_cast<double>(calls.size()));
    for (int iteration = 0; iteration < iterations; ++iteration) {
        // Numbers are new, and looked at, in one iteration of eight, which is not timed.
        const bool looked = iteration % 8 == 0;
        if (looked) {
            for (auto& call : calls) {
                call->fill(iteration, stream);
            }
        }
        const double begun = now_ms();
        for (auto& call : calls) {
            if (share > 0) {
                ::usleep(share);
            }
            if (grouped) {
                check(ncclGroupStart(), "ncclGroupStart");
            }
            call->make(comm, stream);
            if (grouped) {
                check(ncclGroupEnd(), "ncclGroupEnd");
            }
        }
        check(cuStreamSynchronize(stream), "cuStreamSynchronize");
        times.push_back(looked ? 0 : now_ms() - begun);
        if (looked) {
            for (auto& call : calls) {
                wrong += call->look(iteration, stream);
                checked += call->looked_at();
            }
        }
    }
    check(ncclCommDestroy(comm), "ncclCommDestroy");
    if (argc == 5 || rank == 0) {
        tell(argc == 6 ? argv[5] : nullptr, times, checked, wrong);
    }
    return wrong == 0 ? 0 : 1;
}
