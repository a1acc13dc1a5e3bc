// SPDX-License-Identifier: Apache-2.0
// An idle communicator leaves the processor alone: its threads hardly ever wake up.
#include <sys/resource.h>

#include <chrono>
#include <latch>
#include <thread>

#include "tests/component/softdev/nccl/ranks.h"

namespace softdev::test {
namespace {

long wake_ups() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
}

// Counted, not timed: each wake-up of a sleeping thread is one voluntary context switch. Two idle
// communicators have six threads, which may look around about once a second; polling every
// millisecond would be thousands.
TEST(Idle, ThreadsOfACommunicatorSleep) {
    long woken = -1;
    std::latch ready(2);
    std::latch over(1);
    run_ranks(2, [&](Rank& self) {
        expect_sum(self, self.comm, 2);
        expect_sum(self, self.comm, 2);
        ready.arrive_and_wait();
        if (self.rank == 0) {
            std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the last letters
            const long before = wake_ups();
            std::this_thread::sleep_for(std::chrono::seconds(2));
            woken = wake_ups() - before;
            over.count_down();
        } else {
            over.wait();
        }
    });
    EXPECT_GE(woken, 1) << "the test's own sleep";
    EXPECT_LE(woken, 200);
}

}  // namespace
}  // namespace softdev::test
