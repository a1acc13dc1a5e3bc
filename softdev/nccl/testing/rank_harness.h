// SPDX-License-Identifier: Apache-2.0
// Runs a test's ranks as processes: forks them, watches them, says where they hang, kills what is
// left. Header only, so that any room's tests can use it.
//
//     const auto outcome = softdev::testing::run_processes(4, [](Process& self) { ...; return 0;
//     }); EXPECT_TRUE(outcome.good()) << outcome.text();
//
// The calling process must have no threads and must not have touched CUDA or NCCL. A child ends
// with the body's result, or 1 when a GoogleTest assertion failed in it.
#pragma once

#include <gtest/gtest.h>
#include <nccl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace softdev::testing {

// Memory that all ranks of one run share.
struct Board {
    std::atomic<int> id_ready{0};
    std::atomic<int> arrived{0};
    std::atomic<int> flags[8] = {};
    ncclUniqueId id;
};

struct Process {
    int rank = 0;
    int nranks = 0;
    Board* board = nullptr;

    // The same id on all ranks: rank 0 makes it.
    ncclUniqueId unique_id() {
        if (rank == 0) {
            EXPECT_EQ(ncclGetUniqueId(&board->id), ncclSuccess) << ncclGetLastError(nullptr);
            board->id_ready.store(1);
        }
        wait_for([&] { return board->id_ready.load() == 1; }, "the unique id");
        return board->id;
    }
    void barrier() {
        const int target = (board->arrived.fetch_add(1) / nranks + 1) * nranks;
        wait_for([&] { return board->arrived.load() >= target; }, "a barrier");
    }
    void set_flag(int which) { board->flags[which].store(1); }
    void wait_flag(int which) {
        wait_for([&] { return board->flags[which].load() == 1; }, "a flag");
    }
    static void wait_for(const std::function<bool()>& condition, const char* what) {
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(100);
        while (!condition()) {
            if (std::chrono::steady_clock::now() >= until) {
                std::fprintf(stderr, "rank harness: no %s after 100 s\n", what);
                std::_Exit(3);
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }
};

struct Options {
    std::chrono::seconds limit{120};
    std::map<std::string, std::string> environment;                // of all ranks
    std::vector<std::map<std::string, std::string>> of_rank = {};  // of one rank, on top
};

struct Outcome {
    std::vector<int> codes;  // exit code, or 1000 + signal
    bool timed_out = false;
    std::string stacks;  // where they hung

    bool good() const {
        for (const int code : codes) {
            if (code != 0) {
                return false;
            }
        }
        return !timed_out;
    }
    std::string text() const {
        std::string out = timed_out ? "timed out; " : "";
        for (size_t rank = 0; rank < codes.size(); ++rank) {
            out += "rank " + std::to_string(rank) +
                   (codes[rank] >= 1000 ? " died of signal " + std::to_string(codes[rank] - 1000)
                                        : " ended with " + std::to_string(codes[rank])) +
                   "; ";
        }
        return out + stacks;
    }
};

// What gdb, or without it the kernel, says about a process' threads.
inline std::string stacks_of(pid_t pid) {
    const std::string id = std::to_string(pid);
    const std::string command = "gdb -q -batch -p " + id +
                                " -ex 'thread apply all bt 12' 2>/dev/null || for t in /proc/" +
                                id + "/task/*; do cat $t/comm $t/wchan; echo; done";
    std::string out = "\n--- process " + id + "\n";
    if (FILE* pipe = popen(command.c_str(), "r")) {
        char line[512];
        while (std::fgets(line, sizeof line, pipe) != nullptr && out.size() < 60000) {
            out += line;
        }
        pclose(pipe);
    }
    return out;
}

inline Outcome run_processes(int nranks, const std::function<int(Process&)>& body,
                             const Options& options = {}) {
    auto* board = static_cast<Board*>(
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    new (board) Board;
    std::fflush(nullptr);
    std::vector<pid_t> pids;
    for (int rank = 0; rank < nranks; ++rank) {
        const pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);  // never outlive the test
            for (const auto& [name, value] : options.environment) {
                setenv(name.c_str(), value.c_str(), 1);
            }
            if (static_cast<size_t>(rank) < options.of_rank.size()) {
                for (const auto& [name, value] : options.of_rank[static_cast<size_t>(rank)]) {
                    setenv(name.c_str(), value.c_str(), 1);
                }
            }
            Process self{rank, nranks, board};
            const int code = body(self);
            std::fflush(nullptr);
            std::_Exit(code != 0 ? code : ::testing::Test::HasFailure() ? 1 : 0);
        }
        pids.push_back(pid);
    }
    Outcome outcome;
    outcome.codes.assign(static_cast<size_t>(nranks), -1);
    const auto until = std::chrono::steady_clock::now() + options.limit;
    for (int left = nranks; left > 0;) {
        bool reaped = false;
        for (int rank = 0; rank < nranks; ++rank) {
            int status = 0;
            int& code = outcome.codes[static_cast<size_t>(rank)];
            if (code == -1 && waitpid(pids[static_cast<size_t>(rank)], &status, WNOHANG) > 0) {
                code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
                --left;
                reaped = true;
            }
        }
        if (left > 0 && !reaped) {
            if (!outcome.timed_out && std::chrono::steady_clock::now() >= until) {
                outcome.timed_out = true;
                for (int rank = 0; rank < nranks; ++rank) {
                    if (outcome.codes[static_cast<size_t>(rank)] == -1) {
                        outcome.stacks += stacks_of(pids[static_cast<size_t>(rank)]);
                        kill(pids[static_cast<size_t>(rank)], SIGKILL);
                    }
                }
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    }
    munmap(board, sizeof(Board));
    return outcome;
}

}  // namespace softdev::testing
