// SPDX-License-Identifier: Apache-2.0
#include "perf/jobs/replay/ranks.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace replay {
namespace {

std::string make_folder() {
    const char* const base = std::getenv("TMPDIR");
    std::string path = std::string(base != nullptr ? base : "/tmp") + "/replay-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) {
        throw std::runtime_error(path + ": " + std::strerror(errno));
    }
    return path;
}

// What start_ranks() waits for. Blocked before the first rank starts, so that none is missed; what
// whoever started this program has it ignore (nohup) stays ignored.
sigset_t awaited_signals() {
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, SIGCHLD);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
        struct sigaction action {};
        if (::sigaction(number, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) {
            ::sigaddset(&set, number);
        }
    }
    return set;
}

// In the child: this program as one rank. Does not return.
[[noreturn]] void become_rank(int rank, const Options& options, int argc, char** argv,
                              std::string id_file, pid_t parent, const sigset_t& mask) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // kept by exec
    if (::getppid() != parent) {
        ::_exit(1);
    }
    ::sigprocmask(SIG_SETMASK, &mask, nullptr);
    const std::string number = std::to_string(rank);
    ::setenv("RANK", number.c_str(), 1);
    ::setenv("LOCAL_RANK", number.c_str(), 1);
    ::setenv("WORLD_SIZE", std::to_string(options.ranks).c_str(), 1);
    ::setenv("NCCL_HOSTID", ("replay-" + number).c_str(), 0);
    std::vector<char*> arguments(argv, argv + argc);
    std::string name = "--id-file";
    arguments.push_back(name.data());
    arguments.push_back(id_file.data());
    arguments.push_back(nullptr);
    ::execv("/proc/self/exe", arguments.data());
    std::fprintf(stderr, "replay: exec: %s\n", std::strerror(errno));
    ::_exit(1);
}

void kill_all(const std::vector<pid_t>& ranks) {
    for (const pid_t pid : ranks) {
        ::kill(pid, SIGKILL);
    }
}

// Takes the ranks that have ended off the list. Returns false if one of them failed.
bool reap(std::vector<pid_t>& ranks) {
    bool good = true;
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
        if (std::erase(ranks, pid) > 0) {
            good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
        }
    }
    return good;
}

}  // namespace

int start_ranks(const Options& options, int argc, char** argv) {
    const sigset_t awaited = awaited_signals();
    sigset_t before;
    ::signal(SIGCHLD, SIG_DFL);  // whoever ignores it leaves no exit status behind
    ::sigprocmask(SIG_BLOCK, &awaited, &before);
    const std::string folder = make_folder();
    const std::string id_file = folder + "/id";
    const pid_t parent = ::getpid();
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < options.ranks; ++rank) {
        const pid_t pid = ::fork();
        if (pid == 0) {
            become_rank(rank, options, argc, argv, id_file, parent, before);
        }
        if (pid < 0) {
            std::fprintf(stderr, "replay: fork: %s\n", std::strerror(errno));
            break;
        }
        ranks.push_back(pid);
    }
    int result = ranks.size() == static_cast<std::size_t>(options.ranks) ? 0 : 1;
    if (result != 0) {
        kill_all(ranks);
    }
    while (!ranks.empty()) {
        const int number = ::sigwaitinfo(&awaited, nullptr);
        const bool asked_to_end = number == SIGINT || number == SIGTERM || number == SIGHUP;
        if (asked_to_end) {
            result = 128 + number;
        } else if (!reap(ranks) && result == 0) {
            result = 1;
        }
        if (result != 0) {
            kill_all(ranks);  // the others may wait for one that is gone
        }
    }
    ::unlink(id_file.c_str());
    ::unlink((id_file + ".new").c_str());
    ::rmdir(folder.c_str());
    return result;
}

}  // namespace replay
