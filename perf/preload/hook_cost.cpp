// SPDX-License-Identifier: Apache-2.0
// Time that a hook adds to one NCCL call: ncclAllReduce of an NCCL that does nothing, called with
// no preload and in modes, interleaved. One rank without a driver (modes off, observe, exact), and
// two ranks on the software CUDA device (observe; exact with a director). Prints JSON with the raw
// medians.
//
// usage: hook_cost [--library PATH] [--rounds N] [--batches N] [--metrics FOLDER]
//   --metrics: with a file of metrics a second there (DEFT_METRICS)
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "perf/preload/child.h"
#include "perf/preload/null_nccl.h"
#include "perf/preload/sample.h"
#ifdef SOFTWARE_CUDA
#include "perf/preload/two_ranks.h"
#endif

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

using Settings = std::map<std::string, std::string>;

Figures run_one_rank(const std::string& library, const std::string& mode, int batches,
                     Settings settings) {
    settings["DEFT_OUT"] = "/dev/null/none";  // a path that cannot be: no file is left behind
    Child child = start(library, mode, settings, {"--measure", std::to_string(batches)});
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

struct Options {
    std::string library = DEFT_LIBRARY;
    std::string metrics;
    int rounds = 5;
    int batches = 5000;
};

// What the calls of deft's that a hook makes cost by themselves.
struct DeviceCosts {
    std::vector<double> is_capturing;
    std::vector<double> event_record;
};

// False: said what is wrong.
bool parse(int argc, char** argv, Options& options) {
    for (int i = 1; i < argc; ++i) {
        const bool more = i + 1 < argc;
        const int number = more ? std::atoi(argv[i + 1]) : 0;
        if (std::strcmp(argv[i], "--library") == 0 && more) {
            options.library = argv[++i];
        } else if (std::strcmp(argv[i], "--metrics") == 0 && more) {
            options.metrics = argv[++i];
        } else if (std::strcmp(argv[i], "--rounds") == 0 && number > 0) {
            options.rounds = number;
            ++i;
        } else if (std::strcmp(argv[i], "--batches") == 0 && number > 0) {
            options.batches = number;
            ++i;
        } else {
            std::fprintf(
                stderr,
                "usage: hook_cost [--library PATH] [--rounds N] [--batches N] [--metrics FOLDER]; "
                "found '%s'\n",
                argv[i]);
            return false;
        }
    }
    return true;
}

std::vector<Setup> all_setups() {
    // exact: with one rank there is no agreement, so every call is forwarded.
    std::vector<Setup> setups{{"no_preload", "", false, 0},
                              {"off", "off", false, 0},
                              {"observe", "observe", false, 0},
                              {"exact", "exact", false, 0}};
#ifdef SOFTWARE_CUDA
    setups.push_back({"device_no_preload", "", true, 4});
    setups.push_back({"device_observe", "observe", true, 4});
    setups.push_back({"device_exact", "exact", true, 4});
#endif
    return setups;
}

void run(const Options& options, std::vector<Setup>& setups, [[maybe_unused]] DeviceCosts& device) {
    Settings settings;
    if (!options.metrics.empty()) {
        settings = {{"DEFT_METRICS", options.metrics}, {"DEFT_METRICS_INTERVAL", "1s"}};
    }
    for (int round = 0; round < options.rounds; ++round) {
        for (Setup& setup : setups) {
#ifdef SOFTWARE_CUDA
            if (setup.two_ranks) {
                DeviceCalls calls;
                std::string state;
                setup.seen.push_back(run_two_ranks(options.library, setup.mode, options.batches,
                                                   settings, calls, state));
                if (setup.mode.empty()) {
                    device.is_capturing.push_back(calls.is_capturing);
                    device.event_record.push_back(calls.event_record);
                }
                continue;
            }
#endif
            setup.seen.push_back(
                run_one_rank(options.library, setup.mode, options.batches, settings));
        }
    }
}

void print(const Options& options, const std::vector<Setup>& setups, const DeviceCosts& device) {
    utsname machine{};
    ::uname(&machine);
    std::printf(
        "{\n  \"benchmark\": \"preload/hook_cost\", \"unit\": \"ns per call\", \"kernel\": \"%s\", "
        "\"cpus\": %ld,\n  \"calls\": %d, \"rounds\": %d,\n",
        machine.release, ::sysconf(_SC_NPROCESSORS_ONLN), options.batches * kBatch, options.rounds);
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
    if (!device.is_capturing.empty()) {
        std::printf(
            "  \"device_calls\": {\"cuStreamIsCapturing\": %.1f, \"cuEventRecord\": %.1f},\n",
            median(device.is_capturing), median(device.event_record));
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
}

}  // namespace

int main(int argc, char** argv) {
    // A rank of its own, started by run_one_rank() or run_two_ranks().
    if (argc > 2 && std::strcmp(argv[1], "--measure") == 0) {
        return measure(std::atoi(argv[2]));
    }
#ifdef SOFTWARE_CUDA
    if (argc > 3 && std::strcmp(argv[1], "--rank") == 0) {
        return measure_rank(std::atoi(argv[2]), std::atoi(argv[3]));
    }
#endif
    Options options;
    if (!parse(argc, argv, options)) {
        return 2;
    }
    static const PreloadName library(options.library);  // it goes where the program is ended, too
    options.library = library.text();
    std::vector<Setup> setups = all_setups();
    DeviceCosts device;
    run(options, setups, device);
    print(options, setups, device);
    return 0;
}
