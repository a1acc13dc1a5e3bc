// SPDX-License-Identifier: Apache-2.0
// A training job without a framework: kernels that last as long as its compute, all-reduces of as
// many bytes as its gradients. CUDA driver API and NCCL only.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "perf/jobs/replay/job.h"

namespace {

std::string make_folder() {
    const char* const base = std::getenv("TMPDIR");
    std::string path = std::string(base != nullptr ? base : "/tmp") + "/replay-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) {
        throw std::runtime_error(path + ": " + std::strerror(errno));
    }
    return path;
}

// Starts this program again as every rank, each a host of its own for NCCL, and waits for them.
int start_ranks(const replay::Options& options, int argc, char** argv) {
    const std::string folder = make_folder();
    const std::string id_file = folder + "/id";
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < options.ranks; ++rank) {
        const pid_t pid = ::fork();
        if (pid == 0) {
            const std::string number = std::to_string(rank);
            ::setenv("RANK", number.c_str(), 1);
            ::setenv("LOCAL_RANK", number.c_str(), 1);
            ::setenv("WORLD_SIZE", std::to_string(options.ranks).c_str(), 1);
            ::setenv("NCCL_HOSTID", ("replay-" + number).c_str(), 0);
            std::vector<char*> arguments(argv, argv + argc);
            std::string name = "--id-file";
            std::string value = id_file;
            arguments.push_back(name.data());
            arguments.push_back(value.data());
            arguments.push_back(nullptr);
            ::execv("/proc/self/exe", arguments.data());
            std::fprintf(stderr, "replay: exec: %s\n", std::strerror(errno));
            ::_exit(1);
        }
        if (pid < 0) {
            std::fprintf(stderr, "replay: fork: %s\n", std::strerror(errno));
            break;
        }
        ranks.push_back(pid);
    }
    bool good = ranks.size() == static_cast<std::size_t>(options.ranks);
    for (std::size_t left = ranks.size(); left > 0; --left) {
        if (!good) {  // the others may wait for one that is gone
            for (const pid_t pid : ranks) {
                ::kill(pid, SIGKILL);
            }
        }
        int status = 0;
        const pid_t pid = ::waitpid(-1, &status, 0);
        std::erase(ranks, pid);
        good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    ::unlink(id_file.c_str());
    ::unlink((id_file + ".new").c_str());
    ::rmdir(folder.c_str());
    return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    replay::Options options;
    try {
        if (!replay::parse(argc, argv, options)) {
            return 0;
        }
        const replay::Profile profile =
            replay::read_profile(options.profile).scaled(options.time_scale, options.size_scale);
        std::vector<replay::Piece> schedule;
        if (!options.schedule.empty()) {
            schedule = replay::read_schedule(options.schedule, profile);
        }
        if (options.rank < 0) {
            return start_ranks(options, argc, argv);
        }
        return replay::run_rank(options, profile, schedule);
    } catch (const replay::InputError& error) {
        std::fprintf(stderr, "replay: %s\n", error.what());
        return 2;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "replay: rank %d: %s\n", options.rank, error.what());
        std::fflush(nullptr);
        std::_Exit(1);  // the communicator's threads may still be at work
    }
}
