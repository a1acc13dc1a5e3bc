// SPDX-License-Identifier: Apache-2.0
// One question that all ranks of a lane answer, through NCCL itself. The answer is the smallest
// word that a rank has said: it is yes where all have said so. Every rank that casts gets the same
// answer, however broken the network is on which the ranks agree otherwise. docs/director.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "shim/cuda/execution.h"
#include "shim/executor/nccl.h"

namespace deft::executor {

// The lane's context is current in all calls. Casts are made by one thread at a time, in the same
// order on all ranks; a cast with Copy::AtOnce when the answer to the last is there. What looks at
// pending casts is for any thread.
class Ballot {
public:
    // Switch: yes, and a switch that has been decided may be made.
    enum class Word : std::uint8_t { No, Yes, Switch };
    enum class Answer : std::uint8_t { No, Yes, Switch, Pending, Failed };

    // What it needs is put on the stream, in front of all casts. Null: CUDA refuses.
    static std::unique_ptr<Ballot> create(const cuda::Execution& driver, cuda::Context context,
                                          cuda::Stream stream);
    // Frees memory, which waits for the device; on one thread, when nothing is in flight.
    ~Ballot();
    Ballot(const Ballot&) = delete;
    Ballot& operator=(const Ballot&) = delete;

    // When the answer is copied to this rank: behind the cast, or when the rank asks for it.
    enum class Copy : std::uint8_t { AtOnce, OnDemand };

    // NCCL's result. Waits for nobody.
    int cast(const Nccl& nccl, deft_nccl_comm_t comm, cuda::Stream stream, Word word,
             Copy copy = Copy::AtOnce) noexcept;
    // To the last cast. The answer is the same on all ranks, so a copy of it that CUDA has refused
    // is asked for again.
    Answer answer(cuda::Stream stream) noexcept;

    // The last was cast by a rank that does not know whether the others cast at all. Until the
    // answer is there it is in doubt.
    void doubt() noexcept { in_doubt_.store(true, std::memory_order_release); }
    // The rank will know when the device is through with the job's last call on this stream: a rank
    // that takes part in that call has come past the place where it would have cast.
    void mark(cuda::Stream job) noexcept;
    // A cast with Copy::AtOnce is on its way.
    bool pending() noexcept;
    // And it is in doubt.
    bool doubted() noexcept { return in_doubt_.load(std::memory_order_acquire) && pending(); }
    // It is certain that the others have not cast: the lane is good for nothing any more. So it is
    // `longest` nanoseconds after the job's call was first seen here to have passed: all casts were
    // made by then, and one in which all take part is over. One thread at a time asks.
    static constexpr std::int64_t kLongest = 5'000'000'000;
    // Where the job makes no such call (its communicator ends), nothing tells where the others are.
    // Then it is so long after the cast.
    static constexpr std::int64_t kUnmarked = 60'000'000'000;
    static constexpr std::int64_t kNever = INT64_MAX;
    bool alone(std::int64_t longest = kLongest, std::int64_t unmarked = kNever) noexcept;

    // What it has of CUDA stays: the driver may not be asked any more.
    void abandon() noexcept;

private:
    Ballot(const cuda::Execution& driver, cuda::Context context)
        : driver_(driver), context_(context) {}
    bool prepare(cuda::Stream stream) noexcept;
    int tell(cuda::Stream stream) noexcept;

    const cuda::Execution& driver_;
    const cuda::Context context_;
    cuda::DevicePointer memory_ = 0;  // the words, and room for the answer
    cuda::Event answered_ = nullptr;
    cuda::Event passed_ = nullptr;
    volatile std::uint8_t* answer_ = nullptr;  // pinned
    bool told_ = true;                         // the copy of the answer is on its way
    std::atomic<std::int64_t> cast_ns_{0};     // 0: none is on its way
    std::atomic<bool> in_doubt_{false};
    std::atomic<bool> marked_{false};
    std::atomic<std::int64_t> passed_ns_{0};  // when the job's call was; 0: it has not been seen
};

}  // namespace deft::executor
