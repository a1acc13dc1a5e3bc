// SPDX-License-Identifier: Apache-2.0
// A GPU's memory by way of the CUDA driver that the job has loaded.
#pragma once

#include <array>
#include <cstddef>

#include "base/mutex.h"
#include "plugin/core/gpu_memory.h"

namespace deft::net {

// Copies on a stream of its own for each GPU, which waits for no kernel of the job's. Any thread;
// calls for one GPU wait for each other.
class CudaMemory final : public GpuMemory {
public:
    // NULL: the process has no CUDA driver, or one that lacks what is needed. Lives as long as the
    // process.
    static CudaMemory* process();

    void prepare(const void* gpu) override;
    bool put(void* gpu, const void* host, std::size_t bytes) override;
    bool get(void* host, const void* gpu, std::size_t bytes) override;
    bool flush(const void* gpu) override;

    struct Driver;

private:
    static constexpr std::size_t kMostGpus = 64;
    struct Gpu {
        Mutex mutex;
        void* context DEFT_GUARDED_BY(mutex) = nullptr;  // the primary one, kept
        void* stream DEFT_GUARDED_BY(mutex) = nullptr;
    };
    class Inside;

    explicit CudaMemory(const Driver& driver) : driver_(driver) {}
    Gpu* of(const void* gpu);
    bool open(Gpu& gpu, int number) DEFT_REQUIRES(gpu.mutex);
    int number_of(const void* gpu) const;
    bool check(int result, const char* call) const;

    const Driver& driver_;
    std::array<Gpu, kMostGpus> gpus_;
};

}  // namespace deft::net
