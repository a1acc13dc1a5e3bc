// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/lease.h"

#include "shim/cuda/event_pool.h"
#include "shim/cuda/pinned_pool.h"

namespace deft::executor {
namespace {

// Bytes of the memory: of one question, and from its beginning to where the answer goes.
constexpr std::uint64_t kQuestion = 16;
constexpr std::uint64_t kReceived = 8;
constexpr std::size_t kQuestions = 2;
static_assert(kQuestions * kQuestion == Lease::kDeviceBytes);

}  // namespace

std::unique_ptr<Lease> Lease::create(const cuda::Execution& driver, cuda::Context context,
                                     cuda::DevicePointer memory, const Events& events,
                                     std::string& problem) {
    std::unique_ptr<Lease> lease(new Lease(driver, context, memory, events));
    const cuda::Current current(*driver.driver, context);
    void* answer = nullptr;
    const int result =
        current ? cuda::PinnedPool::process().take(driver, context, kQuestions, answer) : -1;
    if (result != cuda::kSuccess) {
        problem = "no pinned memory (CUDA error " + std::to_string(result) + ")";
        return nullptr;
    }
    lease->answer_ = static_cast<std::uint8_t*>(answer);
    return lease;
}

Lease::~Lease() {
    const cuda::Current current(*driver_.driver, context_);
    // A copy in flight would write into the memory of another: then this byte stays.
    if (answer_ != nullptr && current &&
        driver_.driver->EventQuery(events_.told) == cuda::kSuccess) {
        cuda::PinnedPool::process().give_back(context_, kQuestions,
                                              const_cast<std::uint8_t*>(answer_));
    }
}

int Lease::ask(const Nccl& nccl, deft_nccl_comm_t comm, cuda::Stream stream) noexcept {
    const bool vouched =
        !withheld() && cuda::host_now() < until_ns_.load(std::memory_order_relaxed);
    vouched_.store(vouched, std::memory_order_relaxed);
    const int result = put(Question::Vouches, vouched, nccl, comm, stream);
    told_[index(Question::Vouches)] =
        result == DEFT_NCCL_SUCCESS && tell(Question::Vouches, stream) == cuda::kSuccess;
    return result;
}

int Lease::ask_for_fit(bool fits, const Nccl& nccl, deft_nccl_comm_t comm,
                       cuda::Stream stream) noexcept {
    told_[index(Question::Fits)] = false;
    const int result = put(Question::Fits, fits, nccl, comm, stream);
    // The others may be far behind, and the plan may end here before they have answered.
    driver_.driver->EventRecord(events_.asked, stream);
    return result;
}

// The others ask whatever CUDA says here: the byte then holds what this rank said before.
int Lease::put(Question question, bool yes, const Nccl& nccl, deft_nccl_comm_t comm,
               cuda::Stream stream) noexcept {
    const cuda::DevicePointer said = memory_ + index(question) * kQuestion;
    driver_.MemsetD8Async(said, yes ? 1 : 0, 1, stream);
    return nccl.AllReduce(reinterpret_cast<const void*>(said),
                          reinterpret_cast<void*>(said + kReceived), 1, DEFT_NCCL_UINT8,
                          question == Question::Vouches ? DEFT_NCCL_MIN : DEFT_NCCL_MAX, comm,
                          reinterpret_cast<deft_cuda_stream_t>(stream));
}

int Lease::tell(Question question, cuda::Stream stream) noexcept {
    const std::size_t at = index(question);
    const int result = driver_.MemcpyDtoHAsync(const_cast<std::uint8_t*>(answer_) + at,
                                               memory_ + at * kQuestion + kReceived, 1, stream);
    return result == cuda::kSuccess ? driver_.driver->EventRecord(events_.told, stream) : result;
}

int Lease::arrived(Question question, cuda::Stream stream) noexcept {
    bool& told = told_[index(question)];
    if (!told) {
        if (const int result = tell(question, stream); result != cuda::kSuccess) {
            return result;
        }
        told = true;
    }
    return driver_.driver->EventQuery(events_.told);
}

}  // namespace deft::executor
