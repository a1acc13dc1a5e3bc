// SPDX-License-Identifier: Apache-2.0
// What deft's background thread takes of a core, by how many calls a second the job makes and by
// what these look like: processor time of "deft-observe" in mode observe, with an NCCL that does
// nothing. Prints JSON with all samples, and a table on standard error.
//
// usage: background_cost [--library PATH] [--rounds N] [--seconds S]
#include <dirent.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "perf/preload/child.h"
#include "perf/preload/null_nccl.h"
#include "perf/preload/sample.h"

namespace {

using namespace deft::hook_cost;

constexpr std::size_t kGradient = 100'000;  // elements
constexpr int kRates[] = {100, 1'000, 10'000, 50'000};
constexpr int kWarmUp = 12'000;  // calls: epochs of every length that is looked for have been seen

// What a job calls, one after the other.
struct Pattern {
    const char* name;
    const char* what;
    std::size_t (*elements)(std::size_t call);
};

std::size_t steady(std::size_t call) {
    return kGradient + call % 50;
}

// Ten iterations of two gradients, and two numbers.
std::size_t with_metrics(std::size_t call) {
    const std::size_t place = call % 22;
    return place < 20 ? kGradient + place % 2 : place - 19;
}

// Twenty iterations of three gradients, and a large sum.
std::size_t with_evaluations(std::size_t call) {
    const std::size_t place = call % 61;
    return kGradient + (place < 60 ? place % 3 : 500);
}

std::size_t never(std::size_t call) {
    return kGradient + call;
}

constexpr Pattern kPatterns[] = {
    {"steady", "50 gradients an iteration", steady},
    {"metrics", "10 iterations of 2, then 2 small calls", with_metrics},
    {"evaluations", "20 iterations of 3, then a large sum", with_evaluations},
    {"never", "no call like another", never},
};

// Nanoseconds that the thread has run; -1: there is none.
double thread_time(const char* name) {
    double time = -1;
    DIR* const tasks = ::opendir("/proc/self/task");
    while (const dirent* const entry = tasks == nullptr ? nullptr : ::readdir(tasks)) {
        const std::string folder = std::string("/proc/self/task/") + entry->d_name;
        std::string comm;
        std::ifstream(folder + "/comm") >> comm;
        if (comm == name) {
            std::ifstream(folder + "/schedstat") >> time;
        }
    }
    if (tasks != nullptr) {
        ::closedir(tasks);
    }
    return time;
}

// The child: prints nanoseconds of the thread, the calls, and nanoseconds they took.
int measure(const Pattern& pattern, int rate, double seconds) {
    deft_nccl_unique_id_t id;
    deft_nccl_comm_t comm = nullptr;
    if (!preloaded() || ncclGetUniqueId(&id) != 0 || ncclCommInitRank(&comm, 1, id, 0) != 0) {
        std::fprintf(stderr, "background_cost: no communicator\n");
        return 1;
    }
    static float buffer[1];
    std::size_t made = 0;
    const auto call = [&] {
        ncclAllReduce(buffer, buffer, pattern.elements(made++), DEFT_NCCL_FLOAT32, DEFT_NCCL_SUM,
                      comm, nullptr);
    };
    while (made < kWarmUp) {
        call();
        if (made % 500 == 0) {
            ::usleep(30'000);  // the queue must not run full
        }
    }
    ::usleep(500'000);
    const double before = thread_time("deft-observe");
    const double begin = now_ns();
    const std::size_t first = made;
    double now = begin;
    for (; now < begin + seconds * 1e9; now = now_ns()) {
        while (static_cast<double>(made - first) < (now - begin) * 1e-9 * rate) {
            call();
        }
        ::usleep(rate < 1'000 ? 5'000 : 1'000);
    }
    const double after = thread_time("deft-observe");
    if (before < 0 || after < 0) {
        std::fprintf(stderr, "background_cost: no thread deft-observe\n");
        return 1;
    }
    std::printf("%.0f %zu %.0f\n", after - before, made - first, now - begin);
    return 0;
}

struct Sample {
    double share = 0;  // of a core
    double calls_per_second = 0;
};

Sample run(const std::string& library, std::size_t pattern, int rate, double seconds) {
    Child child = start(
        library, "observe", {{"DEFT_OUT", "/dev/null/none"}},
        {"--measure", std::to_string(pattern), std::to_string(rate), std::to_string(seconds)});
    std::string output;
    double thread_ns = 0;
    double calls = 0;
    double elapsed_ns = 0;
    if (!finish(child, output) ||
        std::sscanf(output.c_str(), "%lf %lf %lf", &thread_ns, &calls, &elapsed_ns) != 3) {
        std::fprintf(stderr, "background_cost: the measurement failed\n");
        std::exit(1);
    }
    return {thread_ns / elapsed_ns, calls / elapsed_ns * 1e9};
}

struct Options {
    std::string library = DEFT_LIBRARY;
    int rounds = 3;
    double seconds = 2;
};

bool parse(int argc, char** argv, Options& options) {
    for (int i = 1; i < argc; i += 2) {
        const bool more = i + 1 < argc;
        const double number = more ? std::atof(argv[i + 1]) : 0;
        if (std::strcmp(argv[i], "--library") == 0 && more) {
            options.library = argv[i + 1];
        } else if (std::strcmp(argv[i], "--rounds") == 0 && number >= 1) {
            options.rounds = static_cast<int>(number);
        } else if (std::strcmp(argv[i], "--seconds") == 0 && number > 0) {
            options.seconds = number;
        } else {
            std::fprintf(stderr,
                         "usage: background_cost [--library PATH] [--rounds N] [--seconds S]; "
                         "found '%s'\n",
                         argv[i]);
            return false;
        }
    }
    return true;
}

// One row of the JSON, and of the table.
void print(const Pattern& pattern, int rate, const std::vector<Sample>& samples, bool last) {
    std::vector<double> shares;
    std::vector<double> each;
    std::printf("    {\"calls\": \"%s\", \"rate\": %d, \"samples\": [", pattern.name, rate);
    const char* separator = "";
    for (const Sample& sample : samples) {
        std::printf("%s{\"core\": %.6f, \"calls_per_second\": %.0f}", separator, sample.share,
                    sample.calls_per_second);
        separator = ", ";
        shares.push_back(100 * sample.share);
        each.push_back(sample.share / sample.calls_per_second * 1e9);
    }
    const double core = median(shares);
    const double call = median(each);
    std::printf("], \"core_percent\": %.4f, \"ns_per_call\": %.1f}%s\n", core, call,
                last ? "" : ",");
    std::fprintf(stderr, "%-38s %6d calls/s: %7.3f %% of a core, %7.0f ns a call\n", pattern.what,
                 rate, core, call);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 4 && std::strcmp(argv[1], "--measure") == 0) {
        return measure(kPatterns[std::atoi(argv[2])], std::atoi(argv[3]), std::atof(argv[4]));
    }
    Options options;
    if (!parse(argc, argv, options)) {
        return 2;
    }
    static const PreloadName library(options.library);  // it goes where the program is ended, too
    utsname machine{};
    ::uname(&machine);
    std::printf(
        "{\n  \"benchmark\": \"preload/background_cost\", \"kernel\": \"%s\", \"cpus\": %ld, "
        "\"seconds\": %g,\n  \"rows\": [\n",
        machine.release, ::sysconf(_SC_NPROCESSORS_ONLN), options.seconds);
    for (std::size_t pattern = 0; pattern < std::size(kPatterns); ++pattern) {
        for (const int rate : kRates) {
            std::vector<Sample> samples;
            for (int round = 0; round < options.rounds; ++round) {
                samples.push_back(run(library.text(), pattern, rate, options.seconds));
            }
            print(kPatterns[pattern], rate, samples,
                  pattern + 1 == std::size(kPatterns) && rate == kRates[std::size(kRates) - 1]);
        }
    }
    std::printf("  ]\n}\n");
    return 0;
}
