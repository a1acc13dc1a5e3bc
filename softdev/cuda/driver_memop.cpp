// SPDX-License-Identifier: Apache-2.0
// Driver API: stream memory operations. What is ordered by a value in memory is invisible to the
// vector clocks, so a stream that waits for a value is not tracked until a host thread has
// synchronised with it.
#include <atomic>
#include <chrono>
#include <thread>

#include "softdev/cuda/memory.h"
#include "softdev/cuda/report.h"
#include "softdev/cuda/submit.h"
#include "softdev/cuda/thread.h"

using softdev::Call;

namespace {

template <typename T>
bool satisfied(T have, T want, unsigned flags) {
    switch (flags & 3u) {
        case CU_STREAM_WAIT_VALUE_GEQ:
            return static_cast<std::make_signed_t<T>>(have - want) >= 0;
        case CU_STREAM_WAIT_VALUE_EQ:
            return have == want;
        case CU_STREAM_WAIT_VALUE_AND:
            return (have & want) != 0;
        default:
            return static_cast<T>(~(have | want)) != 0;
    }
}

template <typename T>
CUresult write_value(const char* name, CUstream handle, CUdeviceptr address, T value,
                     unsigned flags) {
    Call call(name);
    if (call.refused()) {
        return call.result();
    }
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (address % sizeof(T) != 0 || flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult checked =
        softdev::check_range(address, sizeof(T), softdev::Use::kernel, name, "");
    if (checked != CUDA_SUCCESS) {
        return checked;
    }
    softdev::Work work;
    work.label = name;
    work.tells = true;
    work.task = softdev::make_task([address, value] {
        std::atomic_ref<T>(*reinterpret_cast<T*>(address)).store(value, std::memory_order_release);
        return CUDA_SUCCESS;
    });
    return softdev::submit(call, stream, std::move(work));
}

template <typename T>
CUresult wait_value(const char* name, CUstream handle, CUdeviceptr address, T value,
                    unsigned flags) {
    Call call(name);
    if (call.refused()) {
        return call.result();
    }
    const softdev::StreamPtr stream = call.stream(handle);
    if (stream == nullptr) {
        return call.result();
    }
    if (address % sizeof(T) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult checked =
        softdev::check_range(address, sizeof(T), softdev::Use::kernel, name, "");
    if (checked != CUDA_SUCCESS) {
        return checked;
    }
    softdev::Work work;
    work.label = name;
    work.task = softdev::make_task([address, value, flags, where = stream->name()]() -> CUresult {
        const std::int64_t start = softdev::now_ns();
        const auto limit = static_cast<std::int64_t>(softdev::settings().deadline_s * 1e9);
        auto pause = std::chrono::microseconds(20);
        const std::atomic_ref<T> word(*reinterpret_cast<T*>(address));
        while (!satisfied(word.load(std::memory_order_acquire), value, flags)) {
            if (softdev::device().exiting) {
                return CUDA_SUCCESS;
            }
            if (softdev::now_ns() - start > limit) {
                softdev::report(
                    "%s is stuck: for %g s (SOFTDEV_DEADLINE) it has waited for the value %llu at "
                    "%p, which holds %llu",
                    where.c_str(), softdev::settings().deadline_s,
                    static_cast<unsigned long long>(value), reinterpret_cast<void*>(address),
                    static_cast<unsigned long long>(word.load()));
                return CUDA_ERROR_LAUNCH_TIMEOUT;
            }
            std::this_thread::sleep_for(pause);
            pause = std::min(pause * 2, std::chrono::microseconds(1000));
        }
        return CUDA_SUCCESS;
    });
    const CUresult result = softdev::submit(call, stream, std::move(work));
    if (result == CUDA_SUCCESS) {
        stream->untracked = true;
    }
    return result;
}

}  // namespace

CUresult CUDAAPI cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                      unsigned flags) {
    return write_value(__func__, stream, address, value, flags);
}
CUresult CUDAAPI cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                      unsigned flags) {
    return write_value(__func__, stream, address, value, flags);
}
// What other devices have written is in host memory here, which all see.
CUresult CUDAAPI cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
                                            CUflushGPUDirectRDMAWritesScope scope) {
    SOFTDEV_CALL(call);
    const bool known = target == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX &&
                       (scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER ||
                        scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                     unsigned flags) {
    return wait_value(__func__, stream, address, value, flags);
}
CUresult CUDAAPI cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                     unsigned flags) {
    return wait_value(__func__, stream, address, value, flags);
}
