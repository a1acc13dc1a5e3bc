// SPDX-License-Identifier: Apache-2.0
// An idle communicator leaves the processor alone: its threads hardly ever wake up. While an
// operation is open its progress thread never sleeps: as NCCL's.
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <latch>
#include <sstream>
#include <string>
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

// How often the thread of this name went to sleep, and the clock ticks it had a CPU.
struct Sleeps {
    long voluntary = -1;
    long ticks = -1;
};
Sleeps sleeps_of(const std::string& name) {
    Sleeps found;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::string comm;
        std::getline(std::ifstream(task.path() / "comm"), comm);
        if (comm != name) {
            continue;
        }
        std::ifstream status(task.path() / "status");
        for (std::string line; std::getline(status, line);) {
            if (line.starts_with("voluntary_ctxt_switches:")) {
                found.voluntary = std::stol(line.substr(line.find(':') + 1));
            }
        }
        std::string text;
        std::getline(std::ifstream(task.path() / "stat"), text);
        std::istringstream fields(text.substr(text.rfind(')') + 1));
        std::string field;
        long user = 0;
        long system = 0;
        for (int i = 3; i < 14; ++i) {
            fields >> field;
        }
        fields >> user >> system;
        found.ticks = user + system;
    }
    return found;
}

// A receive is open for half a second before it is sent: napping would be thousands of sleeps.
TEST(Open, TheProgressThreadNeverSleeps) {
    constexpr int kMostSleeps = 50;
    setenv("NCCL_SET_THREAD_NAME", "1", 1);
    Sleeps before;
    Sleeps after;
    std::latch looked(1);
    run_ranks(2, [&](Rank& self) {
        Device<int> data(std::vector<int>(10, self.rank));
        for (int turn = 0; turn < 2; ++turn) {
            if (self.rank == 0) {
                NC(ncclRecv(data.get(), 10, ncclInt32, 1, self.comm, self.nccl_stream()));
                if (turn == 1) {
                    before = sleeps_of("NCCL Progress 0");
                    // Until it has computed for a while, however busy the machine is.
                    do {
                        std::this_thread::sleep_for(std::chrono::milliseconds(50));
                        after = sleeps_of("NCCL Progress 0");
                    } while (after.voluntary >= 0 && after.ticks - before.ticks < 2 &&
                             after.voluntary - before.voluntary <= kMostSleeps);
                    looked.count_down();
                }
            } else {
                if (turn == 1) {
                    looked.wait();
                }
                NC(ncclSend(data.get(), 10, ncclInt32, 0, self.comm, self.nccl_stream()));
            }
            self.sync();
        }
    });
    ASSERT_GE(before.voluntary, 0) << "the thread has its name";
    EXPECT_LE(after.voluntary - before.voluntary, kMostSleeps);
}

}  // namespace
}  // namespace softdev::test
