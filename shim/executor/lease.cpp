// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/lease.h"

#include "shim/cuda/event_pool.h"

namespace deft::executor {
namespace {

constexpr std::uint64_t kReceived = 8;  // bytes from the beginning of the memory

}  // namespace

std::unique_ptr<Lease> Lease::create(const cuda::Execution& driver, cuda::Context context,
                                     cuda::DevicePointer memory, cuda::Event event,
                                     std::string& problem) {
    std::unique_ptr<Lease> lease(new Lease(driver, context, memory, event));
    const cuda::Current current(*driver.driver, context);
    void* answer = nullptr;
    const int result = current ? driver.MemHostAlloc(&answer, 1, cuda::kHostAllocPortable) : -1;
    if (result != cuda::kSuccess) {
        problem = "no pinned memory (CUDA error " + std::to_string(result) + ")";
        return nullptr;
    }
    lease->answer_ = static_cast<std::uint8_t*>(answer);
    return lease;
}

Lease::~Lease() {
    const cuda::Current current(*driver_.driver, context_);
    // A copy in flight would write into freed memory: then this byte stays.
    if (answer_ != nullptr && current && driver_.driver->EventQuery(event_) == cuda::kSuccess) {
        driver_.MemFreeHost(const_cast<std::uint8_t*>(answer_));
    }
}

int Lease::ask(const Nccl& nccl, deft_nccl_comm_t comm, cuda::Stream stream) noexcept {
    const bool vouched =
        !withheld() && cuda::host_now() < until_ns_.load(std::memory_order_relaxed);
    vouched_.store(vouched, std::memory_order_relaxed);
    // The others ask whatever CUDA says here: the byte then holds what this rank said before.
    driver_.MemsetD8Async(memory_, vouched ? 1 : 0, 1, stream);
    const int result = nccl.AllReduce(
        reinterpret_cast<const void*>(memory_), reinterpret_cast<void*>(memory_ + kReceived), 1,
        DEFT_NCCL_UINT8, DEFT_NCCL_MIN, comm, reinterpret_cast<deft_cuda_stream_t>(stream));
    told_ = result == DEFT_NCCL_SUCCESS && tell(stream) == cuda::kSuccess;
    return result;
}

int Lease::tell(cuda::Stream stream) noexcept {
    const int result =
        driver_.MemcpyDtoHAsync(const_cast<std::uint8_t*>(answer_), memory_ + kReceived, 1, stream);
    return result == cuda::kSuccess ? driver_.driver->EventRecord(event_, stream) : result;
}

int Lease::arrived(cuda::Stream stream) noexcept {
    if (!told_) {
        if (const int result = tell(stream); result != cuda::kSuccess) {
            return result;
        }
        told_ = true;
    }
    return driver_.driver->EventQuery(event_);
}

}  // namespace deft::executor
