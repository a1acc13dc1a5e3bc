// SPDX-License-Identifier: Apache-2.0
// The C API in a forked child.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/fork_guard.h"
#include "deft/deft.h"

namespace deft {
namespace {

// What is not answered as it should be; 0: all is. For the child's status.
int wrong_answer() {
    deft_stats_t stats{};
    stats.size = sizeof(stats);
    stats.switched = 7;
    deft_set_gradient_scaling(1);
    deft_set_gradient_clipping(1);
    const int of_use = deft_prove_iteration(1);
    deft_refuse_proof(1, "why");
    const int priced = deft_note_steps(1, 0.1, 1);
    deft_layers_wait(1);
    const int watched = deft_watch_training(1);
    deft_note_training(1, 0, 1, 1.0, 1.0, 0.1);
    deft_sum_t* const left = deft_take_sum();
    deft_companion_end("why");
    return deft_should_step() != 1                                                          ? 1
           : deft_flush() != 0                                                              ? 2
           : deft_set_optimizer("adamw") != 0                                               ? 3
           : deft_set_optimizer("no such thing") != -1                                      ? 4
           : deft_observe_optimizer("adamw") != 0                                           ? 5
           : deft_companion_begin(DEFT_COMPANION_INTERFACE, "1") != DEFT_COMPANION_UNWANTED ? 8
           : deft_stats(&stats) != 0                                                        ? 6
           : stats.switched != 0                                                            ? 7
           : of_use != 0                                                                    ? 9
           : left != nullptr                                                                ? 10
           : deft_wait_sum(nullptr, nullptr, 1) != 0                                        ? 11
           : priced != 0                                                                    ? 12
           : watched != 0                                                                   ? 13
                                                                                            : 0;
}

// A data loader's worker, forked while other threads of the job are inside these functions.
TEST(Api, AForkedChildIsAnsweredThoughALockIsHeldForEver) {
    ForkGuard::process().arm();
    std::atomic<bool> stop{false};
    std::vector<std::thread> others;
    others.emplace_back([&stop] {
        while (!stop) {
            deft_should_step();
        }
    });
    others.emplace_back([&stop] {
        while (!stop) {
            deft_set_gradient_scaling(0);
            deft_set_gradient_clipping(0);
        }
    });
    bool failed = false;
    for (int i = 0; i < 100 && !failed; ++i) {
        const pid_t child = ::fork();
        if (child == 0) {
            ::alarm(20);  // only a failing test waits for it
            ::_exit(wrong_answer());
        }
        int status = -1;
        EXPECT_EQ(::waitpid(child, &status, 0), child);
        failed = status != 0;
        EXPECT_FALSE(WIFSIGNALED(status)) << "it waits for a lock";
        EXPECT_EQ(status, 0);
    }
    stop = true;
    for (std::thread& other : others) {
        other.join();
    }
}

}  // namespace
}  // namespace deft
