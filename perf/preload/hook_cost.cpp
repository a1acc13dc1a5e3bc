// SPDX-License-Identifier: Apache-2.0
// Time that a hook adds to one NCCL call: ncclAllReduce of an NCCL that does nothing, called with
// no preload, in mode off and in mode observe, interleaved. Prints JSON with the raw medians.
//
// usage: hook_cost [--library PATH] [--rounds N]
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "deft/abi/nccl.h"

extern "C" {
int ncclGetUniqueId(deft_nccl_unique_id_t* id);
int ncclCommInitRank(deft_nccl_comm_t* comm, int nranks, deft_nccl_unique_id_t id, int rank);
int ncclAllReduce(const void* send, void* receive, size_t count, int type, int op,
                  deft_nccl_comm_t comm, deft_cuda_stream_t stream);
extern char** environ;
}

namespace {

constexpr int kBatches = 5000;
constexpr int kBatch =
    16;  // calls timed together: one reading of the clock costs as much as a call

double now_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

// The child: prints median, p90 and p99 in ns per call.
int measure() {
    // The loader ignores a preload that it cannot find, and its path if there is a blank in it:
    // what a hook adds would be nothing.
    if (std::getenv("DEFT_MODE") != nullptr && ::dlsym(RTLD_DEFAULT, "deft_version") == nullptr) {
        std::fprintf(stderr, "hook_cost: LD_PRELOAD='%s' is not in the process\n",
                     std::getenv("LD_PRELOAD"));
        return 1;
    }
    deft_nccl_unique_id_t id;
    deft_nccl_comm_t comm = nullptr;
    if (ncclGetUniqueId(&id) != 0 || ncclCommInitRank(&comm, 1, id, 0) != 0) {
        std::fprintf(stderr, "hook_cost: no communicator\n");
        return 1;
    }
    std::vector<double> samples;
    static float buffer[64];
    for (int batch = 0; batch < kBatches; ++batch) {
        const double begin = now_ns();
        for (int i = 0; i < kBatch; ++i) {
            ncclAllReduce(buffer, buffer, static_cast<size_t>(1000 + i), DEFT_NCCL_FLOAT32,
                          DEFT_NCCL_SUM, comm, nullptr);
        }
        samples.push_back((now_ns() - begin) / kBatch);
        ::usleep(100);  // a job's pace: the observer's queue must not run full
    }
    std::sort(samples.begin(), samples.end());
    const auto at = [&samples](double fraction) {
        return samples[static_cast<std::size_t>(fraction *
                                                static_cast<double>(samples.size() - 1))];
    };
    std::printf("%.1f %.1f %.1f\n", at(0.5), at(0.9), at(0.99));
    return 0;
}

struct Figures {
    double median = 0;
    double p90 = 0;
    double p99 = 0;
};

Figures run_child(const std::string& library, const char* mode) {
    std::vector<std::string> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        if (std::strncmp(*entry, "DEFT_", 5) != 0 && std::strncmp(*entry, "LD_PRELOAD=", 11) != 0) {
            environment.emplace_back(*entry);
        }
    }
    if (mode[0] != '\0') {
        environment.push_back("LD_PRELOAD=" + library);
        environment.push_back(std::string("DEFT_MODE=") + mode);
        environment.push_back(
            "DEFT_OUT=/dev/null/none");  // a path that cannot be: no file is left behind
        environment.push_back("DEFT_LOG=none");
    }
    std::vector<char*> envp;
    for (std::string& entry : environment) {
        envp.push_back(entry.data());
    }
    envp.push_back(nullptr);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
        std::perror("hook_cost: pipe");
        std::exit(1);
    }
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    char self[] = "/proc/self/exe";
    char flag[] = "--measure";
    char* argv[] = {self, flag, nullptr};
    pid_t child = 0;
    const int error = ::posix_spawn(&child, self, &actions, nullptr, argv, envp.data());
    ::close(ends[1]);
    char text[128] = "";
    const ssize_t got = error == 0 ? ::read(ends[0], text, sizeof(text) - 1) : -1;
    ::close(ends[0]);
    int status = -1;
    ::waitpid(child, &status, 0);
    Figures figures;
    if (got <= 0 || status != 0 ||
        std::sscanf(text, "%lf %lf %lf", &figures.median, &figures.p90, &figures.p99) != 3) {
        std::fprintf(stderr, "hook_cost: the measurement in mode '%s' failed\n", mode);
        std::exit(1);
    }
    return figures;
}

}  // namespace

int main(int argc, char** argv) {
    std::string library = DEFT_LIBRARY;
    int rounds = 5;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--measure") == 0) {
            return measure();
        }
        if (std::strcmp(argv[i], "--library") == 0 && i + 1 < argc) {
            library = argv[++i];
        } else if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc &&
                   std::atoi(argv[i + 1]) > 0) {
            rounds = std::atoi(argv[++i]);
        } else {
            std::fprintf(stderr, "usage: hook_cost [--library PATH] [--rounds N]; found '%s'\n",
                         argv[i]);
            return 2;
        }
    }
    // exact: no unique id carries a rendezvous here, so every call is forwarded.
    constexpr int kModes = 4;
    const char* const modes[kModes] = {"", "off", "observe", "exact"};
    std::vector<Figures> seen[kModes];
    for (int round = 0; round < rounds; ++round) {
        for (int mode = 0; mode < kModes; ++mode) {
            seen[mode].push_back(run_child(library, modes[mode]));
        }
    }
    utsname machine{};
    ::uname(&machine);
    std::printf(
        "{\n  \"benchmark\": \"preload/hook_cost\", \"unit\": \"ns per call\", \"kernel\": \"%s\", "
        "\"cpus\": %ld,\n  \"calls\": %d, \"rounds\": %d,\n",
        machine.release, ::sysconf(_SC_NPROCESSORS_ONLN), kBatches * kBatch, rounds);
    double medians[kModes] = {};
    for (int mode = 0; mode < kModes; ++mode) {
        std::vector<double> sorted;
        std::printf("  \"%s\": [", mode == 0 ? "no_preload" : modes[mode]);
        for (const Figures& figures : seen[mode]) {
            std::printf("%s{\"median\": %.1f, \"p90\": %.1f, \"p99\": %.1f}",
                        sorted.empty() ? "" : ", ", figures.median, figures.p90, figures.p99);
            sorted.push_back(figures.median);
        }
        std::printf("],\n");
        std::sort(sorted.begin(), sorted.end());
        medians[mode] = sorted[sorted.size() / 2];
    }
    std::printf("  \"added\": {\"off\": %.1f, \"observe\": %.1f, \"exact\": %.1f}\n}\n",
                medians[1] - medians[0], medians[2] - medians[0], medians[3] - medians[0]);
    return 0;
}
