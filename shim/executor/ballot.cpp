// SPDX-License-Identifier: Apache-2.0
#include "shim/executor/ballot.h"

#include "shim/cuda/event_pool.h"
#include "shim/cuda/pinned_pool.h"

namespace deft::executor {
namespace {

constexpr std::size_t kBytes = 16;
constexpr std::uint64_t kReceived = 8;  // from the beginning of the memory; each word is at its own

}  // namespace

std::unique_ptr<Ballot> Ballot::create(const cuda::Execution& driver, cuda::Context context,
                                       cuda::Stream stream) {
    std::unique_ptr<Ballot> ballot(new Ballot(driver, context));
    return ballot->prepare(stream) ? std::move(ballot) : nullptr;
}

bool Ballot::prepare(cuda::Stream stream) noexcept {
    void* answer = nullptr;
    if (cuda::PinnedPool::process().take(driver_, context_, 1, answer) != cuda::kSuccess) {
        return false;
    }
    answer_ = static_cast<std::uint8_t*>(answer);
    const auto put = [&](Word word) {
        const auto at = static_cast<std::uint8_t>(word);
        return driver_.MemsetD8Async(memory_ + at, at, 1, stream) == cuda::kSuccess;
    };
    return driver_.MemAlloc(&memory_, kBytes) == cuda::kSuccess &&
           driver_.driver->EventCreate(&answered_, cuda::kEventDisableTiming) == cuda::kSuccess &&
           driver_.driver->EventCreate(&passed_, cuda::kEventDisableTiming) == cuda::kSuccess &&
           put(Word::No) && put(Word::Yes) && put(Word::Switch);
}

Ballot::~Ballot() {
    // A copy in flight would write into the memory of another: then this byte stays.
    if (answer_ != nullptr &&
        (answered_ == nullptr || driver_.driver->EventQuery(answered_) == cuda::kSuccess)) {
        cuda::PinnedPool::process().give_back(const_cast<std::uint8_t*>(answer_));
    }
    for (const cuda::Event event : {answered_, passed_}) {
        if (event != nullptr) {
            driver_.EventDestroy(event);
        }
    }
    if (memory_ != 0) {
        driver_.MemFree(memory_);
    }
}

void Ballot::abandon() noexcept {
    memory_ = 0;
    answered_ = passed_ = nullptr;
    answer_ = nullptr;
}

int Ballot::cast(const Nccl& nccl, deft_nccl_comm_t comm, cuda::Stream stream, Word word,
                 Copy copy) noexcept {
    const int result =
        nccl.AllReduce(reinterpret_cast<const void*>(memory_ + static_cast<std::uint8_t>(word)),
                       reinterpret_cast<void*>(memory_ + kReceived), 1, DEFT_NCCL_UINT8,
                       DEFT_NCCL_MIN, comm, reinterpret_cast<deft_cuda_stream_t>(stream));
    told_ = false;
    if (result == DEFT_NCCL_SUCCESS && copy == Copy::AtOnce) {
        in_doubt_.store(false, std::memory_order_relaxed);
        marked_.store(false, std::memory_order_relaxed);
        passed_ns_.store(0, std::memory_order_relaxed);
        told_ = tell(stream) == cuda::kSuccess;
        cast_ns_.store(cuda::host_now(), std::memory_order_release);
    }
    return result;
}

int Ballot::tell(cuda::Stream stream) noexcept {
    const int result =
        driver_.MemcpyDtoHAsync(const_cast<std::uint8_t*>(answer_), memory_ + kReceived, 1, stream);
    return result == cuda::kSuccess ? driver_.driver->EventRecord(answered_, stream) : result;
}

Ballot::Answer Ballot::answer(cuda::Stream stream) noexcept {
    if (!told_ && tell(stream) != cuda::kSuccess) {
        return Answer::Failed;
    }
    told_ = true;
    const int state = driver_.driver->EventQuery(answered_);
    if (state == cuda::kNotReady) {
        return Answer::Pending;
    }
    cast_ns_.store(0, std::memory_order_relaxed);
    const std::uint8_t word = *answer_;
    return state == cuda::kSuccess && word <= static_cast<std::uint8_t>(Word::Switch)
               ? static_cast<Answer>(word)
               : Answer::Failed;
}

void Ballot::mark(cuda::Stream job) noexcept {
    marked_.store(driver_.driver->EventRecord(passed_, job) == cuda::kSuccess,
                  std::memory_order_release);
}

bool Ballot::pending() noexcept {
    return cast_ns_.load(std::memory_order_acquire) != 0 &&
           driver_.driver->EventQuery(answered_) == cuda::kNotReady;
}

bool Ballot::alone(std::int64_t longest, std::int64_t unmarked) noexcept {
    if (!doubted()) {
        return false;
    }
    const std::int64_t now = cuda::host_now();
    if (!marked_.load(std::memory_order_acquire)) {
        return now - cast_ns_.load(std::memory_order_relaxed) >= unmarked;
    }
    std::int64_t passed = passed_ns_.load(std::memory_order_relaxed);
    if (passed == 0 && driver_.driver->EventQuery(passed_) == cuda::kSuccess) {
        passed_ns_.store(passed = now, std::memory_order_relaxed);
    }
    return passed != 0 && now - passed >= longest;
}

}  // namespace deft::executor
