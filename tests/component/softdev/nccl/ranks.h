// SPDX-License-Identifier: Apache-2.0
// Ranks of one communicator as threads of this process, one software device each.
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <functional>
#include <thread>
#include <vector>

namespace softdev::test {

#define CU(call) ASSERT_EQ(call, CUDA_SUCCESS) << #call
#define NC(call) ASSERT_EQ(call, ncclSuccess) << #call << ": " << ncclGetLastError(nullptr)

inline CUstream as_cu(cudaStream_t stream) {
    return reinterpret_cast<CUstream>(stream);
}

// Memory of the current device, filled from a host vector, gone with the object.
template <class T>
class Device {
public:
    explicit Device(const std::vector<T>& values) : count_(values.size()) {
        CUdeviceptr memory = 0;
        EXPECT_EQ(cuMemAlloc(&memory, std::max<size_t>(values.size() * sizeof(T), 1)),
                  CUDA_SUCCESS);
        pointer_ = reinterpret_cast<T*>(memory);
        set(values);
    }
    explicit Device(size_t count) : Device(std::vector<T>(count)) {}
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;
    ~Device() { cuMemFree(reinterpret_cast<CUdeviceptr>(pointer_)); }

    T* get() const { return pointer_; }
    void set(const std::vector<T>& values) {
        if (!values.empty()) {
            EXPECT_EQ(cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(pointer_), values.data(),
                                   values.size() * sizeof(T)),
                      CUDA_SUCCESS);
        }
    }
    std::vector<T> host() const {
        std::vector<T> values(count_);
        if (count_ > 0) {
            EXPECT_EQ(cuMemcpyDtoH(values.data(), reinterpret_cast<CUdeviceptr>(pointer_),
                                   count_ * sizeof(T)),
                      CUDA_SUCCESS);
        }
        return values;
    }

private:
    size_t count_;
    T* pointer_ = nullptr;
};

struct Rank {
    int rank;
    int nranks;
    ncclComm_t comm;
    CUstream stream;
    cudaStream_t nccl_stream() const { return reinterpret_cast<cudaStream_t>(stream); }
    void sync() const { EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS); }
};

// Makes the device's primary context current in this thread.
inline void use_device(int device) {
    CUcontext context = nullptr;
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

// Runs `body` on `nranks` threads with a ready communicator and a stream each; destroys the
// communicators unless the body set comm to NULL.
inline void run_ranks(int nranks, const std::function<void(Rank&)>& body,
                      ncclConfig_t* config = nullptr) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < nranks; ++rank) {
        threads.emplace_back([&, rank] {
            use_device(rank);
            Rank self{rank, nranks, nullptr, nullptr};
            CU(cuStreamCreate(&self.stream, CU_STREAM_NON_BLOCKING));
            NC(ncclCommInitRankConfig(&self.comm, nranks, id, rank, config));
            body(self);
            if (self.comm != nullptr) {
                EXPECT_EQ(ncclCommDestroy(self.comm), ncclSuccess) << ncclGetLastError(nullptr);
            }
            cuStreamDestroy(self.stream);  // refused where a test broke the context
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

// One all-reduce that says whether a communicator works.
inline void expect_sum(Rank& self, ncclComm_t comm, int nranks) {
    const size_t count = 1000;
    Device<int> data(std::vector<int>(count, 1));
    NC(ncclAllReduce(data.get(), data.get(), count, ncclInt32, ncclSum, comm, self.nccl_stream()));
    self.sync();
    EXPECT_EQ(data.host(), std::vector<int>(count, nranks));
}

}  // namespace softdev::test
