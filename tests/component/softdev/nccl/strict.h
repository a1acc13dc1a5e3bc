// SPDX-License-Identifier: Apache-2.0
// A fixture for misuse: short deadlines, and the reports of the software device captured.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "softdev/cuda/softdev.h"
#include "tests/component/softdev/nccl/ranks.h"

namespace softdev::test {

class Strict : public ::testing::Test {
protected:
    void SetUp() override {
        // What is well is never that late, also on a busy machine.
        setenv("SOFTDEV_DEADLINE", "5", 1);
        setenv("SOFTDEV_NCCL_GRACE", "0.2", 1);
        before_ = softdevReports();
        ::testing::internal::CaptureStderr();
    }
    void TearDown() override {
        if (!taken_) {
            ::testing::internal::GetCapturedStderr();
        }
        unsetenv("SOFTDEV_DEADLINE");
        unsetenv("SOFTDEV_NCCL_GRACE");
    }
    std::string reports() {
        taken_ = true;
        return ::testing::internal::GetCapturedStderr();
    }
    unsigned long new_reports() const { return softdevReports() - before_; }

private:
    unsigned long before_ = 0;
    bool taken_ = false;
};

// Waits for an asynchronous error.
inline ncclResult_t wait_error(ncclComm_t comm) {
    ncclResult_t state = ncclSuccess;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (state == ncclSuccess && std::chrono::steady_clock::now() < until) {
        EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return state;
}

// Until a thread has been found asleep several times: it is inside the call that blocks.
inline void wait_until_blocked(pid_t thread) {
    const std::string path = "/proc/self/task/" + std::to_string(thread) + "/stat";
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (int asleep = 0; asleep < 10;) {
        std::string text;
        std::getline(std::ifstream(path), text);
        const size_t name_end = text.rfind(") ");
        ASSERT_NE(name_end, std::string::npos) << "the thread ended: " << path;
        asleep += text[name_end + 2] == 'S' ? 1 : 0;
        ASSERT_LT(std::chrono::steady_clock::now(), until) << "the thread never sleeps";
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

inline void abort(Rank& self) {
    EXPECT_EQ(ncclCommAbort(self.comm), ncclSuccess);
    self.comm = nullptr;
}

}  // namespace softdev::test
