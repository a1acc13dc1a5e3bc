// SPDX-License-Identifier: Apache-2.0
// A device context for each test, and a stream operation that waits until the test lets it go.
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "softdev/cuda/softdev.h"

namespace softdev::test {

/// Holds a stream until open() is called. Gives up after a minute, so that a broken test ends.
class Gate {
public:
    ~Gate() { open(); }
    void open() {
        std::lock_guard<std::mutex> lock(state_->mutex);
        state_->open = true;
        state_->changed.notify_all();
    }
    CUresult hold(CUstream stream, const std::vector<softdev_access_t>& accesses = {}) {
        // The operation owns a share: it may still be on its way out when the gate is gone.
        return softdevStreamEnqueue(
            stream, "gate",
            [](void* share) {
                (*static_cast<std::shared_ptr<State>*>(share))->pass();
                return CUDA_SUCCESS;
            },
            [](void* share) { delete static_cast<std::shared_ptr<State>*>(share); },
            new std::shared_ptr<State>(state_), accesses.data(), accesses.size());
    }

private:
    struct State {
        void pass() {
            std::unique_lock<std::mutex> lock(mutex);
            changed.wait_until(lock, std::chrono::system_clock::now() + std::chrono::minutes(1),
                               [this] { return open; });
        }
        std::mutex mutex;
        std::condition_variable changed;
        bool open = false;
    };
    std::shared_ptr<State> state_ = std::make_shared<State>();
};

class SoftCuda : public ::testing::Test {
protected:
    void SetUp() override {
        ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
        ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
        ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
        reports_ = softdevReports();
    }
    void TearDown() override {
        cuCtxSetCurrent(context_);
        cuCtxSynchronize();
        EXPECT_EQ(new_reports(), expected_reports_) << "reports of the software device";
        cuDevicePrimaryCtxReset(0);
        cuDevicePrimaryCtxRelease(0);
        cuCtxSetCurrent(nullptr);
    }
    unsigned long new_reports() const { return softdevReports() - reports_; }
    /// This many reports belong to the test.
    void expect_reports(unsigned long count) { expected_reports_ = count; }

    CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
        CUstream s = nullptr;
        EXPECT_EQ(cuStreamCreate(&s, flags), CUDA_SUCCESS);
        return s;
    }
    CUevent event(unsigned flags = CU_EVENT_DISABLE_TIMING) {
        CUevent e = nullptr;
        EXPECT_EQ(cuEventCreate(&e, flags), CUDA_SUCCESS);
        return e;
    }
    CUdeviceptr memory(std::size_t bytes) {
        CUdeviceptr p = 0;
        EXPECT_EQ(cuMemAlloc(&p, bytes), CUDA_SUCCESS);
        return p;
    }

    CUcontext context_ = nullptr;

private:
    unsigned long reports_ = 0;
    unsigned long expected_reports_ = 0;
};

}  // namespace softdev::test
