// SPDX-License-Identifier: Apache-2.0
// Time that a hook adds to one NCCL call: ncclAllReduce of an NCCL that does nothing, called with
// no preload and in modes, interleaved. One rank without a driver (modes off, observe, exact), and
// two ranks on the software CUDA device (observe; exact with a director). Prints JSON with the raw
// medians.
//
// usage: hook_cost [--library PATH] [--rounds N] [--batches N]
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "deft/abi/nccl.h"
#include "perf/preload/child.h"
#include "perf/preload/sample.h"
#ifdef SOFTWARE_CUDA
#include "perf/preload/two_ranks.h"
#endif

extern "C" {
int ncclGetUniqueId(deft_nccl_unique_id_t* id);
int ncclCommInitRank(deft_nccl_comm_t* comm, int nranks, deft_nccl_unique_id_t id, int rank);
int ncclAllReduce(const void* send, void* receive, size_t count, int type, int op,
                  deft_nccl_comm_t comm, deft_cuda_stream_t stream);
}

namespace {

using namespace deft::hook_cost;

// The child: prints median, p90 and p99 in ns per call.
int measure(int batches) {
    if (!preloaded()) {
        return 1;
    }
    deft_nccl_unique_id_t id;
    deft_nccl_comm_t comm = nullptr;
    if (ncclGetUniqueId(&id) != 0 || ncclCommInitRank(&comm, 1, id, 0) != 0) {
        std::fprintf(stderr, "hook_cost: no communicator\n");
        return 1;
    }
    static float buffer[64];
    const Figures figures = sample(
        [comm](int i) {
            ncclAllReduce(buffer, buffer, static_cast<size_t>(1000 + i), DEFT_NCCL_FLOAT32,
                          DEFT_NCCL_SUM, comm, nullptr);
        },
        keep_pace, batches);
    std::printf("%.1f %.1f %.1f\n", figures.median, figures.p90, figures.p99);
    return 0;
}

Figures run_one_rank(const std::string& library, const std::string& mode, int batches) {
    // A path that cannot be: no file is left behind.
    Child child = start(library, mode, {{"DEFT_OUT", "/dev/null/none"}},
                        {"--measure", std::to_string(batches)});
    std::string output;
    Figures figures;
    if (!finish(child, output) || std::sscanf(output.c_str(), "%lf %lf %lf", &figures.median,
                                              &figures.p90, &figures.p99) != 3) {
        std::fprintf(stderr, "hook_cost: the measurement in mode '%s' failed\n", mode.c_str());
        std::exit(1);
    }
    return figures;
}

// One way to make the calls, of which `reference` is that without the preload.
struct Setup {
    std::string name;  // in the JSON
    std::string mode;
    bool two_ranks;
    std::size_t reference;
    std::vector<Figures> seen = {};

    double median_of_medians() const {
        std::vector<double> medians;
        for (const Figures& figures : seen) {
            medians.push_back(figures.median);
        }
        return median(std::move(medians));
    }
};

}  // namespace

int main(int argc, char** argv) {
    std::string library = DEFT_LIBRARY;
    int rounds = 5;
    int batches = 5000;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--measure") == 0 && i + 1 < argc) {
            return measure(std::atoi(argv[i + 1]));
        }
#ifdef SOFTWARE_CUDA
        if (std::strcmp(argv[i], "--rank") == 0 && i + 2 < argc) {
            return measure_rank(std::atoi(argv[i + 1]), std::atoi(argv[i + 2]));
        }
#endif
        if (std::strcmp(argv[i], "--library") == 0 && i + 1 < argc) {
            library = argv[++i];
        } else if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc &&
                   std::atoi(argv[i + 1]) > 0) {
            rounds = std::atoi(argv[++i]);
        } else if (std::strcmp(argv[i], "--batches") == 0 && i + 1 < argc &&
                   std::atoi(argv[i + 1]) > 0) {
            batches = std::atoi(argv[++i]);
        } else {
            std::fprintf(
                stderr,
                "usage: hook_cost [--library PATH] [--rounds N] [--batches N]; found '%s'\n",
                argv[i]);
            return 2;
        }
    }
    // exact: with one rank there is no agreement, so every call is forwarded.
    std::vector<Setup> setups{{"no_preload", "", false, 0},
                              {"off", "off", false, 0},
                              {"observe", "observe", false, 0},
                              {"exact", "exact", false, 0}};
    std::vector<double> is_capturing;
    std::vector<double> event_record;
#ifdef SOFTWARE_CUDA
    setups.push_back({"device_no_preload", "", true, 4});
    setups.push_back({"device_observe", "observe", true, 4});
    setups.push_back({"device_exact", "exact", true, 4});
#endif
    for (int round = 0; round < rounds; ++round) {
        for (Setup& setup : setups) {
#ifdef SOFTWARE_CUDA
            if (setup.two_ranks) {
                DeviceCalls calls;
                std::string state;
                setup.seen.push_back(run_two_ranks(library, setup.mode, batches, calls, state));
                if (setup.mode.empty()) {
                    is_capturing.push_back(calls.is_capturing);
                    event_record.push_back(calls.event_record);
                }
                continue;
            }
#endif
            setup.seen.push_back(run_one_rank(library, setup.mode, batches));
        }
    }
    utsname machine{};
    ::uname(&machine);
    std::printf(
        "{\n  \"benchmark\": \"preload/hook_cost\", \"unit\": \"ns per call\", \"kernel\": \"%s\", "
        "\"cpus\": %ld,\n  \"calls\": %d, \"rounds\": %d,\n",
        machine.release, ::sysconf(_SC_NPROCESSORS_ONLN), batches * kBatch, rounds);
    for (const Setup& setup : setups) {
        std::printf("  \"%s\": [", setup.name.c_str());
        const char* separator = "";
        for (const Figures& figures : setup.seen) {
            std::printf("%s{\"median\": %.1f, \"p90\": %.1f, \"p99\": %.1f}", separator,
                        figures.median, figures.p90, figures.p99);
            separator = ", ";
        }
        std::printf("],\n");
    }
    if (!is_capturing.empty()) {
        std::printf(
            "  \"device_calls\": {\"cuStreamIsCapturing\": %.1f, \"cuEventRecord\": %.1f},\n",
            median(is_capturing), median(event_record));
    }
    std::printf("  \"added\": {");
    const char* separator = "";
    for (const Setup& setup : setups) {
        if (!setup.mode.empty()) {
            std::printf("%s\"%s\": %.1f", separator, setup.name.c_str(),
                        setup.median_of_medians() - setups[setup.reference].median_of_medians());
            separator = ", ";
        }
    }
    std::printf("}\n}\n");
    return 0;
}
