// SPDX-License-Identifier: Apache-2.0
// Two ranks as processes, each with a device, for programs that run on the stand-in and on NCCL
// itself: they use CUDA's and NCCL's public functions and nothing else.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>

namespace softdev::test {

// Memory that both ranks share.
struct Meeting {
    std::atomic<int> arrived{0};
    ncclUniqueId ids[16];
};

class TwoRanks {
public:
    explicit TwoRanks(int own, Meeting* meeting) : rank(own), meeting_(meeting) {}

    const int rank;
    // Both have got here.
    void meet() {
        const int target = (meeting_->arrived.fetch_add(1) / 2 + 1) * 2;
        while (meeting_->arrived.load() < target) {
            usleep(100);
        }
    }
    // A new id for both.
    ncclUniqueId next_id() {
        ncclUniqueId& id = meeting_->ids[next_++];
        if (rank == 0 && ncclGetUniqueId(&id) != ncclSuccess) {
            std::fprintf(stderr, "ncclGetUniqueId: %s\n", ncclGetLastError(nullptr));
            std::_Exit(2);
        }
        meet();
        return id;
    }

private:
    Meeting* meeting_;
    int next_ = 0;
};

// Runs `body` in two processes; 0 if both ended well within `seconds`.
inline int run_two_ranks(const std::function<void(TwoRanks&)>& body, unsigned seconds) {
    void* const shared =
        mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    auto* const meeting = new (shared) Meeting;
    std::fflush(nullptr);
    int bad = 0;
    pid_t children[2];
    for (int rank = 0; rank < 2; ++rank) {
        children[rank] = fork();
        if (children[rank] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            alarm(seconds);
            // Two hosts, so that there is nothing but the network between them.
            setenv("NCCL_HOSTID", rank == 0 ? "golden-0" : "golden-1", 1);
            cudaSetDevice(0);  // the first one of each host: NCCL takes networks by its number
            TwoRanks self(rank, meeting);
            body(self);
            std::fflush(nullptr);
            std::_Exit(0);
        }
    }
    for (int ended = 0; ended < 2; ++ended) {
        int status = 0;
        const pid_t child = wait(&status);
        if (status != 0) {
            std::fprintf(stderr, "rank %d: %s %d\n", child == children[0] ? 0 : 1,
                         WIFSIGNALED(status) ? "signal" : "exit",
                         WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
            kill(children[child == children[0] ? 1 : 0], SIGKILL);
            bad = 1;
        }
    }
    return bad;
}

}  // namespace softdev::test
