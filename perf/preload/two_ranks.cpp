// SPDX-License-Identifier: Apache-2.0
#include "perf/preload/two_ranks.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <type_traits>

#include "perf/preload/child.h"
#include "perf/preload/null_nccl.h"

namespace deft::hook_cost {
namespace {

constexpr int kRanks = 2;
constexpr int kPipe = 3;  // the unique id, from rank 0 to rank 1
constexpr int kDeviceBatches = 500;
constexpr std::size_t kCount = std::size_t{1} << 20;

// Opened, not linked: with one rank there is no driver in the process.
struct Device {
    int (*Init)(unsigned);
    int (*PrimaryCtxRetain)(void**, int);
    int (*SetCurrent)(void*);
    int (*StreamCreate)(deft_cuda_stream_t*, unsigned);
    int (*StreamSynchronize)(deft_cuda_stream_t);
    int (*StreamIsCapturing)(deft_cuda_stream_t, int*);
    int (*EventCreate)(void**, unsigned);
    int (*EventRecord)(void*, deft_cuda_stream_t);
    int (*MemAlloc)(unsigned long long*, std::size_t);
};

bool open(Device& device) {
    void* const library = ::dlopen(SOFTWARE_CUDA, RTLD_NOW | RTLD_GLOBAL);
    bool all = library != nullptr;
    const auto find = [&](auto& function, const char* name) {
        function = all ? reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(library, name))
                       : nullptr;
        all = function != nullptr;
    };
    find(device.Init, "cuInit");
    find(device.PrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
    find(device.SetCurrent, "cuCtxSetCurrent");
    find(device.StreamCreate, "cuStreamCreate");
    find(device.StreamSynchronize, "cuStreamSynchronize");
    find(device.StreamIsCapturing, "cuStreamIsCapturing");
    find(device.EventCreate, "cuEventCreate");
    find(device.EventRecord, "cuEventRecord");
    find(device.MemAlloc, "cuMemAlloc_v2");
    return all;
}

// The value of the first member of that name.
std::string member(const std::string& json, const std::string& name) {
    const std::size_t at = json.find("\"" + name + "\":");
    const std::size_t open = at == json.npos ? at : json.find('"', at + name.size() + 3);
    const std::size_t close = open == json.npos ? open : json.find('"', open + 1);
    return close == json.npos ? "" : json.substr(open + 1, close - open - 1);
}

}  // namespace

int measure_rank(int rank, int batches) {
    if (!preloaded()) {
        return 1;
    }
    Device device{};
    void* context = nullptr;
    void* event = nullptr;
    deft_cuda_stream_t stream = nullptr;
    unsigned long long memory = 0;
    if (!open(device) || device.Init(0) != 0 || device.PrimaryCtxRetain(&context, 0) != 0 ||
        device.SetCurrent(context) != 0 || device.StreamCreate(&stream, 1) != 0 ||
        device.EventCreate(&event, 0) != 0 ||
        device.MemAlloc(&memory, (kCount + kBatch) * sizeof(float)) != 0) {
        std::fprintf(stderr, "hook_cost: no software device\n");
        return 1;
    }
    deft_nccl_unique_id_t id;
    deft_nccl_comm_t comm = nullptr;
    const bool known = rank == 0 ? ncclGetUniqueId(&id) == 0 &&
                                       ::write(kPipe, &id, sizeof(id)) == ssize_t{sizeof(id)}
                                 : ::read(kPipe, &id, sizeof(id)) == ssize_t{sizeof(id)};
    if (!known || ncclCommInitRank(&comm, kRanks, id, rank) != 0) {
        std::fprintf(stderr, "hook_cost: no communicator of two ranks\n");
        return 1;
    }
    auto* const data = reinterpret_cast<float*>(memory);
    const auto reduce = [&](int i) {
        ncclAllReduce(data, data, kCount + static_cast<std::size_t>(i), DEFT_NCCL_FLOAT32,
                      DEFT_NCCL_SUM, comm, stream);
    };
    sample(reduce, keep_pace, batches / 10 + 1);  // the cycle is learned
    const Figures figures = sample(reduce, keep_pace, batches);
    if (rank != 0) {
        (void)::read(kPipe, &id, 1);  // rank 0 has ended: it would go on alone else
        return 0;
    }
    const auto idle = [&] { device.StreamSynchronize(stream); };
    const auto query = [&](int) {
        int status = 0;
        device.StreamIsCapturing(stream, &status);
    };
    const auto record = [&](int) { device.EventRecord(event, stream); };
    std::printf("%.1f %.1f %.1f %.1f %.1f\n", figures.median, figures.p90, figures.p99,
                sample(query, keep_pace, kDeviceBatches).median,
                sample(record, idle, kDeviceBatches).median);
    return 0;
}

Figures run_two_ranks(const std::string& library, const std::string& mode, int batches,
                      std::map<std::string, std::string> settings, DeviceCalls& device,
                      std::string& state) {
    std::string folder = "/tmp/deft-hook-cost-XXXXXX";
    int ends[2];
    if (::mkdtemp(folder.data()) == nullptr || ::pipe2(ends, O_CLOEXEC) != 0) {
        std::perror("hook_cost: a folder and a pipe");
        std::exit(1);
    }
    // REQUIRE: the communicator fails if its ranks do not agree. Over one network mode exact has
    // nothing to gain by a plan.
    const std::string report = folder + "/rank0.json";
    settings.insert(
        {{"DEFT_INTERFACES", "lo"}, {"DEFT_REQUIRE", "1"}, {"DEFT_OUT", folder + "/rank%r.json"}});
    Child children[kRanks];
    for (int rank = 0; rank < kRanks; ++rank) {
        children[rank] =
            start(library, mode, settings,
                  {"--rank", std::to_string(rank), std::to_string(batches)}, ends[1 - rank]);
    }
    ::close(ends[0]);
    ::close(ends[1]);
    std::string output[kRanks];
    bool good = true;
    for (int rank = 0; rank < kRanks; ++rank) {
        good = finish(children[rank], output[rank]) && good;
    }
    std::ifstream file(report);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const std::size_t plans = text.find("\"plans\":");
    state = plans == text.npos ? "" : member(text.substr(plans), "state");
    for (int rank = 0; rank < kRanks; ++rank) {
        ::unlink((folder + "/rank" + std::to_string(rank) + ".json").c_str());
    }
    ::rmdir(folder.c_str());
    Figures figures;
    if (!good ||
        std::sscanf(output[0].c_str(), "%lf %lf %lf %lf %lf", &figures.median, &figures.p90,
                    &figures.p99, &device.is_capturing, &device.event_record) != 5) {
        std::fprintf(stderr, "hook_cost: the two ranks' measurement in mode '%s' failed\n",
                     mode.c_str());
        std::exit(1);
    }
    if (mode == "exact" && state != "watching") {
        std::fprintf(stderr, "hook_cost: the plan is '%s', not watching: this is another cost\n",
                     state.c_str());
        std::exit(1);
    }
    return figures;
}

}  // namespace deft::hook_cost
